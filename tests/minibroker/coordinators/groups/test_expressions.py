"""KIP-848 subscriptions by regular expression. Epochs, assignments and states are those that Apache Kafka 4.3.1 and
4.4.0 answered to the same heartbeats, as far apart; the numbers of partitions are this test's."""

from __future__ import annotations

from typing import Any

import pytest
from member_client import Members

from minibroker.coordinators.groups.consumer import expressions
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

HELD = {"group.consumer.assignment.interval.ms": "1000"}
LATER_MS = 10_001  # Kafka: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS


class Watched(Members):
    """Members whose answers come back as (epoch, topic -> partitions or None), and groups as described."""

    def says(
        self, member_id: str, epoch: int, owned: dict[str, list[int]] | None = None, **more: Any
    ) -> tuple[int, dict[str, list[int]] | None]:
        if owned is not None:
            ids = {name: topic.topic_id for name, topic in self.broker.image.topics.items()}
            more["topic_partitions"] = [
                m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=ids[name], partitions=partitions)
                for name, partitions in owned.items()
            ]
            more.setdefault("rebalance_timeout_ms", 5000)
        answer = self.beat(member_id, epoch, **more)
        assert answer.error_code == ErrorCode.NONE, answer
        told = answer.assignment
        return answer.member_epoch, None if told is None else self._by_name(told.topic_partitions)

    def joins(self, member_id: str, *, regex: str | None, names: list[str] | None = None, **more: Any) -> Any:
        return self.says(member_id, 0, {}, subscribed_topic_names=names, subscribed_topic_regex=regex, **more)

    def described(self) -> tuple[str, int, int]:
        """State, group epoch, assignment epoch, after what the coordinator does by itself."""
        self.advance(0)
        told = self._describe()
        return told.group_state, told.group_epoch, told.assignment_epoch

    def holds(self, member_id: str) -> dict[str, list[int]]:
        return self._by_name(
            next(
                member.assignment.topic_partitions
                for member in self._describe().members
                if member.member_id == member_id
            )
        )

    def new_topic(self, name: str) -> None:
        self.broker.create_topics([name])
        self.advance(1)

    def _describe(self) -> Any:
        request = m.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
        return self.call(request, m.ConsumerGroupDescribeResponse, 1).groups[0]

    def _by_name(self, topics: Any) -> dict[str, list[int]]:
        names = self.broker.image.topic_names
        return {names[topic.topic_id]: list(topic.partitions) for topic in topics}


