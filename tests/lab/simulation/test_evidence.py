"""What is noted for the known holes: the fact itself, of the transaction and the request that it befalls."""

from __future__ import annotations

import errno
from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from minibroker.coordinator_runtime.transaction_markers import EndedTransaction, Marker
from minibroker.kernel.deferred import Deferred, spawn
from minibroker.kernel.transport import CONTROLLER
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.rules.catalogue import finding
from minibroker.rules.rows import CONSUMER_OFFSETS, Log
from minibroker_lab.simulation.evidence import Dropped, Fact
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_lab.simulation.history import Record
from minibroker_lab.simulation.holes import explained
from minibroker_lab.simulation.network_conditions import Chances
from minibroker_lab.simulation.plan import draw
from minibroker_lab.simulation.producers import Abortable, Batch, Producer
from minibroker_lab.simulation.world import World
from minibroker_protocol.errors import ApiError
from minibroker_protocol.messages.offsets import DeleteRecordsRequest, DeleteRecordsResponse
from minibroker_protocol.messages.transactions import InitProducerIdRequest, WriteTxnMarkersRequest
from minibroker_storage.disk import StorageError, SyncFailed
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import truncate_to

PLACE = ("t0", 0)


def calm_world(**differently: Any) -> World:
    """One broker, one partition of each topic, and nothing that happens by itself."""
    calm: dict[str, Any] = {"lost": 0.0, "mute": 0.0, "late": 0.0, "hasty": 0.0, "copiers": 0}
    small = {"brokers": 1, "replicas": 1, "partitions": 1, "topics": 1, "transaction_partitions": 1, "synced": False}
    rules = {"semantics": "kafka", "client_version": 1, "transaction_timeout_ms": 60_000, "roll_ms": 1 << 30}
    plan = replace(draw(0), **{**calm, **small, **rules, **differently})
    world = World(plan)
    world.cluster.start()
    world.attended()
    world.schedule.run(50)
    world.conditions.chances = Chances(delay_ms=1.0)
    return world


# What the world does at the end of a broker or of a run, alone: a seed decides when that is.


def note_files(world: World, *, clean: bool) -> None:
    world._note_files(clean=clean)


def all_readable(world: World) -> bool:
    return world._all_readable()


def note_uncut(world: World) -> None:
    world.nemesis._note_uncut(1)


def producer(world: World, transactional_id: str | None = "x0") -> Producer:
    made = Producer(world, "x0#1", Random(1), [PLACE], transactional_id=transactional_id)
    world.clients.append(made)
    return made


def finish(world: World, work: Coroutine[Deferred[Any], None, Any]) -> Any:
    done = spawn(work)
    assert world.schedule.run(5000, lambda: done.done)
    return done.result()


async def _write(client: Producer) -> None:
    client.begin()
    await client.join({PLACE})
    await client.write([client.batch(PLACE, 1)])


def marker(client: Producer, *, commit: bool, coordinator_epoch: int = 0) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                transaction_result=commit,
                topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=PLACE[0], partition_indexes=[PLACE[1]])],
                coordinator_epoch=coordinator_epoch,
            )
        ]
    )


@pytest.fixture
def ended() -> tuple[World, Producer]:
    """A client whose first transaction is aborted and has no marker yet, and which is at its second one."""
    world = calm_world()
    client = producer(world)
    finish(world, client.init())
    world.brokers()[1].coordinators.transactions.effects.hold()
    finish(world, _write(client))
    finish(world, client.end(commit=False))
    client.begin()
    return world, client


def test_a_late_marker_is_held_against_the_transaction_that_is_open_in_the_partition(
    ended: tuple[World, Producer],
) -> None:
    """Not against the one its client is at by then, which has not even begun for its coordinator."""
    world, client = ended
    world.late_markers.arrives(1, marker(client, commit=True), given_up=True)
    assert world.history.evidence.marked == {"x0#1/0": (client.producer_id, client.epoch)}
    assert client.newest_transaction == "x0#1/1"


