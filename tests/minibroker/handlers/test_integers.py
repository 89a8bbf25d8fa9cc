"""Integers of a client at their borders: the answers of Apache Kafka 4.4.0, and never a failure of this broker."""

from __future__ import annotations

from typing import Any

import pytest
from lockstep import Lockstep
from lockstep_integers import UNREGISTERS, ask_all, cases, edges, integers
from lockstep_recorded import INTEGERS, MemorySide, read, replayed
from memory_cluster import MemoryCluster

from minibroker.handlers.table import apis
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.structs import Struct

KEPT = read(INTEGERS)
SERVED = [api for api in apis().values() if api.advertised]
NAMES = [api.name for api in SERVED if integers(api.request, api.max_version)]
KAFKA_FAILS_TOO = {"Fetch", "ListOffsets", "WriteTxnMarkers"}
"""An isolation level that is none, a limit below zero, a marker of no producer: UNKNOWN_SERVER_ERROR there as well."""


@pytest.mark.parametrize("api", KEPT)
def test_integers_are_answered_as_kafka_answered_them(api: str) -> None:
    assert replayed(api, KEPT[api]) == KEPT[api]


def test_integers_of_every_api_were_recorded() -> None:
    assert KEPT.keys() == {*NAMES}


class Asking(Lockstep):
    """This broker alone, in memory; notes what it answers."""

    def __init__(self, seed: int) -> None:
        super().__init__([MemorySide()], seed)
        self.failed: list[str] = []

    def answered(self, name: str, version: int, request: Struct, ours: object, theirs: object) -> None:
        unknown = "'error_code': -1" in repr(ours) and name not in KAFKA_FAILS_TOO
        if unknown or (ours == "closed" and (name, version >= 3) != ("Produce", True)):
            self.failed.append(f"{self.subject}: {ours}")


PARTS = 40
"""Of the cases of an API: the default tests ask for the first, the tier `matrix` for a third, `slow` for the rest."""


def parts() -> list[Any]:
    marks = [[], *([pytest.mark.matrix if part % 3 == 1 else pytest.mark.slow] for part in range(1, PARTS))]
    return [pytest.param((name, part), marks=marks[part]) for name in NAMES for part in range(PARTS)]


@pytest.mark.parametrize("case", parts(), ids=lambda case: f"{case[0]}-{case[1]}")
def test_no_integer_is_a_failure(case: tuple[str, int]) -> None:
    """Every version, every integer of it, every border; an exception that leaves the broker ends the test."""
    name, part = case
    asking = Asking(part + 1)
    api, low, high = asking.table[name]
    ask_all(asking, cases(name, api.request, range(low, high + 1))[part::PARTS])
    assert asking.failed == []
    asking.close()


@pytest.mark.parametrize("retention_ms", edges("q"))
@pytest.mark.parametrize("version", [2, 4])
def test_the_retention_of_a_commit(version: int, retention_ms: int) -> None:
    """Kafka 4.4.0 answers NONE; the sum with the time wraps, as Java's does, into a time that is over."""
    cluster = MemoryCluster(topics={"t": 1})
    cluster.call(m.FindCoordinatorRequest(key="g", key_type=0), m.FindCoordinatorResponse, 1)
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    request = kind(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", retention_time_ms=retention_ms,
        topics=[kind.OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )  # fmt: skip
    answer = cluster.call(request, m.OffsetCommitResponse, version)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    cluster.stop()


def test_the_last_broker_may_be_unregistered() -> None:
    """A request about a broker's settings then names one that is not registered."""
    cluster = MemoryCluster()
    name, node_id = UNREGISTERS
    assert name == "UnregisterBrokerRequest.broker_id"
    answer = cluster.call(m.UnregisterBrokerRequest(broker_id=node_id), m.UnregisterBrokerResponse, 0)
    assert answer.error_code == ErrorCode.NONE
    kind = m.AlterConfigsRequest
    request = kind(
        resources=[kind.AlterConfigsResource(resource_type=4, resource_name="1", configs=[])], validate_only=True
    )
    altered = cluster.call(request, m.AlterConfigsResponse, 2)
    assert altered.responses[0].error_code == ErrorCode.INVALID_REQUEST
    asked = m.DescribeConfigsRequest
    resource = asked.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["node.id"])
    described = cluster.call(asked(resources=[resource]), m.DescribeConfigsResponse, 4)
    assert [row.value for row in described.results[0].configs] == ["1"]
    cluster.stop()