@pytest.fixture(params=["here", "on another thread"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watched:
    if request.param != "here":
        monkeypatch.setattr(expressions, "takes_long", lambda expression, names: True)
    return Watched()


T, U = {"t": [0, 1, 2, 3]}, {"u": [0, 1]}


def test_an_expression_is_resolved_after_the_answer(client: Watched) -> None:
    assert client.joins("a", regex="[tu]") == (1, {})
    assert client.group().expressions == {}
    assert client.described() == ("Assigning", 2, 1)
    assert client.says("a", 1) == (2, T | U)
    assert client.described() == ("Stable", 2, 2)
    assert client.joins("b", regex="[tu]") == (3, {})  # what it matches is known


def test_an_expression_that_matches_nothing(client: Watched) -> None:
    assert client.joins("a", regex="zz") == (1, {})
    assert client.described() == ("Stable", 1, 1)
    assert client.group().expressions["zz"].topics == frozenset()
    assert client.says("a", 1) == (1, None)


def test_one_that_is_no_expression_makes_no_group_and_changes_none(client: Watched) -> None:
    refused = client.enter("a", subscribed_topic_names=None, subscribed_topic_regex="(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "g" not in client.shard().groups
    client.joins("a", regex="t")
    client.advance(0)
    client.says("a", 1)
    before = client.group().durable()
    assert client.beat("a", 2, subscribed_topic_regex="[").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert client.group().durable() == before


def test_names_count_at_once_and_the_expression_later(client: Watched) -> None:
    assert client.joins("a", regex="u", names=["t"]) == (2, T)
    assert client.described() == ("Assigning", 3, 2)
    assert client.says("a", 2) == (3, T | U)


def test_expressions_are_matched_ten_seconds_apart(client: Watched) -> None:
    client.joins("a", regex="[tun].*")
    client.advance(0)
    client.says("a", 1)
    assert client.joins("b", regex="u") == (2, {})
    client.new_topic("new")
    for step_ms in (1, 4000, 5000):
        client.advance(step_ms)
        assert client.says("b", 2) == (2, None)
        assert client.described()[1:] == (2, 2)
    client.advance(1001)
    assert client.says("b", 2) == (2, None)  # asks for it
    assert client.described() == ("Assigning", 3, 2)
    assert client.group().expressions["[tun].*"].topics == {"t", "u", "new"}
    assert client.says("b", 2)[0] == 3


def test_a_new_topic_is_found_by_the_first_heartbeat_after_ten_seconds(client: Watched) -> None:
    client.joins("a", regex="[tn].*")
    client.advance(0)
    assert client.says("a", 1) == (2, T)
    client.new_topic("new")
    client.advance(LATER_MS)
    assert client.says("a", 2) == (2, None)
    assert client.described() == ("Assigning", 3, 2)
    assert client.says("a", 2) == (3, T | {"new": [0]})
    before = client.group().durable()
    assert client.restart().group().durable() == before


def test_what_matches_too_many_topics_by_now_keeps_those_it_had(
    client: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.joins("a", regex="[tn].*")
    client.advance(0)
    assert client.says("a", 1) == (2, T)
    before = client.group().expressions["[tn].*"]

    def refused(expression: str, image: object) -> frozenset[str]:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, "too much")

    monkeypatch.setattr(expressions, "_matching", refused)
    client.new_topic("new")
    client.advance(LATER_MS)
    assert client.says("a", 2) == (2, None)
    client.advance(0)
    assert client.says("a", 2) == (2, None)
    after = client.group().expressions["[tn].*"]
    assert (after.topics, after.timestamp_ms > before.timestamp_ms) == (before.topics, True)


def test_other_changes_of_the_metadata_ask_for_nothing(client: Watched) -> None:
    client.joins("a", regex="t")
    client.advance(0)
    client.says("a", 1)
    at = client.group().expressions["t"].timestamp_ms
    grown = m.CreatePartitionsRequest.CreatePartitionsTopic(name="u", count=6, assignments=None)
    request = m.CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=False)
    assert client.call(request, m.CreatePartitionsResponse, 3).results[0].error_code == ErrorCode.NONE
    client.advance(LATER_MS)
    client.says("a", 2)
    client.advance(0)
    assert client.group().expressions["t"].timestamp_ms == at


def test_they_are_matched_again_after_the_interval_of_the_setting() -> None:
    client = Watched({"group.consumer.regex.refresh.interval.ms": "30000"})
    client.joins("a", regex="t")
    client.advance(0)
    at = client.group().expressions["t"].timestamp_ms
    for after_ms, again in ((30_000, False), (1, True)):
        client.advance(after_ms)
        client.says("a", client.group().members["a"].member_epoch)
        client.advance(0)
        assert (client.group().expressions["t"].timestamp_ms > at) is again


def test_one_that_is_changed_by_its_only_member(client: Watched) -> None:
    """The topics of the old one are forgotten; with that there is no last time to wait from."""
    client.joins("a", regex="zz")
    client.advance(0)
    assert client.says("a", 1, subscribed_topic_regex="t") == (1, None)
    assert client.described() == ("Stable", 1, 1)
    assert client.says("a", 1) == (1, None)
    assert client.described() == ("Assigning", 2, 1)
    assert client.says("a", 1) == (2, T)
    assert list(client.group().expressions) == ["t"]


def test_what_the_new_one_is_not_known_to_match_is_given_up_at_once(client: Watched) -> None:
    client.joins("a", regex="t")
    client.advance(0)
    client.says("a", 1)
    client.advance(LATER_MS)
    assert client.says("a", 2, T, subscribed_topic_regex="u") == (2, {})
    assert client.holds("a") == T  # until it says that it gave it up
    assert client.described() == ("Assigning", 3, 2)
    assert client.says("a", 2, {}) == (3, U)
    assert client.holds("a") == U


def test_an_expression_that_goes_and_comes_back() -> None:
    client = Watched(HELD)
    client.joins("a", regex="u", names=["t"])
    client.advance(1000)
    assert client.says("a", 2) == (3, T | U)
    assert client.says("a", 3, T | U, subscribed_topic_regex="") == (3, T)
    assert client.described() == ("Assigning", 4, 3)
    assert client.says("a", 3, T) == (3, None)
    assert client.holds("a") == T
    client.advance(1000)
    assert client.says("a", 3, T) == (4, None)
    client.advance(1000)
    assert client.says("a", 4, T, subscribed_topic_regex="u") == (4, T)
    assert client.described() == ("Assigning", 5, 4)
    assert client.says("a", 4, T) == (5, T | U)
    client.advance(1000)
    assert client.says("a", 5, T | U, subscribed_topic_names=[]) == (5, U)
    assert client.described() == ("Reconciling", 6, 6)
    assert client.says("a", 5, U) == (6, None)


def test_fewer_names_before_there_is_a_new_target() -> None:
    client = Watched(HELD)
    assert client.joins("a", regex=None, names=["t", "u"]) == (2, T | U)
    assert client.says("a", 2, T | U, subscribed_topic_names=["t"]) == (2, T)
    assert client.described() == ("Assigning", 3, 2)
    assert client.holds("a") == T | U
    assert client.says("a", 2, T) == (2, None)
    assert client.holds("a") == T
    client.advance(1000)
    assert client.says("a", 2, T) == (3, None)
    assert client.described() == ("Stable", 3, 3)


def test_a_static_member_that_comes_back_with_another_one(client: Watched) -> None:
    client.joins("a", regex="[tu]", instance_id="i")
    client.advance(0)
    client.says("a", 1, instance_id="i")
    client.says("a", 2, instance_id="i", rebalance_timeout_ms=5000)
    assert client.beat("a", -2, instance_id="i").error_code == ErrorCode.NONE
    assert client.joins("b", regex="[tu]", instance_id="i") == (2, T | U)
    assert client.beat("b", -2, instance_id="i").error_code == ErrorCode.NONE
    assert client.joins("c", regex="t", instance_id="i") == (2, {})  # not known yet, within ten seconds
    assert client.described() == ("Stable", 2, 2)
    assert client.holds("c") == {}
    assert client.group().expressions == {}


def test_one_that_the_last_member_takes_along_is_forgotten(client: Watched) -> None:
    client.joins("a", regex="t")
    client.advance(0)
    client.joins("b", regex="[tu]")
    client.says("a", -1)
    assert client.group().expressions == {}
    assert client.restart().group().expressions == {}


@pytest.mark.parametrize("leaver", ["a", "b", "c"])
def test_who_leaves_takes_along_only_what_no_other_member_names(client: Watched, leaver: str) -> None:
    for member, regex in (("a", "t"), ("b", "t"), ("c", "u")):
        client.joins(member, regex=regex)
        client.advance(LATER_MS)
    client.says("a", 1)
    client.advance(0)
    assert set(client.group().expressions) == {"t", "u"}
    client.says(leaver, -1)
    assert set(client.group().expressions) == ({"t"} if leaver == "c" else {"t", "u"})


def test_after_a_restart_the_first_heartbeat_asks_again(client: Watched) -> None:
    client.joins("a", regex="t")
    again = client.restart()
    assert again.group().expressions == {}
    assert again.says("a", 1) == (1, None)
    assert again.described() == ("Assigning", 2, 1)
