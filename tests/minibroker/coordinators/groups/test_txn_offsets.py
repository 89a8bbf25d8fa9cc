"""Offsets inside transactions (KIP-447, KIP-890): pending, fenced, visible at once, or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_client import GroupClient
from memory_cluster import keep_loading, refused_appends
from sampling import thinned

from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import iter_batches
from minibroker_storage.producer_state import ProducerStateManager

NONE = ErrorCode.NONE
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
T0, T1 = ("t", 0), ("t", 1)


@pytest.fixture
def client() -> GroupClient:
    return GroupClient()


@pytest.fixture
def producer(client: GroupClient) -> tuple[int, int]:
    """A producer whose transaction has the group's offsets partition."""
    producer = client.producer()
    assert client.add_offsets(producer) == NONE
    return producer


@pytest.mark.parametrize("commit", [True, False])
def test_pending_until_the_transaction_ends(client: GroupClient, producer: tuple[int, int], commit: bool) -> None:
    client.commit({T0: 3, T1: 4})
    assert client.commit_in_txn(producer, {T0: 9}) == [NONE]
    assert client.fetch(T0, T1) == {T0: 3, T1: 4}
    assert client.fetch(T0, T1, stable=True) == {T0: UNSTABLE, T1: 4}
    assert client.fetch(stable=True) == {T0: UNSTABLE, T1: 4}
    assert client.end(producer, commit=commit) == NONE
    expected = {T0: 9 if commit else 3, T1: 4}
    assert client.fetch(T0, T1, stable=True) == client.fetch(T0, T1) == expected
    assert client.restart().fetch(T0, T1, stable=True) == expected


def test_a_pending_first_offset_is_shown_to_nobody(client: GroupClient, producer: tuple[int, int]) -> None:
    client.commit_in_txn(producer, {T0: 9})
    assert client.fetch(T0) == {T0: -1}
    assert client.fetch() == {}
    assert client.fetch(T0, stable=True) == {T0: UNSTABLE}


@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_in_between(client: GroupClient, producer: tuple[int, int], commit: bool) -> None:
    client.commit({T0: 3})
    client.commit_in_txn(producer, {T0: 9})
    before = client.shard().durable()
    again = client.restart()
    assert again.shard().durable() == before
    assert again.fetch(T0, stable=True) == {T0: UNSTABLE}
    assert again.end(producer, commit=commit) == NONE
    assert again.fetch(T0, stable=True) == {T0: 9 if commit else 3}


@pytest.mark.parametrize("commit", [True, False])
def test_an_offset_is_pending_as_long_as_its_marker_is_refused(
    client: GroupClient, producer: tuple[int, int], commit: bool
) -> None:
    client.commit({T0: 3})
    client.commit_in_txn(producer, {T0: 9})
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        assert client.end(producer, commit=commit) == NONE
        client.timers.advance(1000)
        assert (client.fetch(T0, stable=True), client.fetch(T0)) == ({T0: UNSTABLE}, {T0: 3})
    client.timers.advance(1000)
    assert client.fetch(T0, stable=True) == {T0: 9 if commit else 3}


def test_a_timeout_lets_the_offset_go(client: GroupClient, producer: tuple[int, int]) -> None:
    client.commit({T0: 3})
    client.commit_in_txn(producer, {T0: 9})
    client.advance(80_000)
    assert client.fetch(T0, stable=True) == {T0: 3}


def test_a_plain_commit_made_later_wins(client: GroupClient, producer: tuple[int, int]) -> None:
    client.commit_in_txn(producer, {T0: 9, T1: 9})
    client.commit({T0: 5})
    client.end(producer, commit=True)
    assert client.fetch(T0, T1) == {T0: 5, T1: 9}
    assert client.restart().fetch(T0, T1) == {T0: 5, T1: 9}


def test_a_plain_commit_made_earlier_loses(client: GroupClient, producer: tuple[int, int]) -> None:
    client.commit({T0: 50})
    client.commit_in_txn(producer, {T0: 9})
    client.end(producer, commit=True)
    assert client.fetch(T0) == {T0: 9}


def test_the_last_of_several_commits_counts(client: GroupClient, producer: tuple[int, int]) -> None:
    for offset in (7, 9, 8):
        client.commit_in_txn(producer, {T0: offset})
    client.end(producer, commit=True)
    assert client.fetch(T0) == {T0: 8}


def test_two_transactions_hold_one_partition(client: GroupClient, producer: tuple[int, int]) -> None:
    other = client.producer("y")
    client.add_offsets(other, transactional_id="y")
    client.commit_in_txn(producer, {T0: 1})
    client.commit_in_txn(other, {T0: 2}, transactional_id="y")
    client.end(other, commit=True, transactional_id="y")
    assert client.fetch(T0, stable=True) == {T0: UNSTABLE}
    assert client.fetch(T0) == {T0: 2}
    client.end(producer, commit=True)
    assert client.fetch(T0, stable=True) == {T0: 2}  # written later than the first one's


