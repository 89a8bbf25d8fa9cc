"""A coordinator over one partition: what is loaded, what is written when, and what an end of leadership stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from manual_time import ManualTimers
from one_partition import FOLLOWER, OnePartition

from minibroker.coordinator_runtime.coordinator_host import LOAD_CHUNK_BYTES, CoordinatorHost, append_error
from minibroker.coordinators.result import CoordinatorResult, Effect, Pending
from minibroker.kernel.deferred import Deferred
from minibroker.partitions.refused_appends import RefusedAppends
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Record, build_batch, end_txn_marker
from minibroker_storage.config import LogConfig
from minibroker_storage.origin import Origin

TIMEOUT_MS = 700


@dataclass
class Word:
    """A record: its key, and nothing else."""

    text: str

    def key_bytes(self) -> bytes:
        return self.text.encode()

    def value_bytes(self) -> bytes:
        return b"v"


@dataclass(frozen=True)
class Named(Pending, Effect):
    name: str


@dataclass
class WrittenDown:
    """A shard that writes down what it is told."""

    leader_epoch: int = 0
    replayed: list[tuple[str, int]] = field(default_factory=list)
    markers: list[tuple[int, int, bool]] = field(default_factory=list)
    is_loaded: bool = False
    has_resigned: int = 0
    said: list[str] = field(default_factory=list)

    def decode(self, key: bytes, value: bytes | None) -> Any:
        return None if key == b"of the future" else Word(key.decode())

    def replay(self, record: Any, *, offset: int, **batch: Any) -> None:
        self.replayed.append((record.text, offset))

    def replay_marker(self, *, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.markers.append((producer_id, producer_epoch, committed))

    def note(self, pending: Any) -> None:
        self.said.append(f"before {pending.name}")

    def refused(self, pending: Any, code: ErrorCode) -> None:
        self.said.append(f"refused {pending.name}: {code.name}")

    def loaded(self) -> tuple[Effect, ...]:
        self.is_loaded = True
        return (Named("on load"),)

    def resigned(self) -> None:
        self.has_resigned += 1


class Story:
    """Partition 0 of three replicas, two of which must be in sync; one shard in each leader epoch."""

    def __init__(
        self,
        *,
        replay_on_append: bool = False,
        config: LogConfig | None = None,
        load_chunk_bytes: int = LOAD_CHUNK_BYTES,
        **image: Any,
    ) -> None:
        self.one = OnePartition(config, **image)
        self.loads = ManualTimers()
        self.shards: list[WrittenDown] = []
        self.host: CoordinatorHost[WrittenDown] = CoordinatorHost(
            "t",
            lambda: 1,
            self.shard,
            self.one.timers,
            self.loads,
            lambda shard, effect: shard.said.append(f"perform {effect.name}"),  # type: ignore[attr-defined]
            replay_on_append=replay_on_append,
            base_sequence=0,
            write_timeout_ms=lambda _: TIMEOUT_MS,
            say_refused=RefusedAppends(self.loads, "/memory").say,
            load_chunk_bytes=load_chunk_bytes,
        )

    def shard(self, index: int, leader_epoch: int) -> WrittenDown:
        self.shards.append(WrittenDown(leader_epoch))
        return self.shards[-1]

    def elect(self, epoch: int = 5) -> None:
        self.host.elected(self.one.partition, epoch)
        if self.loads.armed:
            self.host.effects.perform_due()
            self.shards[-1].said.clear()

    def execute(self, *words: str, **more: Any) -> Deferred[str]:
        result: CoordinatorResult[str] = CoordinatorResult(
            "done", tuple(Word(word) for word in words),  # type: ignore[misc]
            pending=(Named("it"),), effects=(Named("it"), Named("more")), **more,
        )  # fmt: skip
        return self.host.execute(0, result)

    @property
    def said(self) -> list[str]:
        return self.shards[0].said

    def replicate(self, offset: int) -> None:
        self.one.fetch(b2=offset, b3=offset)


def refused(answer: Deferred[str]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        answer.result()
    return caught.value.code


# -- writing -----------------------------------------------------------------------------------------------------------


def test_the_answer_leaves_once_every_replica_in_sync_has_the_record() -> None:
    story = Story()
    story.elect()
    answer = story.execute("a", "b")
    assert (answer.done, story.said, story.shards[0].replayed) == (False, ["before it"], [])
    story.replicate(1)
    assert not answer.done
    story.replicate(2)
    assert answer.result() == "done"
    assert (story.said, story.shards[0].replayed) == (["before it"], [("a", 0), ("b", 1)])
    story.loads.advance(0)
    assert story.said == ["before it", "perform it", "perform more"]


def test_the_group_coordinator_replays_at_once_and_holds_the_answer() -> None:
    story = Story(replay_on_append=True)
    story.elect()
    answer = story.execute("a")
    assert (answer.done, story.shards[0].replayed) == (False, [("a", 0)])
    story.replicate(1)
    assert answer.result() == "done"
    assert story.shards[0].replayed == [("a", 0)]


def test_nothing_to_write_is_answered_without_a_shard() -> None:
    story = Story()
    assert story.execute().result() == "done"
    story.elect()
    assert story.execute().result() == "done"
    story.loads.advance(0)
    assert story.said == ["perform it", "perform more"]


def test_what_a_load_leaves_to_do_is_done_in_a_later_turn() -> None:
    story = Story()
    story.host.elected(story.one.partition, 5)
    assert story.said == []
    story.loads.advance(0)
    assert story.said == ["perform on load"]


def test_what_is_due_when_leadership_ends_is_not_done() -> None:
    story = Story()
    story.elect()
    story.execute()
    story.host.effects.hold()
    story.execute()
    story.elect(6)
    assert story.host.effects.held == [Named("on load")], "of the shard that is there now"
    story.loads.advance(0)
    assert story.said == []


@pytest.mark.parametrize(("replay_on_append", "written"), [(False, 0), (True, 1)])
def test_the_transaction_coordinator_writes_nothing_below_min_insync_replicas(
    replay_on_append: bool, written: int
) -> None:
    story = Story(replay_on_append=replay_on_append, isr=(1,))
    story.elect()
    answer = story.execute("a")
    assert story.one.partition.log_end_offset == written
    if not written:
        assert refused(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert story.said == ["before it", "refused it: COORDINATOR_NOT_AVAILABLE"]


def test_a_function_of_the_error_makes_the_answer_of_a_refused_append() -> None:
    story = Story(isr=(1,))
    story.elect()
    assert story.execute("a", refused=lambda code: code.name).result() == "COORDINATOR_NOT_AVAILABLE"


def test_an_append_that_is_not_replicated_in_time_is_given_up_once() -> None:
    """As in Kafka its record stays in the log, and a transaction's state is what it was before."""
    story = Story()
    story.elect()
    answer = story.execute("a")
    story.loads.advance(TIMEOUT_MS - 1)
    assert not answer.done
    story.loads.advance(1)
    assert refused(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    story.replicate(1)
    assert story.said == ["before it", "refused it: COORDINATOR_NOT_AVAILABLE"]
    assert story.shards[0].replayed == []
    assert story.execute("b").done is False
    story.replicate(2)
    assert story.shards[0].replayed == [("b", 1)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_a_client_is_told_of_a_refused_append(code: ErrorCode, expected: ErrorCode) -> None:
    """Kafka's TransactionStateManager.appendTransactionToLog."""
    assert append_error(code) == expected


def test_a_refusal_that_repeats_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(isr=(1,))
    story.elect()
    for _ in range(1000):
        refused(story.execute("a"))
    story.loads.advance(1000)
    first, more = caplog.messages
    assert first.startswith("append to t-0 refused: NOT_ENOUGH_REPLICAS")
    assert more == "999 more appends were refused with NOT_ENOUGH_REPLICAS within 1 s"


@pytest.mark.parametrize("replay_on_append", [False, True])
def test_an_append_that_fails_after_it_was_written_is_logged(
    replay_on_append: bool, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story(replay_on_append=replay_on_append)
    story.elect()
    answer = story.execute("a")
    story.one.partition.dropped()
    assert refused(answer)
    (line,) = caplog.messages
    assert line.startswith("append to t-0 refused: ")


# -- leadership --------------------------------------------------------------------------------------------------------


def test_a_record_on_its_way_when_leadership_ends_is_not_replayed(caplog: pytest.LogCaptureFixture) -> None:
    story = Story()
    story.elect()
    answer = story.execute("a")
    story.host.resigned(0)
    story.replicate(1)
    assert (refused(answer), caplog.messages) == (ErrorCode.NOT_COORDINATOR, [])
    assert story.said == ["before it", "refused it: NOT_COORDINATOR"]
    assert (story.shards[0].replayed, story.shards[0].has_resigned) == ([], 1)


@pytest.mark.parametrize(
    ("replay_on_append", "code"), [(False, ErrorCode.COORDINATOR_NOT_AVAILABLE), (True, ErrorCode.NOT_COORDINATOR)]
)
def test_a_record_whose_topic_is_deleted_after_the_end_of_leadership(replay_on_append: bool, code: ErrorCode) -> None:
    """The group coordinator ends its waits when it resigns, the transaction coordinator when the log does."""
    story = Story(replay_on_append=replay_on_append)
    story.elect()
    answer = story.execute("a")
    story.host.resigned(0)
    story.one.partition.dropped()
    assert refused(answer) == code


def test_a_record_of_the_reign_before_changes_nothing_in_this_one() -> None:
    """Elected twice without a resignation between: the first shard ends, the second is read from the log."""
    story = Story()
    story.elect()
    answer = story.execute("a")
    story.one.decide(leader_epoch=6)
    story.elect(6)
    story.replicate(1)
    assert refused(answer) == ErrorCode.NOT_COORDINATOR
    first, second = story.shards
    assert (first.has_resigned, first.replayed, second.has_resigned, second.replayed) == (1, [], 0, [("a", 0)])
    assert (second.leader_epoch, story.host.shard(0) is second) == (6, True)


def test_an_append_of_an_earlier_reign_is_refused() -> None:
    story = Story()
    story.elect()
    story.one.decide(leader_epoch=6)
    assert refused(story.execute("a")) == ErrorCode.NOT_COORDINATOR
    assert story.one.partition.log_end_offset == 0


def test_without_leadership() -> None:
    story = Story()
    for code in (lambda: story.host.shard(0), lambda: story.host.shard_for("x")):
        with pytest.raises(ApiError) as caught:
            code()
        assert caught.value.code == ErrorCode.NOT_COORDINATOR
    assert refused(story.execute("a")) == ErrorCode.NOT_COORDINATOR


def test_closing_resigns_everywhere() -> None:
    story = Story()
    story.elect()
    story.host.close()
    assert (story.shards[0].has_resigned, story.host.shards()) == (1, [])


# -- loading -----------------------------------------------------------------------------------------------------------


def filled(batches: int = 3) -> Story:
    """Each of the batches in the log takes a turn of its own to load."""
    story = Story(load_chunk_bytes=1, replicas=(1,), isr=(1,))
    for number in range(batches):
        story.one.partition.append(
            bytearray(build_batch([Record(0, 0, f"{number}".encode(), b"v")])), origin=Origin.COORDINATOR
        )
    return story


def test_a_load_takes_turns_and_answers_14_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    story = filled()
    story.elect()
    with pytest.raises(ApiError) as caught:
        story.host.shard(0)
    assert caught.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refused(story.execute("a")) == ErrorCode.NOT_COORDINATOR
    assert (story.host.loading, story.host.shards(), story.shards[0].replayed) == (True, [], [("0", 0)])
    story.loads.advance(0)
    assert story.shards[0].replayed == [("0", 0), ("1", 1), ("2", 2)]
    assert (story.host.loading, story.host.shard(0) is story.shards[0], story.shards[0].is_loaded) == (
        False, True, True,
    )  # fmt: skip


def test_a_load_ends_with_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    story = filled()
    story.elect()
    story.host.resigned(0)
    story.loads.advance(0)
    assert (story.shards[0].replayed, story.shards[0].is_loaded) == ([("0", 0)], False)


def test_a_new_reign_loads_anew_and_the_old_load_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    story = filled()
    story.elect()
    story.elect(6)
    story.loads.advance(0)
    assert [shard.replayed for shard in story.shards] == [[("0", 0)], [("0", 0), ("1", 1), ("2", 2)]]
    assert [shard.is_loaded for shard in story.shards] == [False, True]


def test_a_log_start_within_a_batch_hides_the_batches_before_it_only() -> None:
    """The batch that holds the log start is read whole, as Kafka's loader does: later records win over earlier ones."""
    story = Story(replicas=(1,), isr=(1,))
    for words in ("ab", "cd"):
        records = [Record(i, 0, word.encode(), b"v") for i, word in enumerate(words)]
        story.one.partition.append(bytearray(build_batch(records)), origin=Origin.COORDINATOR)
    story.one.partition.log.advance_log_start(3)
    story.elect()
    assert story.shards[0].replayed == [("c", 2), ("d", 3)]


def test_markers_and_records_of_the_future() -> None:
    story = Story(replicas=(1,), isr=(1,))
    append = story.one.partition.append
    for key in (b"a", b"of the future", None, b"b"):
        append(bytearray(build_batch([Record(0, 0, key, b"v")])), origin=Origin.COORDINATOR)
    for commit in (True, False):
        marker = end_txn_marker(producer_id=9, producer_epoch=2, commit=commit, coordinator_epoch=0, timestamp_ms=0)
        append(bytearray(marker), origin=Origin.COORDINATOR, transaction_version=1)
    story.elect()
    assert story.shards[0].replayed == [("a", 0), ("b", 3)]
    assert story.shards[0].markers == [(9, 2, True), (9, 2, False)]


def test_a_partition_that_cannot_be_read_stays_in_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    story = filled()

    def broken(key: bytes, value: bytes | None) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(WrittenDown, "decode", staticmethod(broken))
    story.elect()
    assert story.host.loading
    assert not story.shards[0].is_loaded


def test_a_partition_that_was_never_written_is_ready_at_once() -> None:
    story = Story(leader=FOLLOWER)
    story.one.decide(leader=1, leader_epoch=6)
    story.elect(6)
    assert story.host.shard(0).is_loaded
    assert story.one.disk.list() == []
