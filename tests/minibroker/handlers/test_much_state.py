"""Requests that are short and ask about everything there is: no turn of the loop is long, however much that is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from large_requests import large_request, places
from watched_loop import MOST_AT_ONCE, MOST_CALLS, WatchedLoop, watched

from minibroker.coordinators.patterns import compile_pattern
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from minibroker_protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from minibroker_protocol.messages.transactions import (
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

IDS = 4000


@pytest.fixture(scope="module")
def loop() -> Iterator[WatchedLoop]:
    """With `IDS` transactional ids."""
    with watched() as made:
        made.serve(FindCoordinatorRequest(key_type=1, coordinator_keys=["id"]), 4)
        for number in range(IDS):
            name = f"id-{number}-{chr(0x4E00 + number)}"  # a character that no other id has
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            made.cluster.send(request, 5)
            if number == 0:
                made.cluster.timers.advance(100)  # the coordinator is made
        yield made


def listed(loop: WatchedLoop, pattern: str | None) -> ListTransactionsResponse:
    request = ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=pattern
    )
    answer = loop.cluster.decode(ListTransactionsRequest, 2, loop.serve(request, 2))
    assert isinstance(answer, ListTransactionsResponse)
    return answer


def test_the_transactions_of_a_broker_are_listed_in_turns(loop: WatchedLoop) -> None:
    for pattern, count in ((None, IDS), ("id-.*", IDS), (r"(?i)ID-\d*7-\p{Han}", IDS // 10), ("id", 0)):
        assert len(listed(loop, pattern).transaction_states) == count
        assert len(loop.turns) > IDS // MOST_AT_ONCE, "others have their turn in between"
        assert max(loop.turns) < MOST_CALLS


def test_a_pattern_over_all_transactional_ids_has_one_limit(loop: WatchedLoop) -> None:
    """Each id alone is within it: what is known of the pattern does not help with a character that is new."""
    pattern = compile_pattern("(.?){400}")
    assert pattern is not None
    assert all(pattern.search()(f"id-{number}-{chr(0x4E00 + number)}") for number in range(0, IDS, 100))
    answer = listed(loop, pattern.text)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == []
    assert max(loop.turns) < 5 * MOST_CALLS


def joined(loop: WatchedLoop, expression: str) -> int:
    """The error code of a member's heartbeat, after which the group's expressions are matched."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=1000, topic_partitions=[],
        subscribed_topic_regex=expression,
    )  # fmt: skip
    answer = loop.cluster.decode(ConsumerGroupHeartbeatRequest, 1, loop.serve(request, 1))
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    turns = loop.turns.copy()
    loop.pass_time(10_001)
    loop.turns += turns
    return answer.error_code


@pytest.mark.parametrize("long", ["|".join(f"topic-{number}" for number in range(400)), "(?:id-[0-9]{4}.){1,9}"])
def test_a_long_pattern_is_not_compiled_in_a_turn_of_the_loop(loop: WatchedLoop, long: str) -> None:
    loop.serve(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    loop.cluster.timers.advance(100)
    assert joined(loop, "[a-b]") == ErrorCode.NONE  # imports what is needed
    assert joined(loop, "[b-c]") == ErrorCode.NONE
    short = max(loop.turns)
    assert joined(loop, long) == ErrorCode.NONE
    assert joined(loop, f"{long}(") == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert max(loop.turns) < short + 200
    listed(loop, "id-.*")
    short = max(loop.turns)
    listed(loop, f"{long}.")
    assert max(loop.turns) < short + 200


def test_a_list_of_members_leaves_in_turns_and_is_answered_whole() -> None:
    """Some of it are members of the group, in the first, the second and the last thousand."""
    with watched() as loop:
        loop.serve(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        loop.cluster.timers.advance(100)
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")]
        for name in ("m5", "m1500", "m19999"):
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                group_instance_id=name,
                protocol_type="consumer",
                protocols=protocols,
            )
            loop.cluster.send(request, 9)
        names = [f"m{number}" for number in range(20_000)]
        members = [LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name) for name in names]
        leave = LeaveGroupRequest(group_id="g", members=members)
        answer = loop.cluster.decode(LeaveGroupRequest, 5, loop.serve(leave, 5))
        assert isinstance(answer, LeaveGroupResponse)
        assert [member.group_instance_id for member in answer.members] == names
        left = [member.group_instance_id for member in answer.members if member.error_code == 0]
        assert left == ["m5", "m1500", "m19999"]
        assert {member.error_code for member in answer.members} == {0, ErrorCode.UNKNOWN_MEMBER_ID}
        assert len(loop.turns) > 20


@pytest.mark.parametrize("name", ["ListOffsets.topics", "Produce.topic_data", "DescribeUserScramCredentials.users"])
def test_a_list_is_gone_through_in_turns(name: str) -> None:
    """From its first look at the list on, not only where it does what is asked."""
    api, path = next((api, path) for api, path in places() if ".".join((api.name, *path)) == name)
    with watched({"wide": 1}) as loop:
        loop.serve(*large_request(api, path, 4000, "wide"))
        assert len(loop.turns) > 4000 // MOST_AT_ONCE


def test_thousands_of_unknown_names_in_the_configuration_of_a_broker() -> None:
    """They are kept, as in Kafka; each is looked up, and not looked for among all."""
    names = [f"my.plugin.name.{number}" for number in range(5000)]
    changes = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value="x") for name in names
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    alter = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=4, resource_name="1", configs=changes)], validate_only=False
    )
    describe, other = (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=4, resource_name="1", configuration_keys=keys
                )
            ]
        )
        for keys in (None, [f"another.{number}" for number in range(20_000)])
    )
    with watched() as loop:
        loop.serve(describe, 4)  # imports, and compiles
        loop.serve(alter, 1)
        turns = [*loop.turns]
        answer = loop.cluster.decode(DescribeConfigsRequest, 4, loop.serve(describe, 4))
        assert isinstance(answer, DescribeConfigsResponse)
        assert {config.name for config in answer.results[0].configs} > {*names}
        turns += loop.turns
        loop.serve(other, 4)
        assert max(*turns, *loop.turns) < MOST_CALLS