@pytest.mark.parametrize("how", ["offsets", "group"])
def test_what_is_deleted_does_not_come_back(client: GroupClient, producer: tuple[int, int], how: str) -> None:
    client.commit_in_txn(producer, {T0: 9})
    if how == "offsets":
        topic = m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name="t", partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
        )
        client.call(m.OffsetDeleteRequest(group_id="g", topics=[topic]), m.OffsetDeleteResponse, 0)
    else:
        client.call(m.DeleteGroupsRequest(groups_names=["g"]), m.DeleteGroupsResponse, 2)
    client.end(producer, commit=True)
    assert client.fetch(T0, stable=True) == {T0: -1}
    assert client.restart().fetch(T0, stable=True) == {T0: -1}


# -- fencing by the group (447-4) --------------------------------------------------------------------------------------

Member = tuple[str, int, str | None]


def stable(client: GroupClient) -> Member:
    return client.stable(version=9, instance="i"), 1, "i"


def completing(client: GroupClient) -> Member:
    return client.join(version=9, instance="i").member_id, 1, "i"


def preparing(client: GroupClient) -> Member:
    member = stable(client)
    assert not client.join_later().done
    return member


def empty(client: GroupClient) -> Member:
    member_id = stable(client)[0]
    client.leave((member_id, "i"))
    return member_id, 1, "i"


def missing(_: GroupClient) -> Member:
    return "m", 1, "i"


STATES: dict[str, tuple[Callable[[GroupClient], Member], GroupState | None]] = {
    "missing": (missing, None),
    "Empty": (empty, GroupState.EMPTY),
    "PreparingRebalance": (preparing, GroupState.PREPARING_REBALANCE),
    "CompletingRebalance": (completing, GroupState.COMPLETING_REBALANCE),
    "Stable": (stable, GroupState.STABLE),
}
UNKNOWN, ILLEGAL, FENCED = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID
WITH_MEMBERS = ("PreparingRebalance", "CompletingRebalance", "Stable")


def fencing(of_members: ErrorCode, of_empty: ErrorCode, of_missing: ErrorCode) -> dict[str, ErrorCode]:
    return {"missing": of_missing, "Empty": of_empty, **dict.fromkeys(WITH_MEMBERS, of_members)}


# what the request says -> the answer in each state
FENCING: dict[str, dict[str, ErrorCode]] = {
    "nothing": fencing(NONE, NONE, NONE),
    "member": fencing(NONE, UNKNOWN, ILLEGAL),
    "member and instance": fencing(NONE, UNKNOWN, ILLEGAL),
    "old generation": fencing(ILLEGAL, UNKNOWN, ILLEGAL),
    "next generation": fencing(ILLEGAL, UNKNOWN, ILLEGAL),
    "stranger": fencing(UNKNOWN, UNKNOWN, ILLEGAL),
    "stranger without generation": fencing(UNKNOWN, NONE, NONE),
    "generation without member": fencing(UNKNOWN, UNKNOWN, ILLEGAL),
    "instance of another": fencing(FENCED, UNKNOWN, ILLEGAL),
    "unknown instance": fencing(UNKNOWN, UNKNOWN, ILLEGAL),
}


@pytest.mark.parametrize(("said", "state"), [(said, state) for said, row in FENCING.items() for state in row])
@pytest.mark.parametrize("version", thinned([5, 3, 4], 3))
def test_fencing(client: GroupClient, version: int, said: str, state: str) -> None:
    setup, expected = STATES[state]
    member_id, generation, _ = setup(client)
    assert expected is None or client.classic().state is expected
    told: dict[str, tuple[str, int, str | None]] = {
        "nothing": ("", -1, None),
        "member": (member_id, generation, None),
        "member and instance": (member_id, generation, "i"),
        "old generation": (member_id, generation - 1, None),
        "next generation": (member_id, generation + 1, None),
        "stranger": ("stranger", generation, None),
        "stranger without generation": ("stranger", -1, None),
        "generation without member": ("", generation, None),
        "instance of another": ("stranger", generation, "i"),
        "unknown instance": (member_id, generation, "j"),
    }
    name, number, instance = told[said]
    producer = client.producer()
    if version < 5:
        client.add_offsets(producer)
    codes = client.commit_in_txn(producer, {T0: 1}, name, number, instance=instance, version=version)
    assert codes == [FENCING[said][state]]
    assert client.shard().offsets.has_pending("g") == (codes == [NONE])


def test_versions_before_three_cannot_say_who_they_are(client: GroupClient, producer: tuple[int, int]) -> None:
    client.stable()
    for version in (0, 1, 2):
        assert client.commit_in_txn(producer, {T0: version}, version=version) == [NONE]


def test_a_replaced_static_member_is_fenced(client: GroupClient, producer: tuple[int, int]) -> None:
    old, generation, _ = stable(client)
    new = client.join(version=9, instance="i").member_id
    assert client.commit_in_txn(producer, {T0: 1}, old, generation, instance="i") == [FENCED]
    assert client.commit_in_txn(producer, {T0: 1}, old, generation) == [UNKNOWN]
    assert client.commit_in_txn(producer, {T0: 1}, new, generation, instance="i") == [NONE]


