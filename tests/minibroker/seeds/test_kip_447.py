"""KIP-447 and the blog post row by row, in bytes, under both semantics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from seed_client import ID, OK, TOPIC, SeedClient

from minibroker.faults.operations import hold_markers, release_markers
from minibroker.releases.chain import RELEASES
from minibroker.releases.release import ABSENT
from minibroker.releases.semantics import KIP
from minibroker.requests.context import CloseConnection
from minibroker_protocol.errors import ErrorCode

Start = Callable[..., SeedClient]
both = pytest.mark.parametrize("semantics", ["kafka", "kip"])
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
TP = (TOPIC, 0)


@both
@pytest.mark.seed("447-2", "447-3", semantics="kafka kip")
def test_offsets_are_pending_until_the_end(start: Start, semantics: str) -> None:
    client = start(semantics)
    for offset, commit, seen in ((5, True, 5), (9, False, 5)):
        producer = client.new()
        assert client.add_offsets(producer) == OK
        client.add(producer)
        assert client.produce(producer, 0).code == OK
        assert client.commit_offset(producer, offset) == OK
        assert client.committed_offset() is UNSTABLE
        log = client.cluster.broker.partition(*TP).log
        assert log.last_stable_offset < log.high_watermark
        assert client.end(producer, commit=commit) == OK
        assert client.committed_offset() == seen
        assert log.last_stable_offset == log.high_watermark
    producer = client.new()
    client.add_offsets(producer)
    client.commit_offset(producer, 11)
    client.time_out()
    assert client.committed_offset() == 5


@both
@pytest.mark.seed("447-4", semantics="kafka kip")
def test_the_group_fences_offsets(start: Start, semantics: str) -> None:
    client = start(semantics)
    group = client.cluster
    member = group.stable(instance="i", version=5)
    producer = client.new()
    client.add_offsets(producer)

    def commit(member_id: str, generation: int, instance: str | None, version: int = 3) -> ErrorCode:
        offsets = {TP: 3}
        (code,) = group.commit_in_txn(
            producer, offsets, member_id, generation, instance=instance, transactional_id=ID, version=version
        )
        return code

    assert commit("nobody", 1, None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(member, 7, None) is ErrorCode.ILLEGAL_GENERATION
    assert commit("replaced", 1, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert commit(member, 1, "i") == OK
    assert commit("", -1, None) == OK


@both
@pytest.mark.seed("447-5", semantics="kafka kip")
def test_the_failover_of_the_text(start: Start, semantics: str) -> None:
    """P2 committed 5, dies holding 10; the survivor waits, and reads 5 once the transaction has timed out."""
    client = start(semantics)
    second = client.new()
    client.add_offsets(second)
    client.commit_offset(second, 5)
    assert client.end(second, commit=True) == OK
    client.add(second)
    client.add_offsets(second)
    client.produce(second, 0)
    client.commit_offset(second, 10)
    survivor = client.new(name="T1")  # the group gave it the partition
    assert client.committed_offset() is UNSTABLE
    client.time_out()
    assert client.committed_offset() == 5
    assert client.end(second, commit=True) != OK  # a zombie now
    assert client.committed_offset() == 5
    assert survivor[0] != second[0]


@both
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.seed("447-8", semantics="kafka kip")
def test_a_consumer_with_assigned_partitions_sends_offsets_with_its_group_alone(
    start: Start, semantics: str, version: int
) -> None:
    """No member, no generation: the loop of the text before KIP-447, beside a group with members too."""
    client = start(semantics)
    for offset, members in ((3, False), (4, True)):
        if members:
            client.cluster.stable()
        producer = client.new()
        assert client.add_offsets(producer) == OK
        assert client.commit_offset(producer, offset, version=version) == OK
        assert client.committed_offset() is UNSTABLE
        assert client.end(producer, commit=True) == OK
        assert client.committed_offset() == offset


@both
@pytest.mark.seed("447-9", semantics="kafka kip")
def test_a_consumer_waits_until_the_commit_is_through(start: Start, semantics: str) -> None:
    """The producer began to commit and died: the survivor waits for the regular commit, and reads 10, not 5."""
    client = start(semantics)
    second = client.new()
    client.add_offsets(second)
    client.commit_offset(second, 5)
    assert client.end(second, commit=True) == OK
    client.add(second)
    client.add_offsets(second)
    client.produce(second, 0)
    client.commit_offset(second, 10)
    hold_markers(client.cluster.cluster, transactional_id=ID)
    assert client.end(second, commit=True) == OK
    assert client.described().state == "PrepareCommit"
    assert client.committed_offset() is UNSTABLE
    assert release_markers(client.cluster.cluster) == [ID]
    assert client.described().state == "CompleteCommit"
    assert client.committed_offset() == 10


@pytest.mark.seed("447-10", "oos-1", semantics="kafka kip")
def test_what_a_broker_before_2_5_forgot(start: Start) -> None:
    """State goes with the last record of its producer, and the next request is told UNKNOWN_PRODUCER_ID: for good where
    there is no bump, until the bump with KIP-360."""
    before = RELEASES["2.3"]
    forgetful = replace(KIP, producer=KIP.producer._replace(forget_with_records=True))
    defaults = {name: value for name, value in before.settings.items() if value is not ABSENT}
    for semantics, settings, level in ((before.semantics, defaults, 0), (forgetful, {}, 1)):
        client = start(semantics, settings, transaction_version=level)
        code, held = client.init(version=1)
        assert code == OK
        for sequence in range(2):
            client.add(held, version=1)
            assert client.produce(held, sequence, version=7).code == OK
            assert client.end(held, commit=True, version=1) == OK
        log = client.cluster.broker.partition(*TP).log
        log.delete_records(-1)
        client.add(held, version=1)
        lost = client.produce(held, 2, version=7)
        assert (lost.code, lost.log_start_offset) == (ErrorCode.UNKNOWN_PRODUCER_ID, log.log_start_offset)
        assert client.end(held, commit=False, version=1) == OK
        if semantics is forgetful:
            bumped = client.claim(held)
            client.add(bumped, version=1)
            assert client.produce(bumped, 0, version=7).code == OK
        else:
            with pytest.raises(CloseConnection, match="is not served"):
                client.init(held, version=3)


@both
@pytest.mark.seed("447-6", semantics="kafka kip")
def test_producers_are_rebuilt_on_start(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new(name=None)
    for sequence in range(3):
        client.produce(held, sequence, transactional=False)
    client.restart()
    assert client.produce(held, 2, transactional=False).base_offset == 2
    older = client.produce(held, 0, transactional=False)
    if semantics == "kip":  # the whole window is kept
        assert (older.code, older.base_offset) == (OK, 0)
    else:
        assert older.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce(held, 3, transactional=False).base_offset == 3


@both
@pytest.mark.seed("447-1", "447-7", semantics="kafka kip")
def test_a_rebalance_between_read_and_commit(start: Start, semantics: str) -> None:
    """The loop with group metadata: what the former owner of a partition commits after the rebalance is refused."""
    client = start(semantics)
    group = client.cluster
    first = group.stable()
    producer = client.new()
    client.add(producer)
    client.produce(producer, 0)
    joining = group.join_later()
    group.join_later(first)
    group.advance(10)
    assert joining.done
    generation = joining.result().generation_id
    assert generation == 2
    client.add_offsets(producer)
    (code,) = group.commit_in_txn(producer, {TP: 1}, first, 1, transactional_id=ID)
    assert code is ErrorCode.ILLEGAL_GENERATION
    assert client.end(producer, commit=False) == OK
    assert client.committed_offset() == -1