def test_a_late_marker_that_comes_before_its_equal_is_one_too_many(ended: tuple[World, Producer]) -> None:
    world, client = ended
    world.late_markers.arrives(1, marker(client, commit=False), given_up=True)
    assert not world.history.evidence.marked
    assert world.history.evidence.idle_markers == {(PLACE, (client.producer_id, client.epoch))}


def test_a_marker_in_time_is_no_evidence(ended: tuple[World, Producer]) -> None:
    world, client = ended
    world.late_markers.arrives(1, marker(client, commit=True))
    assert not world.history.evidence.marked
    assert not world.history.evidence.idle_markers


def test_a_late_marker_that_is_refused_is_no_evidence(ended: tuple[World, Producer]) -> None:
    """By a partition that knows a marker of a later coordinator for the producer (ProducerAppendInfo)."""
    world, client = ended
    world.brokers()[1].coordinators.transactions.effects.release()
    finish(world, _write(client))
    world.late_markers.arrives(1, marker(client, commit=True, coordinator_epoch=-1), given_up=True)
    assert not world.history.evidence.marked
    world.late_markers.arrives(1, marker(client, commit=True, coordinator_epoch=0), given_up=True)
    assert set(world.history.evidence.marked) == {client.newest_transaction}


def deposed_world() -> tuple[World, Producer, int]:
    """A client with an open transaction whose coordinator is another broker than the first one, that is the result."""
    world = calm_world(brokers=3, replicas=3)
    client = producer(world)
    finish(world, client.init())
    first = world.cluster.image.leader_of(TRANSACTION_STATE_TOPIC, 0)
    assert first is not None
    world.cluster.move_leader(TRANSACTION_STATE_TOPIC, 0, first % 3 + 1)
    world.schedule.run(500)
    finish(world, _write(client))
    return world, client, first


def test_a_marker_of_a_deposed_coordinator_is_late_though_nobody_gave_it_up() -> None:
    world, client, _ = deposed_world()
    leader = world.cluster.image.leader_of(*PLACE)
    assert leader is not None
    world.late_markers.arrives(leader, marker(client, commit=True, coordinator_epoch=1))
    assert not world.history.evidence.marked
    world.late_markers.arrives(leader, marker(client, commit=True, coordinator_epoch=0))
    assert set(world.history.evidence.marked) == {client.newest_transaction}


def test_a_deposed_coordinator_is_late_with_its_own_partitions_too() -> None:
    """To those it sends no request, and asks nobody."""
    world, client, _ = deposed_world()
    leader = world.cluster.image.leader_of(*PLACE)
    assert leader is not None
    job = EndedTransaction(
        transactional_id="x0",
        shard_index=0,
        marker=Marker(client.producer_id, client.epoch, True, 0, 1),
        partitions=frozenset({PLACE}),
    )
    world.brokers()[leader].coordinators.transactions.markers.send(job)
    assert set(world.history.evidence.marked) == {client.newest_transaction}


def test_a_coordinator_is_left_behind_only_while_it_is_cut_off_and_another_is_there() -> None:
    world, _, first = deposed_world()
    second = first % 3 + 1
    assert not world.deposed("x0", first)  # it will hear of it in a moment
    isolated = world.nemesis._isolated  # private: a nemesis isolates whom its seed draws
    isolated[first] = 1
    assert world.deposed("x0", first)
    assert not world.deposed("x0", second)
    isolated[second] = 1
    assert not world.deposed("x0", second)


def test_each_client_is_told_why_its_own_request_was_refused() -> None:
    """Two batches that are refused in the same ms, by the broker's clock, with the same code."""
    world = calm_world()
    client = producer(world, None)
    finish(world, client.init())
    finish(world, client.write([client.batch(PLACE, 1)]))
    batches = [Batch(PLACE, client.batch(PLACE, 1).records, sequence) for sequence in (5, 9)]
    with pytest.raises(Abortable):
        finish(world, client.write([*batches]))
    assert world.schedule.run(5000, lambda: all(batch.reason for batch in batches))
    assert [r.error for r in world.brokers()[1].refusals] == ["OUT_OF_ORDER_SEQUENCE_NUMBER"] * 2
    assert [batch.reason.partition(" at epoch")[0] for batch in batches] == [
        "expected sequence 1, got 5",
        "expected sequence 1, got 9",
    ]


