"""What the controller says of partitions that it cannot place: the texts of StripedReplicaPlacer of Kafka 4.4.0.

ReplicationControlManager.createTopic puts words before them, createPartitions none.
"""

from __future__ import annotations

from random import Random

import pytest

from minibroker.config.settings import Settings
from minibroker.controller.journal import MetadataJournal
from minibroker.controller.state import ControllerState, without_steps
from minibroker.controller.topics import TopicControl
from minibroker.metadata.image import BrokerImage, PartitionImage
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

TOO_FEW = (
    "The target replication factor of 3 cannot be reached because only 2 broker(s) are registered or some brokers have "
    "all their log directories cordoned."
)
ALL_FENCED = "All brokers are currently fenced, or have all their log directories cordoned."


@pytest.mark.parametrize(("nodes", "fenced", "text"), [(2, False, TOO_FEW), (3, True, ALL_FENCED)])
def test_brokers_that_are_missing_or_fenced(nodes: int, fenced: bool, text: str) -> None:
    state = ControllerState(Settings(), MetadataJournal(FaultyDisk()), Random(1), cluster_id="c", controller_id=1)
    state.load()
    for node in range(1, nodes + 1):
        state.register_broker(BrokerImage(node, "localhost", 9000 + node, fenced=fenced))
    state.take_over_topic("t", bytes(range(16)), [PartitionImage(0, (1, 2, 3), (1, 2), 1, 0)], {})
    control = TopicControl(state)
    wanted = m.CreateTopicsRequest.CreatableTopic(name="u", num_partitions=1, replication_factor=3)
    made = control.create_topics(m.CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=False)).topics[0]
    refused = int(ErrorCode.INVALID_REPLICATION_FACTOR)
    assert (made.error_code, made.error_message) == (
        refused, f"Unable to replicate the partition 3 time(s): {text}"
    )  # fmt: skip
    grown = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)
    more = m.CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=False)
    (answer,) = without_steps(control.create_partitions(more)).results
    assert (answer.error_code, answer.error_message) == (refused, text)
