"""Server-side assignors: complete, disjoint, fair, and moving little."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import search

from minibroker.coordinators.groups.consumer.assignors import (
    ASSIGNORS,
    Assignment,
    Candidate,
    range_assignor,
    uniform_assignor,
)

A, B = bytes(15) + b"\1", bytes(15) + b"\2"


def member(
    member_id: str, *topics: bytes, instance: str | None = None, current: Mapping[bytes, frozenset[int]] | None = None
) -> Candidate:
    return Candidate(member_id, instance, frozenset(topics), current or {})


def rounds(members: list[Candidate], assignment: Assignment) -> list[Candidate]:
    return [Candidate(m.member_id, m.instance_id, m.topics, assignment[m.member_id]) for m in members]


def test_range_gives_consecutive_partitions() -> None:
    members = [member("c", A, B), member("a", A, B), member("b", A)]
    assert range_assignor(members, {A: 7, B: 2}) == {
        "a": {A: frozenset({0, 1, 2}), B: frozenset({0})},
        "b": {A: frozenset({3, 4})},
        "c": {A: frozenset({5, 6}), B: frozenset({1})},
    }


def test_range_puts_static_members_first() -> None:
    members = [member("a", A), member("z", A, instance="2"), member("y", A, instance="1")]
    assert range_assignor(members, {A: 3}) == {"y": {A: {0}}, "z": {A: {1}}, "a": {A: {2}}}


def test_uniform_takes_only_what_is_too_much() -> None:
    first = uniform_assignor([member("a", A)], {A: 6})
    members = [*rounds([member("a", A)], first), member("b", A), member("c", A)]
    second = uniform_assignor(members, {A: 6})
    assert second["a"][A] <= first["a"][A]
    assert [len(second[m][A]) for m in "abc"] == [2, 2, 2]


def test_more_members_than_partitions() -> None:
    assert uniform_assignor([member(m, A) for m in "abc"], {A: 1}) == {"a": {A: {0}}, "b": {}, "c": {}}


def test_members_with_different_subscriptions() -> None:
    members = [member("a", A), member("b", A, B), member("c", B)]
    assignment = uniform_assignor(members, {A: 4, B: 2})
    assert sorted(sum(len(p) for p in assignment[m].values()) for m in "abc") == [2, 2, 2]


def test_members_with_different_subscriptions_keep_what_they_may() -> None:
    """Nobody keeps a topic that it does not subscribe to, a partition that is not there, or one that is another's."""
    members = [
        member("a", A, current={A: frozenset({1}), B: frozenset({0})}),
        member("b", A, B, current={A: frozenset({0, 1, 7}), B: frozenset({0})}),
    ]
    assert uniform_assignor(members, {A: 2, B: 1}) == {"a": {A: {1}}, "b": {A: {0}, B: {0}}}


def test_partitions_go_round_until_nobody_has_two_more_than_another() -> None:
    """What a gives to b makes room for what b gives to c."""
    members = [
        member("a", A, B, current={A: frozenset({0}), B: frozenset({0, 1, 2})}),
        member("b", A, B),
        member("c", A),
    ]
    assert uniform_assignor(members, {A: 1, B: 3}) == {"a": {B: {1, 2}}, "b": {B: {0}}, "c": {A: {0}}}


counts = st.dictionaries(st.sampled_from([bytes(15) + bytes([i]) for i in range(5)]), st.integers(1, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Candidate], dict[bytes, int]]:
    topics = draw(counts)
    alike = draw(st.booleans())
    everyone = frozenset(draw(st.sets(st.sampled_from(sorted(topics)), min_size=1)))
    members = []
    for number in range(draw(st.integers(1, 8))):
        mine = everyone if alike else frozenset(draw(st.sets(st.sampled_from(sorted(topics)))))
        members.append(Candidate(f"m{number}", draw(st.sampled_from([None, f"i{number}"])), mine, {}))
    return members, topics


@pytest.mark.parametrize("name", ASSIGNORS)
@search(60)
@given(groups(), st.data())
def test_every_partition_has_one_owner_that_subscribes(
    name: str, group: tuple[list[Candidate], dict[bytes, int]], data: st.DataObject
) -> None:
    members, topics = group
    for round_ in range(3):
        assignment = ASSIGNORS[name](members, topics)
        check(assignment, members, topics)
        # Members come and go, and topics grow; what was assigned is the start of the next round.
        members = [m for m in rounds(members, assignment) if data.draw(st.booleans())] or members
        members.append(Candidate(f"new{round_}", None, members[0].topics, {}))
        topics = {topic: count + data.draw(st.integers(0, 2)) for topic, count in topics.items()}


def check(assignment: Assignment, members: list[Candidate], topics: Mapping[bytes, int]) -> None:
    subscribed = {topic for m in members for topic in m.topics}
    owned = [(topic, p) for m in members for topic, partitions in assignment[m.member_id].items() for p in partitions]
    assert sorted(owned) == sorted((topic, p) for topic in subscribed for p in range(topics[topic]))
    for m in members:
        assert assignment[m.member_id].keys() <= m.topics
        assert all(assignment[m.member_id].values())


@search(60)
@given(groups())
def test_uniform_is_even_and_sticky(group: tuple[list[Candidate], dict[bytes, int]]) -> None:
    members, topics = group
    first = uniform_assignor(members, topics)
    load = {m.member_id: sum(map(len, first[m.member_id].values())) for m in members}
    for giver in members:
        for taker in members:
            # Whoever has two more than another has nothing the other could take.
            if load[giver.member_id] > load[taker.member_id] + 1:
                assert not first[giver.member_id].keys() & taker.topics
    assert uniform_assignor(rounds(members, first), topics) == first
    if len(members) > 1 and len({m.topics for m in members}) == 1:
        left = uniform_assignor(rounds(members, first)[1:], topics)
        for m in members[1:]:
            assert all(kept <= left[m.member_id][topic] for topic, kept in first[m.member_id].items())
