"""What is recorded of an exchange, and what is not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from faulty import FaultyCluster, produce_request

from minibroker.requests.chain import Place
from minibroker.requests.context import CloseConnection
from minibroker.trace.paced import PacedRecorder
from minibroker.trace.pcapng import PcapngWriter
from minibroker.trace.recorder import line_of
from minibroker_protocol.messages.configs import IncrementalAlterConfigsRequest
from minibroker_protocol.messages.groups import HeartbeatRequest

SECRET = "hunter2-hunter2"


@pytest.fixture
def broker() -> Iterator[FaultyCluster]:
    cluster = FaultyCluster(topics={"t": 1})
    cluster.commands.call("trace.record", {"frames": True})
    yield cluster
    cluster.commands.close()
    cluster.stop()


def last(broker: FaultyCluster, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.commands.call("trace.last", {"frames": True, **arguments})
    return found


def alter(name: str, value: str) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def test_secrets_are_told_neither_as_fields_nor_as_bytes(broker: FaultyCluster) -> None:
    broker.send(alter("listener.name.x.ssl.keystore.password", SECRET), 1)
    exchange = last(broker)[-1]
    assert exchange["request"]["resources"][0]["configs"][0]["value"] == "[hidden]"
    assert exchange["request_frame"] is None
    assert SECRET not in json.dumps(exchange)
    broker.send(alter("log.retention.ms", "5000"), 1)
    exchange = last(broker)[-1]
    assert exchange["request"]["resources"][0]["configs"][0]["value"] == "5000"
    assert exchange["request_frame"] is not None


def test_errors_and_batches_are_told(broker: FaultyCluster) -> None:
    broker.send(produce_request("t", 0, producer_id=5, epoch=0, sequence=0), 9)
    broker.send(produce_request("t", 0, producer_id=5, epoch=0, sequence=7), 9)
    first, second = last(broker)
    batch = second["request"]["topic_data"][0]["partition_data"][0]["records"][0]
    assert (batch["producer_id"], batch["base_sequence"], batch["records"]) == (5, 7, 1)
    assert (first["outcome"], first["errors"]) == ("answered", [])
    assert second["errors"][0].startswith("OUT_OF_ORDER_SEQUENCE_NUMBER (45) at t-0")
    assert [first["number"], second["number"]] == [1, 2]
    assert last(broker, after=1) == [second]


def test_the_reason_of_a_refusal_is_told_with_its_exchange(broker: FaultyCluster) -> None:
    broker.send(produce_request("t", 0, producer_id=5, epoch=3, sequence=0), 9)
    broker.send(produce_request("t", 0, producer_id=5, epoch=1, sequence=1), 9)
    fine, fenced = last(broker)
    assert fine["reasons"] == []
    (reason,) = fenced["reasons"]
    assert reason.startswith("INVALID_PRODUCER_EPOCH (47) of t-0: ")
    assert reason in line_of(fenced)
    capture = io.BytesIO()
    writer = PcapngWriter(capture)
    writer.write(fenced)
    assert reason.encode() in capture.getvalue()


def test_what_a_fault_did_is_told(broker: FaultyCluster) -> None:
    rule = broker.inject("Heartbeat", "close")
    with pytest.raises(CloseConnection):
        broker.send(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    exchange = last(broker)[-1]
    assert exchange["fault"] == rule.number
    assert exchange["outcome"] == "closed: fault: closed at Heartbeat"
    assert exchange["response"] is None


def test_only_so_many_are_kept_and_none_after_the_end(broker: FaultyCluster) -> None:
    broker.commands.call("trace.record", {"kept": 2})
    for _ in range(5):
        broker.send(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    assert [exchange["number"] for exchange in last(broker)] == [4, 5]
    broker.commands.call("trace.record", {"kept": 0})
    assert broker.dispatcher.link_at(Place.FAULTS_AND_TRACE) is None
    assert last(broker) == []


def test_while_a_recorder_rests_no_request_passes_it_and_refused_ones_are_recorded() -> None:
    cluster = FaultyCluster(topics={"t": 1})
    paced = PacedRecorder(2, 1, cluster.timers, lambda: 0.0)  # its clock stands still: no room comes back
    cluster.commands.set_recorder(paced)
    for sequence in range(4):
        cluster.send(produce_request("t", 0, producer_id=5, epoch=1, sequence=sequence), 9)
    assert cluster.dispatcher.link_at(Place.FAULTS_AND_TRACE) is None
    assert (len(paced.last), paced.left_out) == (2, 1)
    cluster.send(produce_request("t", 0, producer_id=5, epoch=0, sequence=4), 9)
    cluster.send(HeartbeatRequest(group_id="none", generation_id=1, member_id="m"), 4)  # refused by its code only
    fenced, unknown = (one.to_json() for one in list(paced.last)[-2:])
    assert (fenced["number"], fenced["outcome"]) == (3, "answered")
    assert "INVALID_PRODUCER_EPOCH" in fenced["errors"][0]
    assert len(fenced["reasons"]) == 1
    assert fenced["request"]["topic_data"][0]["partition_data"][0]["records"][0]["base_sequence"] == 4
    assert (unknown["api"], len(unknown["reasons"])) == ("Heartbeat", 1)
    paced.pace(1)  # a page was opened
    assert cluster.dispatcher.link_at(Place.FAULTS_AND_TRACE) is cluster.commands.tap
    cluster.commands.set_recorder(None)
    cluster.send(produce_request("t", 0, producer_id=5, epoch=0, sequence=4), 9)
    assert paced.last[-1].api == "Heartbeat"
    cluster.stop()
