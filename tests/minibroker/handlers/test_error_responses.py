"""An error can be the answer to any request, in every version, and says which partitions and ids it is about."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from faulty import FaultyCluster
from samples import sample

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.context import Api, RequestContext
from minibroker.handlers.dispatch import Exchange
from minibroker.handlers.error_responses import can_fail, error_response
from minibroker.handlers.table import apis
from minibroker.trace.plain import refusals
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.transactions import AddPartitionsToTxnRequest

CODE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NAME = "COORDINATOR_NOT_AVAILABLE (15)"
VERSIONS = [(api, version) for api in apis().values() for version in range(api.min_version, api.max_version + 1)]


@pytest.fixture(scope="module")
def broker() -> Iterator[FaultyCluster]:
    cluster = FaultyCluster(topics={"t": 1})
    yield cluster
    cluster.stop()


def exchange_of(broker: FaultyCluster, api: Api, version: int, request: Any) -> Exchange:
    context = RequestContext(broker.broker, api.key, version, "test", ConnectionInfo())
    return Exchange(broker.dispatcher, b"", 0, api, 7, context, request)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda v: v.name if isinstance(v, Api) else f"v{v}")
def test_every_request_in_every_version(broker: FaultyCluster, api: Api, version: int) -> None:
    assert can_fail(api.request)
    random = Random(version)
    for _ in range(5):
        request = sample(api.request, version, random)
        exchange = exchange_of(broker, api, version, request)
        buffers = exchange.encode(error_response(exchange, CODE, "why"))
        answer = broker.decode(api.request, version, buffers)
        assert answer is not None
        found = refusals(answer)
        assert all(text.startswith(NAME) for text in found)
        if not _asks_for_nothing(request, answer, version):
            assert found


def _asks_for_nothing(request: Any, answer: Any, version: int) -> bool:
    """Some list of the request is empty, and the answer has no place for an error beside its lists."""
    top = [f.versions for f in answer.__fields__ if f.name == "error_code"]
    return not any(low <= version <= high for low, high in top) and _has_empty(request, version)


def _has_empty(struct: Any, version: int) -> bool:
    for field in struct.__fields__:
        value = getattr(struct, field.name)
        low, high = field.versions
        if not (low <= version <= high and field.annotation.startswith("list[")):
            continue
        if not value or any(_has_empty(item, version) for item in value if hasattr(item, "__fields__")):
            return True
    return False


def test_partitions_are_named(broker: FaultyCluster) -> None:
    api = apis()[24]
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 3])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="a",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic],
    )
    exchange = exchange_of(broker, api, 3, request)
    assert refusals(error_response(exchange, CODE)) == [f"{NAME} at t-0", f"{NAME} at t-3"]


def test_metadata_still_names_the_brokers(broker: FaultyCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    response: Any = error_response(exchange_of(broker, apis()[3], 12, request), ErrorCode.LEADER_NOT_AVAILABLE)
    assert [(b.node_id, b.port) for b in response.brokers] == [(1, 9092)]
    assert [(t.name, t.error_code) for t in response.topics] == [("t", ErrorCode.LEADER_NOT_AVAILABLE)]