def test_producers_are_noted_when_nothing_is_left_to_rebuild_them_from() -> None:
    """As Kafka 4.3.1 forgets them after a kill, or an orderly stop, by what DescribeProducers shows."""
    world = calm_world()
    clients = [producer(world, None), producer(world, None)]
    log = world.brokers()[1].partition(*PLACE).log
    for client in clients:
        finish(world, client.init())
        finish(world, client.write([client.batch(PLACE, 1)]))
        log.roll(world.schedule.now_ms())
    first, second = (client.producer_id for client in clients)

    def noted(*, clean: bool) -> set[int]:
        note_files(world, clean=clean)
        return world.history.evidence.deleted[1, PLACE]

    assert noted(clean=False) == set()
    log.delete_records(1)
    assert noted(clean=False) == set()  # the last segment begins later, with a snapshot that has both
    finish(world, clients[1].write([clients[1].batch(PLACE, 1)]))
    log.delete_records(2)
    assert noted(clean=True) == set()
    assert noted(clean=False) == {first}
    assert delete_old_segments(log, world.schedule.now_ms()) == 2
    assert noted(clean=False) == set()  # no checkpoint has the log start now, so the snapshot of there is taken
    log.delete_records(3)
    assert noted(clean=True) == noted(clean=False) == {first, second}


def test_producers_are_noted_that_a_truncation_forgot_and_a_kill_brings_back() -> None:
    """A truncation rebuilds them from the log start on, a start after a kill reads the last segment from its beginning
    (UnifiedLog.truncateTo, LogLoader.recoverSegment)."""
    world = calm_world()
    clients = [producer(world, None), producer(world, None)]
    for client in clients:
        finish(world, client.init())
        finish(world, client.write([client.batch(PLACE, 1)]))
    log, first = world.brokers()[1].partition(*PLACE).log, clients[0].producer_id
    log.delete_records(1)
    noted = world.history.evidence.found_again
    note_files(world, clean=False)
    assert noted == {}  # its memory has them all
    finish(world, clients[1].write([clients[1].batch(PLACE, 1)]))
    truncate_to(log, 2, now_ms=world.schedule.now_ms())
    note_files(world, clean=True)
    assert noted == {}
    note_files(world, clean=False)
    assert noted == {(1, PLACE): {first}}
    assert not log.producers.knows(first)
    directory = world.brokers()[1].directory
    directory.note([log])
    directory.write_checkpoints(sync=False)
    world.cluster.kill_broker(1)
    world.cluster.start_broker(1)
    world.schedule.run(100)
    log = world.brokers()[1].partition(*PLACE).log
    assert log.log_start_offset == 1
    assert log.producers.knows(first)


def test_producers_are_noted_that_an_orderly_start_forgot_and_a_kill_brings_back() -> None:
    world = calm_world()
    client = producer(world, None)
    finish(world, client.init())
    finish(world, client.write([client.batch(PLACE, 1)]))
    world.brokers()[1].partition(*PLACE).log.delete_records(1)
    world.cluster.stop_broker(1)
    world.schedule.run(100)
    world.lives[1] += 1
    world.cluster.start_broker(1)
    world.schedule.run(100)
    log = world.brokers()[1].partition(*PLACE).log
    assert (log.log_start_offset, log.truncations) == (1, 0)
    assert not log.producers.knows(client.producer_id)
    note_files(world, clean=False)
    assert world.history.evidence.found_again[1, PLACE] == {client.producer_id}


