"""minibroker.acknowledge.after.sync with several replicas: what is acknowledged is on the disk of each of them."""

from __future__ import annotations

from random import Random

import pytest
from held_executor import HeldExecutor
from many_brokers import ManyBrokers

from minibroker_lab.simulation.machine import MachineDisk
from minibroker_protocol.messages.produce import ProduceResponse
from minibroker_protocol.records import Record, build_batch

STRICT = {"minibroker.acknowledge.after.sync": "true", "min.insync.replicas": "2"}


def test_a_follower_has_what_it_synced() -> None:
    held = HeldExecutor()
    brokers = ManyBrokers(3, STRICT, disks={node: MachineDisk() for node in (1, 2, 3)}, executor=held)
    held.run_all()
    brokers.create("t", [[1, 2, 3]])
    held.run_all()
    batch = build_batch([Record(0, brokers.clock.now_ms(), None, b"a", [])])
    answer = brokers.send(1, brokers.produce_request("t", batch), 9)
    brokers.settle(50)
    leader = brokers.partition(1, "t")
    assert [brokers.partition(node, "t").log_end_offset for node in (2, 3)] == [1, 1]
    assert leader.in_sync is not None
    assert [leader.in_sync.followers[node].end_offset for node in (2, 3)] == [0, 0]
    assert held.waiting == 3  # one of each replica
    held.run_all()
    brokers.settle(50)
    assert [leader.in_sync.followers[node].end_offset for node in (2, 3)] == [1, 1]
    assert isinstance(answer.result(), ProduceResponse)
    assert answer.result().responses[0].partition_responses[0].error_code == 0
    held.run_all()
    brokers.stop()


@pytest.mark.parametrize("seed", range(5))
def test_it_survives_the_leader_and_a_loss_of_power_everywhere_else(seed: int) -> None:
    random = Random(seed)
    disks = {node: MachineDisk() for node in (1, 2, 3)}
    brokers = ManyBrokers(3, STRICT, disks=disks)
    brokers.create("t", [[1, 2, 3]])
    values = [b"%d" % number for number in range(5)]
    assert [brokers.produce("t", value).error_code for value in values] == [0] * 5
    brokers.cluster.kill_broker(1)  # and its machine never comes back
    for node in (2, 3):
        brokers.cluster.kill_broker(node)
        disks[node].lose_power(random)
    for node in (3, 2):
        brokers.cluster.start_broker(node)
        assert brokers.partition(node, "t").log_end_offset == 5
    brokers.settle(3000)
    assert brokers.values("t") == values
    brokers.stop()
