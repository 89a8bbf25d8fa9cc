"""Whatever API refuses something, the broker can be asked why."""

from __future__ import annotations

from random import Random

import pytest
from memory_cluster import MemoryCluster
from samples import sample

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.table import apis
from minibroker.kernel.deferred import Deferred
from minibroker.requests import answered_errors
from minibroker.requests.api import Api
from minibroker.requests.context import CloseConnection, RequestContext
from minibroker.requests.refusal_reasons import note_errors
from minibroker.requests.response_frames import watched
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode

NEVER_REFUSES = {
    "ListGroups": "only while the coordinator reads its log",
    "ListTransactions": "only while the coordinator reads its log, or for a pattern",
    "DescribeLogDirs": "what is not there is not described",
    "ListPartitionReassignments": "what is not under way is not listed",
}
TRIES = 200


@pytest.fixture(scope="module")
def cluster() -> MemoryCluster:
    return MemoryCluster(topics={"t": 2}, config={"unstable.api.versions.enable": "true"})


@pytest.mark.parametrize("api", list(apis().values()), ids=lambda api: api.name)
def test_every_api_says_why(api: Api, cluster: MemoryCluster) -> None:
    """Random requests until one is refused; `MemoryCluster.call` looks for the reason of each error in its answer."""
    random = Random(api.key)
    cluster.broker.refusals.clear()
    for _ in range(TRIES):
        version = random.randint(api.min_version, api.max_version)
        request = sample(api.request, version, random)
        assert isinstance(request, Request)
        if isinstance(request, m.ProduceRequest):
            request.acks = 1
        try:
            cluster.send(request, version)
        except CloseConnection:
            continue
        cluster.timers.advance(10)
        found = [refusal for refusal in cluster.broker.refusals if refusal.api == api.name]
        if found:
            assert found[-1].code != ErrorCode.NONE
            assert found[-1].subject
            assert api.name not in NEVER_REFUSES
            return
    assert api.name in NEVER_REFUSES, f"{api.name} has refused nothing, or nobody was told why"


def test_the_controllers_reasons_are_told_by_the_broker_that_was_asked(cluster: MemoryCluster) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic
    wanted = [
        topic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]),
        topic(name="of two", num_partitions=1, replication_factor=1, assignments=[], configs=[]),
        topic(name="u", num_partitions=1, replication_factor=3, assignments=[], configs=[]),
    ]
    cluster.broker.refusals.clear()
    request = m.CreateTopicsRequest(topics=wanted, timeout_ms=1000, validate_only=False)
    cluster.call(request, m.CreateTopicsResponse, 7)
    told = {refusal.subject: (refusal.error, refusal.reason) for refusal in cluster.broker.refusals}
    assert told["t"] == ("TOPIC_ALREADY_EXISTS", "Topic 't' already exists.")
    assert told["of two"][0] == "INVALID_TOPIC_EXCEPTION"
    assert "contains one or more characters other than" in told["of two"][1]
    assert told["u"][0] == "INVALID_REPLICATION_FACTOR"
    assert "only 1 broker(s)" in told["u"][1]


def test_a_code_without_a_message_is_told_with_its_rule_and_what_was_said(cluster: MemoryCluster) -> None:
    cluster.broker.refusals.clear()
    request = m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name="nowhere")], allow_auto_topic_creation=False
    )
    cluster.call(request, m.MetadataResponse, 9)
    (refusal,) = cluster.broker.refusals
    assert (refusal.api, refusal.subject, refusal.code) == ("Metadata", "nowhere", 3)
    assert refusal.reason == "there is no such topic or partition"
    cluster.broker.refusals.clear()
    find = m.FindCoordinatorRequest(key="g", key_type=0)
    assert cluster.call(find, m.FindCoordinatorResponse, 2).error_code == ErrorCode.NONE
    assert not len(cluster.broker.refusals)
    leave = m.SyncGroupRequest(group_id="g", generation_id=3, member_id="m", assignments=[])
    cluster.call(leave, m.SyncGroupResponse, 2)
    (refusal,) = cluster.broker.refusals
    assert (refusal.api, refusal.error) == ("SyncGroup", "UNKNOWN_MEMBER_ID")


def test_a_client_that_means_another_cluster_is_told_so(cluster: MemoryCluster) -> None:
    cluster.broker.refusals.clear()
    request = m.ApiVersionsRequest(
        client_software_name="x", client_software_version="1", cluster_id="another", node_id=0
    )
    assert cluster.call(request, m.ApiVersionsResponse, 5).error_code == ErrorCode.REBOOTSTRAP_REQUIRED
    (refusal,) = cluster.broker.refusals
    assert refusal.reason == "the client means another cluster, or another broker of this one"


@pytest.mark.parametrize(("count", "wrong", "may"), [(256, False, False), (257, False, True), (3, True, True)])
def test_a_long_answer_is_not_searched_in_one_turn(count: int, wrong: bool, may: bool) -> None:
    """It may have an error, as far as the quick look can say."""
    answered_errors.may_err.cache_clear()  # what looks is made anew
    result = m.DeleteTopicsResponse.DeletableTopicResult
    answer = m.DeleteTopicsResponse(responses=[result(name="t", error_code=0) for _ in range(count)])
    if wrong:
        answer.responses[-1].error_code = 3
    assert answered_errors.may_err(type(answer))(answer) is may


def test_errors_of_a_long_answer_are_looked_for_in_turns(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[object] = []
    turn = cluster.broker.lane.turn
    monkeypatch.setattr(cluster.broker.lane, "turn", lambda work: (turns.append(work), turn(work)))
    result = m.DeleteTopicsResponse.DeletableTopicResult
    answer = m.DeleteTopicsResponse(responses=[result(name="t", error_code=0) for _ in range(20_000)])
    ctx = RequestContext(cluster.broker, 20, 4, "c", ConnectionInfo())
    noted = note_errors(ctx, m.DeleteTopicsRequest(topics=[], timeout_ms=1), answer)
    assert isinstance(noted, Deferred)
    cluster.timers.advance(0)
    assert noted.result() is answer
    assert len(turns) > 6


@pytest.mark.parametrize(("frames", "size"), [(None, 0), ([b"1234", b"56"], 6)])
def test_watchers_are_told_the_size_of_what_is_sent(
    cluster: MemoryCluster, frames: list[bytes] | None, size: int
) -> None:
    told: list[tuple[object, int]] = []
    ctx = RequestContext(cluster.broker, 0, 9, "c", ConnectionInfo())
    ctx.watchers = (lambda response, size: told.append((response, size)),)
    assert watched(ctx, None, frames) is frames  # type: ignore[arg-type]
    assert told == [(None, size)]