def test_a_cut_inside_a_batch_is_noted_with_the_end_that_a_start_finds() -> None:
    """As LocalLog.truncateTo, which ends the log where it was asked to, and LogSegment.truncateTo, which cuts before
    the batch."""
    world = calm_world()
    client = producer(world, None)
    finish(world, client.init())
    finish(world, client.write([client.batch(PLACE, 1), client.batch(PLACE, 2)]))
    log, noted = world.brokers()[1].partition(*PLACE).log, world.history.evidence.cut_inside
    note_files(world, clean=True)
    assert (log.log_end_offset, noted) == (3, {})
    truncate_to(log, 2, now_ms=world.schedule.now_ms())
    note_files(world, clean=True)
    assert noted == {(1, PLACE): (2, 1)}
    world.cluster.kill_broker(1)
    world.cluster.start_broker(1)
    world.schedule.run(100)
    assert world.brokers()[1].partition(*PLACE).log.log_end_offset == 1


def test_all_is_readable_once_followers_have_what_leaders_have() -> None:
    """What the last copier waits for: a follower's fetch takes up to 2500 ms here, and leaders hear with it that the
    follower has caught up."""
    world = calm_world(brokers=2, replicas=2)
    client = producer(world, None)
    finish(world, client.init())
    finish(world, client.write([client.batch(PLACE, 1)]))
    assert all_readable(world)
    world.conditions.cut(1, 2)
    spawn(client.write([client.batch(PLACE, 1)]))
    world.schedule.run(100)
    assert not all_readable(world)
    world.conditions.mend(1, 2)
    assert world.schedule.run(5000, lambda: all_readable(world))
    leader = world.brokers()[world.cluster.image.leader_of(*PLACE) or 0].partition(*PLACE)
    assert (leader.high_watermark, leader.log_end_offset) == (2, 2)


def test_a_truncation_is_unsynced_until_a_sync_reaches_its_segment() -> None:
    """As LocalLog.flush, which begins with the segment of the recovery point: after a roll where the truncated segment
    ends, that is the new one."""
    world = calm_world()
    client, other = producer(world, None), producer(world, None)
    finish(world, client.init())
    finish(world, other.init())
    finish(world, client.write([client.batch(PLACE, 1) for _ in range(3)]))
    log, now = world.brokers()[1].partition(*PLACE).log, world.schedule.now_ms()
    log.flush()
    truncate_to(log, 2, now_ms=now)
    log.roll(now)
    finish(world, other.write([other.batch(PLACE, 1)]))
    log.flush()
    note_uncut(world)
    assert world.history.evidence.uncut == {(1, PLACE)}
    world.history.evidence.uncut.clear()
    truncate_to(log, 1, now_ms=now)
    finish(world, other.write([other.batch(PLACE, 1)]))
    log.flush()
    note_uncut(world)
    assert world.history.evidence.uncut == set()


def test_writes_are_forgotten_once_their_sync_has_failed_until_they_are_written_again() -> None:
    """As fsync(2) of Linux: they stay readable, and the next sync says that all is well."""
    disk = FaultyDisk()
    file = disk.open("t0-0.log", create=True)
    file.append([b"first"])
    assert disk.forgotten_writes() == []  # the next sync brings it
    disk.refuses = lambda what, path: StorageError(errno.EIO, "a sync fails", path) if what == "sync" else None
    with pytest.raises(SyncFailed):
        file.sync()
    disk.refuses = lambda what, path: None
    file.append([b"second"])
    file.sync()
    assert disk.read_bytes("t0-0.log") == b"firstsecond"
    assert disk.forgotten_writes() == ["t0-0.log"]
    file.pwrite(b"first", 0)
    assert disk.forgotten_writes() == []