def test_a_refused_member_leaves_the_partition_in_the_transaction(client: GroupClient) -> None:
    client.stable()
    producer = client.producer()
    assert client.commit_in_txn(producer, {T0: 1}, "stranger", 1, version=5) == [UNKNOWN]
    described = client.call(
        m.DescribeTransactionsRequest(transactional_ids=["x"]), m.DescribeTransactionsResponse, 0
    ).transaction_states[0]
    assert described.transaction_state == "Ongoing"
    assert [topic.topic for topic in described.topics] == ["__consumer_offsets"]


def test_the_verification_of_each_commit_ends(client: GroupClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by the group, refused by the transaction's coordinator, or written: a guard that stays would let a late
    batch pass."""
    guards: list[object] = []
    ended: list[object] = []
    start, end = ProducerStateManager.start_verification, ProducerStateManager.end_verification

    def starts(self: ProducerStateManager, *arguments: Any) -> Any:
        guards.append(start(self, *arguments))
        return guards[-1]

    def ends(self: ProducerStateManager, *arguments: Any) -> None:
        ended.append(arguments[-1])
        end(self, *arguments)

    monkeypatch.setattr(ProducerStateManager, "start_verification", starts)
    monkeypatch.setattr(ProducerStateManager, "end_verification", ends)
    client.stable()
    producer = client.producer()
    assert client.commit_in_txn(producer, {T0: 1}) == [ErrorCode.INVALID_TXN_STATE]
    assert client.add_offsets(producer) == NONE
    assert client.commit_in_txn(producer, {T0: 1}, "stranger", 1) == [UNKNOWN]
    assert client.commit_in_txn(producer, {T0: 1}) == [NONE]
    assert (len(guards), ended, None in guards) == (3, guards, False)


# -- the transaction coordinator's word (KIP-890) ----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_without_add_offsets(client: GroupClient, version: int) -> None:
    code = NONE if version == 5 else ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
    assert client.commit_in_txn(client.producer(), {T0: 1}, version=version) == [code]


@pytest.mark.parametrize("version", range(6))
def test_a_fenced_producer(client: GroupClient, producer: tuple[int, int], version: int) -> None:
    assert client.commit_in_txn(producer, {T0: 1}) == [NONE]
    client.end(producer, commit=True)
    newer = client.producer()
    assert newer == (producer[0], producer[1] + 1)
    assert client.commit_in_txn(producer, {T0: 9}, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert client.fetch(T0, stable=True) == {T0: 1}


@pytest.mark.parametrize("version", range(6))
def test_an_unknown_producer(client: GroupClient, version: int) -> None:
    client.producer()
    codes = client.commit_in_txn((4711, 0), {T0: 9}, version=version)
    assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_without_verification_old_versions_are_believed(client: GroupClient) -> None:
    client = GroupClient({"transaction.partition.verification.enable": "false"})
    assert client.commit_in_txn(client.producer(), {T0: 1}) == [NONE]


@pytest.mark.parametrize("version", [0, 1, 2, 5])
def test_a_loading_coordinator(client: GroupClient, version: int) -> None:
    host = client.broker.coordinators.groups.host
    keep_loading(host, client.broker.coordinators.groups.partition_for("g"))
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if version < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert client.commit_in_txn((1, 0), {T0: 1}, version=version) == [code]


def test_what_cannot_be_committed(client: GroupClient, producer: tuple[int, int]) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit_in_txn(producer, {T0: 1, ("t", 99): 1, ("nowhere", 0): 1}) == [unknown, NONE, unknown]
    assert client.commit_in_txn(producer, {T0: 1}, group_id="") == [ErrorCode.INVALID_GROUP_ID]


def test_the_batch_is_the_producers(client: GroupClient, producer: tuple[int, int]) -> None:
    client.commit_in_txn(producer, {T0: 1, T1: 2})
    log = client.broker.partition("__consumer_offsets", client.broker.coordinators.groups.partition_for("g")).log
    records = log.read(0, 1 << 20, bound=log.log_end_offset, min_one_message=True).records
    *_, (_, header) = iter_batches(records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (*producer, 0)
    assert (header.is_transactional, header.record_count) == (True, 2)
    assert log.last_stable_offset < log.high_watermark


def test_the_offsets_of_one_topic(client: GroupClient, producer: tuple[int, int]) -> None:
    client.commit({T0: 3, ("u", 1): 3})
    client.commit_in_txn(producer, {T0: 9, T1: 9, ("u", 0): 9})
    offsets = client.shard().offsets
    assert sorted(offsets.with_topic("t")) == [("g", 0), ("g", 1)]
    assert sorted(offsets.with_topic("u")) == [("g", 0), ("g", 1)]
    assert list(offsets.with_topic("v")) == []
