"""When a broker syncs its logs, and who waits for it."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import pytest
from held_executor import HeldExecutor
from logs import append, batch, open_log
from manual_time import ManualTimers
from memory_cluster import MemoryCluster

from minibroker.faults import operations
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Executor
from minibroker.partitions.log_flush import LogFlush
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.offsets import ListOffsetsRequest
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import DiskFull, NotFound, StorageError
from minibroker_storage.log import PartitionLog

STRICT = {"minibroker.acknowledge.after.sync": "true"}
SMALL_SEGMENTS = {"log.segment.bytes": "1048576"}
LOG = "t-0/00000000000000000000.log"


class Story:
    """One broker on a disk that can fail, whose slow disk work waits until it is told to run."""

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        disk: FaultyDisk | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.held = HeldExecutor()
        self.disk = disk or FaultyDisk()
        self.cluster = MemoryCluster(config, topics={"t": 1}, disk=self.disk, executor=executor or self.held)
        self.sequence = 0

    @property
    def log(self) -> PartitionLog:
        return self.cluster.broker.partition("t", 0).log

    def produce(self, acks: int = -1, *, size: int = 10, pid: int = 5, sequence: int | None = None) -> Deferred[int]:
        """The error code that the producer will be told."""
        if sequence is None:
            sequence, self.sequence = self.sequence, self.sequence + 1
        now_ms = self.cluster.clock.now_ms()
        records = [Record(0, now_ms, None, b"%06d" % sequence + bytes(size))]
        batch = build_batch(records, producer_id=pid, producer_epoch=0, base_sequence=sequence)
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=[topic])
        code: Deferred[int] = Deferred()

        def answered(done: Deferred[ProduceResponse]) -> None:
            code.resolve(done.result().responses[0].partition_responses[0].error_code)

        self.cluster.send(request, 9).then(answered)
        return code

    def syncs(self, path: str = LOG) -> int:
        return sum(1 for line in self.disk.history if line.endswith(f" sync {path}"))


def done(answers: list[Deferred[int]]) -> list[bool]:
    return [answer.done for answer in answers]


def test_by_default_an_append_costs_no_sync_and_waits_for_none() -> None:
    story = Story()
    answers = [story.produce(acks) for acks in (1, -1)]
    assert [answer.result() for answer in answers] == [0, 0]
    assert story.held.waiting == 0
    assert story.syncs() == 0


def test_a_sealed_segment_is_synced_in_the_background() -> None:
    story = Story(SMALL_SEGMENTS)
    for _ in range(3):
        assert story.produce(size=400_000).result() == 0
    assert len(story.log.segments) == 2
    assert story.held.waiting == 1
    assert story.log.recovery_point == 0
    story.held.run_all()
    assert story.log.recovery_point == 2
    assert story.syncs() == 1


def test_recovery_points_are_noted_on_the_clock() -> None:
    story = Story(SMALL_SEGMENTS)
    for _ in range(3):
        story.produce(size=400_000)
    story.held.run_all()
    story.cluster.timers.advance(60_000)
    story.held.run_all()
    assert b"\nt 0 2\n" in story.disk.read_bytes("recovery-point-offset-checkpoint")


@pytest.mark.parametrize("config", [STRICT, {"log.flush.interval.messages": "1"}])
@pytest.mark.parametrize("acks", [1, -1])
def test_an_answer_waits_for_the_sync_and_so_do_readers(acks: int, config: Mapping[str, str]) -> None:
    story = Story(config)
    answer = story.produce(acks)
    assert not answer.done
    assert story.log.log_end_offset == 1
    assert story.log.high_watermark == 0
    story.held.run_all()
    assert answer.result() == 0
    assert story.log.high_watermark == 1
    assert story.syncs() == 1


@pytest.mark.parametrize(("replica_id", "end"), [(-1, 0), (0, 1), (1, 1)])
def test_a_follower_is_told_the_end_of_the_log_and_a_client_the_high_watermark(replica_id: int, end: int) -> None:
    story = Story(STRICT)
    story.produce()
    kind = ListOffsetsRequest
    topic = kind.ListOffsetsTopic(name="t", partitions=[kind.ListOffsetsPartition(partition_index=0, timestamp=-1)])
    answer = story.cluster.send(kind(replica_id=replica_id, topics=[topic]), 7).result()
    assert answer.topics[0].partitions[0].offset == end
    story.held.run_all()


def test_a_sync_is_done_once() -> None:
    story = Story(STRICT)
    for _ in range(3):
        story.produce()
        story.held.run_all()
    assert (story.syncs(), story.syncs("t-0/leader-epoch-checkpoint")) == (3, 1)


def test_producers_that_come_during_a_sync_share_the_next_one() -> None:
    story = Story(STRICT)
    first = story.produce()
    story.held.work()
    others = [story.produce(acks) for acks in (1, -1, 1, -1)]
    assert story.held.waiting == 1
    story.held.run()
    assert first.result() == 0
    assert done(others) == [False] * 4
    assert story.log.high_watermark == 1
    story.held.run_all()
    assert [answer.result() for answer in others] == [0] * 4
    assert story.syncs() == 2


def test_a_retried_batch_waits_for_the_sync_of_the_first_one() -> None:
    story = Story(STRICT)
    answers = [story.produce(acks, sequence=0) for acks in (-1, 1, 1, -1)]
    assert done(answers) == [False] * 4
    story.held.run_all()
    assert [answer.result() for answer in answers] == [0] * 4
    assert story.log.log_end_offset == 1


def test_flush_messages_of_a_topic() -> None:
    story = Story({"log.flush.interval.messages": "3"})
    assert [story.produce().result() for _ in range(2)] == [0, 0]
    third = story.produce()
    assert not third.done
    assert story.log.high_watermark == 2
    story.held.run_all()
    assert third.result() == 0
    assert story.log.recovery_point == 3
    assert [story.produce().result() for _ in range(2)] == [0, 0]
    assert story.syncs() == 1


def test_flush_ms_counts_from_the_first_record_that_waits() -> None:
    story = Story({"log.flush.interval.ms": "500"})
    assert story.produce().result() == 0
    story.cluster.timers.advance(400)
    assert story.produce().result() == 0
    assert story.held.waiting == 0
    story.cluster.timers.advance(100)
    story.held.run_all()
    assert story.log.recovery_point == 2
    story.cluster.timers.advance(5000)
    assert story.syncs() == 1
    story.produce()
    story.cluster.timers.advance(500)
    story.held.run_all()
    assert story.log.recovery_point == 3


def test_settings_of_a_running_topic_take_effect() -> None:
    story = Story()
    story.produce()
    broker = story.cluster.broker
    broker.partition("t", 0).update_config(broker.settings.log_config({"flush.messages": "1"}))
    answer = story.produce()
    assert not answer.done
    broker.partition("t", 0).update_config(broker.settings.log_config({}))
    story.held.run_all()
    assert answer.result() == 0
    assert story.produce().result() == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_sync_that_fails_is_told_and_takes_the_log_offline(
    acks: int, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story(STRICT)
    assert not (answer := story.produce()).done
    story.held.run_all()
    assert answer.result() == 0
    answers = [story.produce(acks), story.produce(1)]
    due = [code]
    story.disk.root = "/data"
    story.disk.refuses = lambda what, path: StorageError.of(OSError(due.pop(), "sorry"), path) if due else None
    story.held.run_all()
    assert [answer.result() for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert f"t-0 was not synced: {LOG}: sorry (data directory: /data)" in caplog.text
    # The system may have dropped what it could not write: a sync that works now would prove nothing.
    again = story.produce(acks, sequence=1)
    story.held.run_all()
    assert again.result() == ErrorCode.KAFKA_STORAGE_ERROR
    assert story.produce(acks).result() == ErrorCode.KAFKA_STORAGE_ERROR
    assert story.log.high_watermark == 1
    assert len(story.log.read(0, 1000, bound=1)) > 0
    operations.fail_disk(story.cluster.cluster, topic="t", partition=0)
    operations.heal_disk(story.cluster.cluster, topic="t", partition=0)  # which undoes a fault, not this
    story.cluster.timers.advance(10_000)
    assert story.produce(acks, sequence=3).result() == ErrorCode.KAFKA_STORAGE_ERROR
    story.held.run_all()
    assert story.log.recovery_point == story.log.high_watermark == 1
    assert Story(STRICT, disk=story.disk.after_power_loss()).log.log_end_offset == 1


def test_a_full_disk_at_the_write_of_an_index_is_survived() -> None:
    """Nothing that was written before is lost by it, so the flush is tried again, by the next request or by itself."""
    story = Story(STRICT)
    for tried_again_by in ("a request", "itself"):
        story.disk.refuses = lambda what, path: DiskFull(28, "full", path) if path.endswith("index") else None
        end = story.log.log_end_offset
        answer = story.produce(sequence=end, size=5000)  # an index entry each
        story.held.run_all()
        assert answer.result() == ErrorCode.KAFKA_STORAGE_ERROR
        assert story.log.high_watermark == end
        story.disk.refuses = lambda what, path: None
        if tried_again_by == "itself":
            story.cluster.timers.advance(2000)
        else:
            again = story.produce(sequence=end, size=5000)
        story.held.run_all()
        assert story.log.log_end_offset == story.log.high_watermark == end + 1
        assert again.result() == 0


def test_a_clean_shutdown_after_a_failed_sync_is_none() -> None:
    """Closing is a flush too: a second one that succeeds would mark as clean what the system dropped."""
    story = Story()
    assert story.produce().result() == 0
    due = [StorageError(errno.EIO, "sorry", LOG)]
    story.disk.refuses = lambda what, path: due.pop() if due and what == "sync" else None
    for _ in range(2):
        with pytest.raises(ApiError, match="sorry"):
            story.log.close()
    assert (due, story.log.closed) == ([], False)


def test_what_was_acknowledged_after_its_sync_survives_the_power() -> None:
    from minibroker.kernel.executor import InlineExecutor

    story = Story({**STRICT, **SMALL_SEGMENTS}, executor=InlineExecutor())
    broker = story.cluster.broker
    broker.create_topics(["__transaction_state"]).result()
    producer = broker.coordinators.transactions.init_producer_id("tx", 60_000, None).result()
    broker.coordinators.transactions.add_partitions("tx", producer, [("t", 0)], transaction_version=0).result()
    for _ in range(5):
        assert story.produce(size=300_000).result() == 0
    broker.coordinators.transactions.end_txn("tx", producer, commit=True, transaction_version=0).result()
    story.cluster.perform_effects()
    end = story.log.log_end_offset
    state = [p.log.log_end_offset for p in broker.partitions() if p.topic == "__transaction_state" and p.is_open]
    assert end == 6
    assert sum(state) >= 4
    found = Story({**STRICT, **SMALL_SEGMENTS}, disk=story.disk.after_power_loss(), executor=InlineExecutor())
    assert found.log.log_end_offset == end
    held = [
        p.log.log_end_offset
        for p in found.cluster.broker.partitions()
        if p.topic == "__transaction_state" and p.has_log
    ]
    assert held == state


@pytest.mark.parametrize("acks", [1, -1])
def test_waits_for_the_sync_of_a_lost_tail_fail_and_the_others_go_on(acks: int) -> None:
    story = Story(STRICT)
    answers = [story.produce(acks) for _ in range(3)]
    story.cluster.broker.partition("t", 0).lose_tail(1)
    assert done(answers) == [False, True, True]
    assert [answer.result() for answer in answers[1:]] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    story.held.run_all()
    assert answers[0].result() == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_records_in_the_place_of_a_lost_tail_wait_for_a_sync_of_their_own(acks: int) -> None:
    story = Story(STRICT)
    for _ in range(2):
        story.produce()
        story.held.run_all()
    story.produce()
    story.cluster.broker.partition("t", 0).lose_tail(1)
    answer = story.produce(acks, pid=6, sequence=0)
    assert not answer.done
    story.held.run_all()
    assert answer.result() == 0
    assert story.log.recovery_point == story.log.log_end_offset == 2


def test_a_sync_that_fails_for_any_reason_takes_the_log_offline() -> None:
    """A damaged index file, or a defect: what is on the disk is unknown."""
    story = Story(STRICT)
    answer = story.produce()

    def broken(what: str, path: str) -> None:
        raise ValueError("broken")

    passes, story.disk.refuses = story.disk.refuses, broken
    story.held.run_all()
    assert answer.result() == ErrorCode.KAFKA_STORAGE_ERROR
    story.disk.refuses = passes
    assert story.produce().result() == ErrorCode.KAFKA_STORAGE_ERROR
    story.held.run_all()
    assert story.log.high_watermark == 0


def test_a_file_that_was_renamed_under_the_sync_is_no_failure() -> None:
    """By compaction or retention; the next try looks at the segments anew. Earlier syncs do not count."""
    story = Story(STRICT)
    due: list[int] = []

    def renamed(what: str, path: str) -> NotFound | None:
        return NotFound(errno.ENOENT, "no such file", path) if what == "sync" and due and due.pop() else None

    story.disk.refuses = renamed
    for _ in range(3):
        answer = story.produce()
        due += [1] * 3
        story.held.run_all()
        assert (answer.result(), due) == (0, [])


def test_a_sync_that_ends_after_its_log_was_deleted_is_not_tried_again() -> None:
    story = Story(STRICT)
    story.produce()
    partition, log = story.cluster.broker.partition("t", 0), story.log
    partition.dropped()
    log.delete()
    story.held.run()
    assert story.held.waiting == 0
    assert "t-0" not in story.disk.list()


def test_flush_ms_of_a_closed_log_syncs_nothing() -> None:
    story = Story({"log.flush.interval.ms": "500"})
    story.produce()
    story.cluster.broker.partition("t", 0).dropped()
    story.cluster.timers.advance(1000)
    assert story.held.waiting == 0


def test_a_flush_that_is_stopped_leaves_no_timer() -> None:
    clock, log = ManualTimers(), open_log(FaultyDisk(), config=LogConfig(flush_ms=500))
    flush = LogFlush(log, executor=HeldExecutor(), clock=clock, flushed=lambda: None, failed=lambda _: None)
    append(log, batch())
    flush.appended(0)
    assert clock.armed == 1
    flush.stop()
    assert clock.armed == 0


def test_a_log_that_is_closed_during_a_sync_answers_those_who_wait() -> None:
    story = Story(STRICT)
    answer = story.produce(1)
    story.cluster.broker.partition("t", 0).dropped()
    assert answer.result() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    story.held.run_all()