def test_a_log_that_forgets_writes_is_noted_with_its_machine() -> None:
    world = calm_world()
    client = producer(world, None)
    finish(world, client.init())
    finish(world, client.write([client.batch(PLACE, 1)]))
    disk = world.disks[1].inner
    disk.refuses = lambda what, path: StorageError(errno.EIO, "a sync fails", path) if what == "sync" else None
    with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
        world.brokers()[1].partition(*PLACE).log.flush()
    disk.refuses = lambda what, path: None
    note_uncut(world)
    assert world.history.evidence.forgotten == {(1, PLACE)}
    for log, rule, explains in (
        (Log("", *PLACE), "lost-record", True),
        (Log("", *PLACE), "refusal", True),
        (Log("1", *PLACE), "producer-snapshot", True),
        (Log("2", *PLACE), "producer-snapshot", False),
        (Log("", "t0", 1), "lost-record", False),
        (Log("", "t0", 1), "refusal", False),
    ):
        hole = explained(finding(rule, log, "x"), world)
        assert (hole is not None and hole.name == "failed sync forgotten by a restart") == explains, (log, rule)


@pytest.mark.parametrize(("semantics", "noted"), [("kafka", True), ("kip", False)])
def test_an_instance_of_before_that_asks_with_its_epoch_is_noted(semantics: str, noted: bool) -> None:
    world = calm_world(semantics=semantics, client_version=0)
    client = producer(world)
    finish(world, client.init())
    late = world.history.evidence.late["x0", "InitProducerId"]

    def ask(epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id="x0", transaction_timeout_ms=1, producer_id=client.producer_id, producer_epoch=epoch
        )
        world.watch(1, request)

    ask(client.epoch)
    assert late == []
    finish(world, client.init())
    ask(client.epoch - 1)
    assert late == []  # no transaction is open: it is fenced, and changes nothing
    client.begin()
    finish(world, client.join({PLACE}))
    ask(client.epoch - 1)
    assert bool(late) == noted


def cut_off_leader() -> tuple[World, int, int]:
    """The first of three brokers to lead is cut off, and has a record of its own at offset 1; and the next leader."""
    world = calm_world(brokers=3, replicas=3)
    client, other = producer(world, None), producer(world, None)
    finish(world, client.init())
    finish(world, other.init())
    finish(world, client.write([client.batch(PLACE, 1)]))
    first = world.cluster.image.leader_of(*PLACE)
    assert first is not None
    for node in (1, 2, 3, CONTROLLER):
        world.conditions.cut(first, node)
    spawn(client.write([client.batch(PLACE, 1)]))
    world.schedule.run(100)
    world.cluster.controller.replication.fence(first)
    world.schedule.run(100)
    second = world.cluster.image.leader_of(*PLACE)
    assert second is not None
    assert second != first
    other.lost_leader(*PLACE)
    finish(world, other.write([other.batch(PLACE, 1), other.batch(PLACE, 1)]))
    return world, first, second


def reconnect(world: World, first: int) -> None:
    for node in (1, 2, 3, CONTROLLER):
        world.conditions.mend(first, node)
    world.cluster.controller.replication.unfence(first)
    world.schedule.run(5000)


def delete(world: World, leader: int, offset: int) -> None:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=PLACE[1], offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=PLACE[0], partitions=[partition])
    janitor = producer(world, None)
    spawn(janitor.ask(leader, DeleteRecordsRequest(topics=[topic], timeout_ms=500), 2, DeleteRecordsResponse))
    world.schedule.run(100)


@pytest.mark.parametrize("deleted_first", [True, False])
def test_a_record_of_its_own_is_noted_when_it_stays_below_the_log_start(*, deleted_first: bool) -> None:
    """In the order of Kafka's LeaderEpochFileCache: where the log start has passed it, no epochs part any more."""
    world, first, second = cut_off_leader()
    steps = [lambda: delete(world, second, 2), lambda: reconnect(world, first)]
    for step in steps if deleted_first else reversed(steps):
        step()
    world.schedule.run(5000)
    replica = next(p for p in world.brokers()[first].partitions() if (p.topic, p.index) == PLACE)
    leader = world.brokers()[second].partition(*PLACE)
    assert (replica.log_start_offset, replica.log_end_offset) == (2, leader.log_end_offset)
    assert world.history.evidence.own_records == ({(first, PLACE)} if deleted_first else set())


