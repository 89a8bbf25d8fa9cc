"""One partition by itself: what a leader proposes, who waits for what, and what a change of role does to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from one_partition import FOLLOWER, LEADER, OnePartition

from minibroker.kernel.deferred import Deferred
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.config import LogConfig
from minibroker_storage.origin import Origin
from minibroker_storage.truncation import truncate_fully_and_start_at


def code(waiting: Deferred[None]) -> ErrorCode | None:
    try:
        waiting.result()
    except ApiError as error:
        return error.code
    return None


def test_acks_all_waits_for_every_replica_in_sync() -> None:
    story = OnePartition()
    story.write()
    waiting = story.partition.when_high_watermark(10)
    story.fetch(b2=10, b3=9)
    assert (story.partition.high_watermark, waiting.done) == (9, False)
    story.fetch(b3=10)
    assert (story.partition.high_watermark, waiting.done, code(waiting)) == (10, True, None)


def test_those_who_wait_are_answered_in_order_and_no_further() -> None:
    story = OnePartition(isr=(1, 2))
    first, second = story.write() or story.partition.when_high_watermark(10), None
    story.write()
    second = story.partition.when_high_watermark(20)
    story.fetch(b2=10)
    assert (first.done, second.done) == (True, False)
    story.fetch(b2=20)
    assert second.done


def test_the_high_watermark_never_goes_back() -> None:
    story = OnePartition(isr=(1, 2))
    story.write()
    story.fetch(b2=10)
    story.fetch(b2=4)
    assert story.partition.high_watermark == 10


def test_min_insync_replicas_before_the_append() -> None:
    OnePartition(isr=(1, 2)).write(required_acks=-1)
    story = OnePartition(isr=(1,))
    with pytest.raises(ApiError) as caught:
        story.write(required_acks=-1)
    assert (caught.value.code, story.partition.log_end_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    story.write(required_acks=1)


def test_who_is_proposed_does_not_count_before_the_append() -> None:
    story = OnePartition(isr=(1,))
    story.fetch(b2=0)
    assert story.rules.proposed == [{1, 2}]
    with pytest.raises(ApiError, match="1 in-sync replicas"):
        story.write(required_acks=-1)


def test_a_single_replica_needs_no_other_whatever_the_minimum() -> None:
    story = OnePartition(replicas=(1,), isr=(1,))
    story.write(required_acks=-1)
    assert (story.partition.min_insync_replicas, story.partition.high_watermark) == (1, 10)


def test_a_follower_that_caught_up_is_proposed_once_and_taken_when_confirmed() -> None:
    story = OnePartition(isr=(1, 2))
    story.write()
    story.fetch(b2=10, b3=9)
    assert story.rules.proposed == []
    story.fetch(b3=10)
    story.fetch(b3=10)
    assert story.rules.proposed == [{1, 2, 3}]
    story.partition.in_sync_answered((1, 2, 3), partition_epoch=2)
    assert (story.partition.isr, story.partition.partition_epoch) == ((1, 2, 3), 2)
    story.fetch(b3=10)
    assert story.rules.proposed == [{1, 2, 3}]


def test_a_refused_proposal_is_made_again_at_the_next_look() -> None:
    story = OnePartition(isr=(1, 2))
    story.write()
    story.fetch(b2=10, b3=10)
    story.partition.in_sync_answered(None)
    assert story.partition.isr == (1, 2)
    story.partition.review_in_sync()
    assert story.rules.proposed == [{1, 2, 3}, {1, 2, 3}]


def test_an_idle_follower_that_became_ready_during_a_change_is_proposed_after_it() -> None:
    story = OnePartition(isr=(1,), replicas=(1, 2, 3))
    story.fetch(b2=0)
    story.fetch(b3=0)
    assert story.rules.proposed == [{1, 2}]
    story.partition.in_sync_answered((1, 2), partition_epoch=2)
    assert story.rules.proposed == [{1, 2}, {1, 2, 3}]


def test_an_answer_of_an_older_partition_epoch_changes_nothing() -> None:
    story = OnePartition(isr=(1, 2))
    story.write()
    story.fetch(b2=10, b3=10)
    story.decide(isr=(1,))
    story.partition.in_sync_answered((1, 2, 3), partition_epoch=2)
    assert (story.partition.isr, story.partition.partition_epoch) == ((1,), 2)
    assert story.partition.in_sync is not None
    assert story.partition.in_sync.isr == {1}


def test_an_answer_after_the_reign_changes_nothing() -> None:
    story = OnePartition(isr=(1, 2))
    story.decide(leader=FOLLOWER, leader_epoch=6)
    story.partition.in_sync_answered((1, 2, 3), partition_epoch=9)
    assert (story.partition.isr, story.partition.partition_epoch) == ((1, 2), 2)


def test_a_lagging_follower_is_proposed_away_and_the_high_watermark_moves_when_that_is_confirmed() -> None:
    story = OnePartition(config=LogConfig(min_insync_replicas=1))
    story.write()
    story.fetch(b2=10)
    story.rules.tick = 3
    story.fetch(b2=10)
    story.partition.review_in_sync()
    assert story.rules.proposed == [{1, 2}]
    assert story.partition.high_watermark == 0
    story.partition.in_sync_answered((1, 2), partition_epoch=2)
    assert story.partition.high_watermark == 10


def test_a_follower_joins_only_past_the_start_of_the_leaders_epoch() -> None:
    story = OnePartition(isr=(1,), leader=FOLLOWER, config=LogConfig(min_insync_replicas=1))
    story.partition.replicate(build_batch([Record(0, 0, None, b"v")]), high_watermark=0, log_start_offset=0)
    story.decide(leader=LEADER, leader_epoch=6)
    story.rules.absent = {2}
    assert not story.partition.lags_behind_epoch
    story.fetch(b3=0)
    assert story.rules.proposed == []
    story.fetch(b3=1)
    assert story.rules.proposed == [{1, 3}]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"leader": FOLLOWER, "leader_epoch": 6}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"leader": -1, "leader_epoch": 6}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_who_waits_for_a_leader_that_resigns_is_told(change: dict[str, int], expected: ErrorCode) -> None:
    story = OnePartition()
    story.write()
    waiting, woken = story.partition.when_high_watermark(10), []
    story.partition.watch(lambda: woken.append(1))
    assert story.decide(**change)
    assert (waiting.done, code(waiting), len(woken)) == (True, expected, 1)
    assert story.partition.in_sync is None
    with pytest.raises(ApiError) as caught:
        story.write()
    assert caught.value.code == expected


def test_a_new_epoch_of_the_same_leader_keeps_who_waits_and_asks_followers_anew() -> None:
    story = OnePartition()
    story.write()
    story.fetch(b2=10, b3=5)
    waiting = story.partition.when_high_watermark(10)
    assert story.decide(leader_epoch=6)
    assert not waiting.done
    assert story.partition.in_sync is not None
    assert [follower.end_offset for follower in story.partition.in_sync.followers.values()] == [-1, -1]
    story.fetch(b2=10, b3=10)
    assert waiting.done


def test_what_is_known_already_is_not_followed() -> None:
    story = OnePartition()
    assert not story.partition.follow(replace(story.image, leader=FOLLOWER, leader_epoch=6))
    assert story.partition.is_leader


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, None), (5, None), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_clients_leader_epoch(epoch: int, expected: ErrorCode | None) -> None:
    caught = None
    try:
        OnePartition().partition.check_leader_epoch(epoch)
    except ApiError as error:
        caught = error.code
    assert caught == expected


@pytest.mark.parametrize(
    ("follower", "leader", "expected"),
    [(2, FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER), (9, LEADER, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_fetch_of_a_follower_that_does_not_belong_here(follower: int, leader: int, expected: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        OnePartition(leader=leader).partition.follower_fetched(follower, 0, 1)
    assert caught.value.code == expected


def test_a_watcher_of_a_followers_earlier_session_does_not_take_the_new_ones_place() -> None:
    story, told = OnePartition(), []

    def old(at_once: bool) -> None:
        told.append("old")

    def new(at_once: bool) -> None:
        told.append("new at once" if at_once else "new")

    story.partition.watch_replica(2, old)
    story.partition.watch_replica(2, new)
    story.partition.unwatch_replica(2, old)
    story.write()
    assert told == ["new at once"]
    story.fetch(b2=10, b3=10)
    assert told == ["new at once", "new"]
    story.partition.unwatch_replica(2, new)
    story.write()
    assert told == ["new at once", "new"]


def test_the_low_watermark_follows_what_followers_say_of_their_logs() -> None:
    story, woken = OnePartition(), []
    story.write()
    story.fetch(b2=10, b3=10)
    story.partition.log.advance_log_start(6)
    story.partition.watch(lambda: woken.append(1))
    story.partition.follower_fetched(2, 10, 1, log_start_offset=6)
    story.partition.follower_fetched(3, 10, 1, log_start_offset=4)
    assert (story.partition.low_watermark, len(woken)) == (4, 2)
    story.partition.follower_fetched(3, 10, 1, log_start_offset=4)
    assert len(woken) == 2
    story.rules.absent = {3}
    assert story.partition.low_watermark == 6


def test_a_partition_that_was_never_written_has_no_files() -> None:
    story = OnePartition()
    assert (story.partition.high_watermark, story.partition.log_end_offset, story.partition.latest_epoch) == (0, 0, -1)
    story.partition.replicate(b"", high_watermark=0, log_start_offset=0)
    assert not story.partition.has_log
    assert story.disk.list() == []


def test_deletion_ends_every_wait() -> None:
    story, woken = OnePartition(), []
    story.write()
    waiting = story.partition.when_high_watermark(10)
    story.partition.watch(lambda: woken.append(1))
    story.partition.dropped()
    assert (code(waiting), len(woken)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1)
    assert not story.partition.has_log


def test_a_refused_sync_fails_the_waits_for_what_it_would_have_covered() -> None:
    """Batches end at 10, which is synced, and at 20."""
    disk = FaultyDisk()
    story = OnePartition(LogConfig(min_insync_replicas=2, flush_messages=1), disk=disk)
    waits = []
    for end in (10, 20):
        story.held.run_all()
        story.write()
        waits.append(story.partition.when_high_watermark(end))
    disk.fail_at = disk.calls + 1
    story.held.run_all()
    assert (waits[0].done, code(waits[1])) == (False, ErrorCode.KAFKA_STORAGE_ERROR)
    story.fetch(b2=20, b3=20)
    assert (waits[0].done, code(waits[0]), story.partition.high_watermark) == (True, None, 10)


def test_a_lost_tail_fails_the_waits_for_it_and_keeps_the_others() -> None:
    """Batches end at 10, 20 and 30; the log is cut to 20."""
    story = OnePartition()
    waits = []
    for end in (10, 20, 30):
        story.write()
        waits.append(story.partition.when_high_watermark(end))
    story.partition.lose_tail(20)
    assert [(wait.done, code(wait) if wait.done else None) for wait in waits] == [
        (False, None),
        (False, None),
        (True, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    story.fetch(b2=10, b3=10)
    assert [wait.done for wait in waits] == [True, False, True]
    story.fetch(b2=20, b3=20)
    assert (waits[1].done, code(waits[1])) == (True, None)


def test_a_killed_brokers_partition_opens_no_file_again() -> None:
    story, woken = OnePartition(), []
    story.write()
    waiting = story.partition.when_high_watermark(10)
    story.partition.watch(lambda: woken.append(1))
    story.partition.abandon()
    assert (code(waiting), woken) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    with pytest.raises(ApiError, match="broker 1 is gone"):
        _ = story.partition.log


def test_a_single_replicas_waits_and_watchers_hear_of_each_append() -> None:
    story, woken = OnePartition(replicas=(1,), isr=(1,)), []
    watcher = partial(woken.append, 1)
    story.partition.watch(watcher)
    story.write()
    assert (story.partition.when_high_watermark(10).done, len(woken)) == (True, 1)
    story.partition.unwatch(watcher)
    story.write()
    assert len(woken) == 1


def test_a_log_that_is_opened_by_its_only_leader_is_committed_to_its_end() -> None:
    story = OnePartition(replicas=(1,), isr=(1,))
    story.write()
    held = story.partition.close()
    assert held is not None
    held.close()
    again = OnePartition(replicas=(1,), isr=(1,), leader_epoch=7)
    again.disk = story.disk
    assert again.partition.log.high_watermark == 10
    assert again.partition.log.leader_epochs.entries[-1] == (7, 10)


def test_a_new_epoch_is_written_when_it_begins() -> None:
    story = OnePartition()
    story.write()
    story.decide(leader_epoch=6)
    assert story.partition.log.leader_epochs.entries == [(5, 0), (6, 10)]
    assert story.partition.latest_epoch == 6  # as in Kafka's LeaderEpochFileCache, before any record of it


def test_an_append_of_an_earlier_reign_is_refused() -> None:
    story = OnePartition()
    batch = build_batch([Record(0, 0, None, b"v")])
    story.partition.append(bytearray(batch), origin=Origin.COORDINATOR, leader_epoch=5)
    for epoch in (4, 6):
        with pytest.raises(ApiError) as caught:
            story.partition.append(bytearray(batch), origin=Origin.COORDINATOR, leader_epoch=epoch)
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert story.partition.log_end_offset == 1


def test_a_reassignment_under_the_same_leader() -> None:
    story = OnePartition(isr=(1, 2), config=LogConfig(min_insync_replicas=1))
    story.write()
    story.fetch(b2=10, b3=10)
    assert story.rules.proposed == [{1, 2, 3}]
    assert not story.decide(replicas=(1, 2, 4), isr=(1, 2))  # the same leader and epoch
    in_sync = story.partition.in_sync
    assert in_sync is not None
    assert (set(in_sync.followers), in_sync.proposed) == ({2, 4}, None)
    story.fetch(b4=10)
    assert story.rules.proposed[-1] == {1, 2, 4}
    story.write()
    assert not story.decide(replicas=(1,), isr=(1,))
    assert (story.partition.in_sync, story.partition.high_watermark) == (None, 20)
    assert not story.decide(replicas=(1, 2), isr=(1,))
    assert story.partition.in_sync is not None


def test_who_may_join_is_asked_with_the_epoch_of_the_last_fetch() -> None:
    story, asked = OnePartition(isr=(1, 2)), []
    story.rules.eligible = lambda node_id, epoch: asked.append((node_id, epoch)) or True  # type: ignore[method-assign]
    story.partition.follower_fetched(3, 0, 71)
    assert (3, 71) in asked


def test_a_follower_takes_what_the_leader_says_of_its_log() -> None:
    story = OnePartition(leader=FOLLOWER)
    records = [Record(offset, 0, None, b"v") for offset in range(10)]
    story.partition.replicate(build_batch(records, base_offset=0), high_watermark=7, log_start_offset=3)
    log = story.partition.log
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (10, 7, 3)
    story.partition.replicate(b"", high_watermark=5, log_start_offset=3)
    assert log.high_watermark == 7  # a new leader's may lag behind its predecessor's
    story.partition.replicate(b"", high_watermark=5, log_start_offset=12)
    assert (log.high_watermark, log.log_start_offset) == (10, 10)  # not past what is here


def test_an_empty_followers_log_begins_where_the_leaders_batch_does() -> None:
    """DeleteRecords left the leader's log start at 4, inside a batch that it sends whole."""
    story = OnePartition(leader=FOLLOWER)
    truncate_fully_and_start_at(story.partition.log, 4, now_ms=0)
    batch = build_batch([Record(offset, 0, None, b"v") for offset in range(10)], base_offset=0)
    story.partition.replicate(batch, high_watermark=10, log_start_offset=4)
    assert (story.partition.log.log_start_offset, story.partition.log_end_offset) == (4, 10)


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("written_before", [True, False])
def test_late_work_on_a_deleted_partition_opens_nothing(written_before: bool, opened: bool) -> None:
    before = OnePartition(replicas=(1,), isr=(1,))
    if written_before:
        before.write()
        before.partition.close()
    story = OnePartition(disk=before.disk, replicas=(1,), isr=(1,), written=written_before)
    if opened:
        story.write()
    story.partition.dropped()
    there = story.opened
    assert not story.partition.is_leader
    assert (story.partition.has_log, story.partition.known_log) == (False, None)
    assert (story.partition.log_end_offset, story.partition.log_start_offset) == (0, 0)
    assert (story.partition.high_watermark, story.partition.latest_epoch, story.opened) == (0, -1, there)
