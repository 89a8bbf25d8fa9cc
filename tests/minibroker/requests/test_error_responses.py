"""An error can be the answer to any request, in every version, and says which partitions and ids it is about."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from faulty import FaultyCluster
from samples import sample
from sampling import thinned

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.table import apis
from minibroker.requests.api import Api
from minibroker.requests.context import RequestContext
from minibroker.requests.error_responses import can_fail, error_response, refused
from minibroker.requests.tapped_request import TappedRequest
from minibroker.trace.plain import refusals
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.cluster import AlterClientQuotasRequest, AlterReplicaLogDirsRequest
from minibroker_protocol.messages.credentials import AlterUserScramCredentialsRequest
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.transactions import AddPartitionsToTxnRequest, InitProducerIdRequest

CODE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NAME = "COORDINATOR_NOT_AVAILABLE (15)"
VERSIONS = [(api, version) for api in apis().values() for version in range(api.min_version, api.max_version + 1)]


@pytest.fixture(scope="module")
def broker() -> Iterator[FaultyCluster]:
    cluster = FaultyCluster(topics={"t": 1})
    yield cluster
    cluster.stop()


def exchange_of(broker: FaultyCluster, api: Api, version: int, request: Any) -> TappedRequest:
    context = RequestContext(broker.broker, api.key, version, "test", ConnectionInfo(), correlation_id=7)
    return TappedRequest(api, context, request, api.handler)


@pytest.mark.parametrize(
    ("api", "version"), thinned(VERSIONS, 2, several=True), ids=lambda v: v.name if isinstance(v, Api) else f"v{v}"
)
def test_every_request_in_every_version(broker: FaultyCluster, api: Api, version: int) -> None:
    assert can_fail(api.request)
    random = Random(version)
    for _ in range(5):
        request = sample(api.request, version, random)
        tapped = exchange_of(broker, api, version, request)
        buffers = tapped.encode(error_response(tapped, CODE, "why"))
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
    tapped = exchange_of(broker, api, 3, request)
    assert refusals(error_response(tapped, CODE)) == [f"{NAME} at t-0", f"{NAME} at t-3"]


def test_metadata_still_names_the_brokers(broker: FaultyCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    response: Any = error_response(exchange_of(broker, apis()[3], 12, request), ErrorCode.LEADER_NOT_AVAILABLE)
    assert [(b.node_id, b.port) for b in response.brokers] == [(1, 9092)]
    assert [(t.name, t.error_code) for t in response.topics] == [("t", ErrorCode.LEADER_NOT_AVAILABLE)]


def test_a_user_who_is_in_two_lists_is_answered_once() -> None:
    kind = AlterUserScramCredentialsRequest
    upsertion = {"iterations": 4096, "salt": b"s", "salted_password": b"p"}
    request = kind(
        deletions=[kind.ScramCredentialDeletion(name="a", mechanism=1)],
        upsertions=[kind.ScramCredentialUpsertion(name=n, mechanism=2, **upsertion) for n in ("a", "b")],
    )
    response: Any = refused(request, 0, CODE, "why")
    assert [(r.user, r.error_code, r.error_message) for r in response.results] == [("a", 15, "why"), ("b", 15, "why")]
    response = refused(request, 0, CODE)
    assert [r.error_message for r in response.results] == [None, None]


def test_results_whose_request_has_them_further_in() -> None:
    kind = AlterReplicaLogDirsRequest
    topic = kind.AlterReplicaLogDirTopic(name="t", partitions=[0, 3])
    request = kind(dirs=[kind.AlterReplicaLogDir(path="/d", topics=[topic])])
    assert refusals(refused(request, 2, CODE)) == [f"{NAME} at t-0", f"{NAME} at t-3"]


def test_what_a_quota_is_of_comes_back_whole() -> None:
    kind = AlterClientQuotasRequest
    user = kind.EntityData(entity_type="user", entity_name="u")
    entry = kind.EntryData(entity=[user], ops=[])
    response: Any = refused(kind(entries=[entry], validate_only=False), 1, CODE)
    [answered] = response.entries
    assert [(part.entity_type, part.entity_name) for part in answered.entity] == [("user", "u")]


def test_numbers_of_the_request_are_no_results() -> None:
    """InitProducerIdRequest.getErrorResponse and FetchRequest.getErrorResponse: the session id alone comes back."""
    initialised: Any = refused(
        InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1, producer_id=7, producer_epoch=2), 4, CODE
    )
    assert (initialised.producer_id, initialised.producer_epoch) == (-1, -1)
    partition = FetchRequest.FetchPartition(partition=3, fetch_offset=9, log_start_offset=4, partition_max_bytes=1)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=11,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic="gone", partitions=[1])],
    )
    fetched: Any = refused(fetch, 12, CODE)
    assert fetched.session_id == 11
    assert [(t.topic, [(p.partition_index, p.log_start_offset) for p in t.partitions]) for t in fetched.responses] == [
        ("t", [(3, -1)])
    ]