def test_a_record_of_its_own_is_noted_when_a_crash_takes_the_log_start_back() -> None:
    """The file of leader epochs is written at once, the log start a minute later."""
    world, first, second = cut_off_leader()
    world.cluster.kill_broker(6 - first - second)
    world.schedule.run(100)
    delete(world, second, 2)
    world.cluster.kill_broker(second)
    world.cluster.start_broker(second)
    world.schedule.run(1000)
    world.cluster.elect(*PLACE, unclean=True)
    world.schedule.run(100)
    leader = world.brokers()[second].partition(*PLACE).log
    assert leader.log_start_offset == 0
    assert leader.leader_epochs.entries[0][1] == 2
    reconnect(world, first)
    world.schedule.run(5000)
    assert world.history.evidence.own_records == {(first, PLACE)}


def test_a_transaction_whose_marker_was_dropped_is_torn_in_its_other_partitions() -> None:
    """The end of the next one decides where the marker is missing, and the rule names the other partition."""
    world = calm_world()
    for index, partition in enumerate((0, 1)):
        key = f"c0#1.{index}"
        world.history.records[key] = Record("c0#1", "t0", partition, key, "c0#1/5", sent=True, acknowledged=True)
    torn = finding("torn-transaction", Log("", "t0", 0), "of transaction 'c0#1/5' 1 records are read and 1 are not")
    dropped = world.history.evidence.dropped
    dropped += [Dropped(("t0", 1), 8, "x0"), Dropped(("t0", 2), 7, "c0")]
    assert explained(torn, world) is None, "another's marker, and one where it has no record"
    dropped.append(Dropped(("t0", 1), 7, "c0"))
    hole = explained(torn, world)
    assert hole is not None
    assert hole.name == "marker dropped without a leader"


def test_a_group_waits_for_a_transaction_among_its_offsets_that_has_lost_its_marker() -> None:
    world = calm_world()
    place = (CONSUMER_OFFSETS, 0)
    found = [
        finding("no-progress", Log("", "t0", -1), "c9#1 cannot end: InitProducerId at 1, OffsetFetch at 1"),
        finding("lineage-lost", Log("", "in", 0), "input 'feeder.1' is in the committed output 0 of 1 times"),
    ]
    evidence = world.history.evidence
    evidence.dropped.append(Dropped(place, 7, "c9"))
    assert [explained(one, world) for one in found] == [None, None]  # another end has decided it since
    evidence.hung[place] = {7}
    assert [hole.name for one in found if (hole := explained(one, world))] == ["marker dropped without a leader"] * 2
    assert explained(found[0]._replace(message="c9#1 cannot end: Produce to t0-0 at 1"), world) is None


@pytest.mark.parametrize(
    ("remembered", "explains"),
    [("2-3@0", True), ("2-3@0, 4-4@4, 5-5@6", True), ("0-1@0", False), ("0-1@0, 2-2@5", False)],
)
def test_a_producer_began_anywhere_where_no_batch_remembered_is_its_first(*, remembered: str, explains: bool) -> None:
    world = calm_world()
    message = f"t0-0: expected sequence 6, got 0 at epoch 1; known: epoch 1, remembered batches {remembered}"
    hole = explained(finding("refusal", Log("", "t0", 0), message), world)
    assert (hole is not None) == explains
    assert hole is None or hole.name == "unknown producer begins anywhere"


@pytest.mark.parametrize(
    ("remembered", "explains"),
    [("17-17@17", True), ("16-16@16, 17-17@17", True), ("13-13@13, 14-14@14, 15-15@15, 16-16@16, 17-17@17", False)],
)
def test_a_retry_older_than_what_a_snapshot_and_the_batches_after_it_say(*, remembered: str, explains: bool) -> None:
    world = calm_world()
    message = f"t0-0: expected sequence 18, got 12 at epoch 0; known: epoch 0, remembered batches {remembered}"
    world.history.evidence.facts[message] = frozenset({Fact.RETRY, Fact.NEW_LEADER})
    hole = explained(finding("refusal", Log("", "t0", 0), message), world)
    assert (hole is not None and hole.name == "window forgotten by restart") == explains
