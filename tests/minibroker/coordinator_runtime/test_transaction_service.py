"""The transaction coordinator of a whole broker: markers, failover, sweeps on the broker clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from memory_cluster import MemoryCluster, keep_loading, refused_appends

from minibroker.cluster.tapped_transport import TappedTransport
from minibroker.coordinator_runtime.transactional_write import Write
from minibroker.coordinators.hashing import partition_for
from minibroker.coordinators.producer_ids import ProducerIdBlocks
from minibroker.coordinators.transactions import expiry
from minibroker.coordinators.transactions.effects import SendMarkers
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TransactionEntry
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, ONGOING, PREPARE_COMMIT
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.releases.features import TRANSACTION_VERSION
from minibroker.requests.tapped_request import TappedRequest
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from minibroker_protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from minibroker_protocol.records import Record, build_batch, decode_records, end_txn_marker, iter_batches, parse_control
from minibroker_storage.log import PartitionLog
from minibroker_storage.origin import Origin

ID = "tx"
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
TIMEOUT_SWEEP_MS = 10_000
EXPIRATION_SWEEP_MS = 3_600_000


@pytest.fixture(params=["here", "by request"])
def cluster(request: pytest.FixtureRequest) -> Iterator[MemoryCluster]:
    """Markers for partitions of the coordinator's own broker are written at once, or as those for others."""
    running = MemoryCluster(topics={"t": 2, "u": 1})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    if request.param == "by request":
        running.ask_itself_as_others()
    yield running
    running.stop()


def _init(
    cluster: MemoryCluster, expected: ProducerIdAndEpoch | None = None, timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    return cluster.broker.coordinators.transactions.init_producer_id(ID, timeout_ms, expected).result()


def _begin(cluster: MemoryCluster, *partitions: tuple[str, int], timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
    producer = _init(cluster, timeout_ms=timeout_ms)
    cluster.broker.coordinators.transactions.add_partitions(ID, producer, partitions, transaction_version=0).result()
    return producer


def _end(
    cluster: MemoryCluster, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 0
) -> ProducerIdAndEpoch:
    answer = cluster.broker.coordinators.transactions.end_txn(
        ID, producer, commit=commit, transaction_version=version
    ).result()
    cluster.perform_effects()  # in the next turn of the loop
    return answer


def _entry(cluster: MemoryCluster) -> TransactionEntry:
    cluster.perform_effects()
    return cluster.broker.coordinators.transactions.describe(ID)


def _markers(cluster: MemoryCluster, topic: str, index: int) -> list[tuple[str, int, int, int]]:
    """(type, producer id, producer epoch, coordinator epoch) of every marker in the partition."""
    cluster.perform_effects()
    log = cluster.broker.partition(topic, index).log
    found = []
    if log.log_end_offset > log.log_start_offset:
        data = log.read(log.log_start_offset, 1 << 20, bound=log.log_end_offset, min_one_message=True).records
        for position, header in iter_batches(data):
            if header.is_control:
                (record,) = decode_records(data, position, header, max_bytes=1000)
                control = parse_control(record)
                assert control.coordinator_epoch is not None
                found.append((control.type.name, header.producer_id, header.producer_epoch, control.coordinator_epoch))
    return found


def _fail_over(cluster: MemoryCluster) -> None:
    """The same broker becomes coordinator again, in the next leader epoch."""
    index = partition_for(ID, 50)
    partition = cluster.broker.partition(TRANSACTION_STATE_TOPIC, index)
    cluster.broker.coordinators.transactions.resigned(index)
    partition.leader_epoch += 1
    cluster.broker.coordinators.transactions.elected(partition, partition.leader_epoch)


# -- markers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "kind"), [(True, "COMMIT"), (False, "ABORT")])
def test_every_partition_gets_its_marker(cluster: MemoryCluster, commit: bool, kind: str) -> None:
    producer = _begin(cluster, T0, T1, U0)
    assert _end(cluster, producer, commit=commit) == (-1, -1)
    for partition in (T0, T1, U0):
        assert _markers(cluster, *partition) == [(kind, producer.producer_id, 0, 0)]
    assert _entry(cluster).metadata.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)


def test_an_end_with_version_2_writes_the_bumped_epoch(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    assert _end(cluster, producer, version=2) == (producer.producer_id, 1)
    assert _markers(cluster, *T0) == [("COMMIT", producer.producer_id, 1, 0)]


def test_a_transaction_of_many_partitions_lets_other_work_in_between() -> None:
    running = MemoryCluster(topics={"wide": 200})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    producer = _begin(running, *[("wide", i) for i in range(200)])
    _end(running, producer)
    assert _entry(running).metadata.state is PREPARE_COMMIT, "the answer does not wait for 200 markers"
    running.timers.advance(1)
    assert _entry(running).metadata.state is COMPLETE_COMMIT
    assert all(len(_markers(running, "wide", i)) == 1 for i in range(200))
    running.stop()


def test_markers_can_be_held_and_let_go(cluster: MemoryCluster) -> None:
    service = cluster.broker.coordinators.transactions
    service.effects.hold(lambda effect: effect == SendMarkers(ID))
    producer = _begin(cluster, T0, U0)
    _end(cluster, producer)
    assert _entry(cluster).metadata.state is PREPARE_COMMIT
    assert service.effects.held == [SendMarkers(ID)]
    assert _entry(cluster).volatile.missing_markers == {T0, U0}
    with pytest.raises(ApiError) as caught:
        service.add_partitions(ID, producer, [T1], transaction_version=0)
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    service.effects.release(lambda effect: effect == SendMarkers(ID))
    cluster.perform_effects()
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert (service.effects.held, service.markers.active) == ([], [])


def test_a_deleted_topic_needs_no_marker(cluster: MemoryCluster) -> None:
    cluster.broker.coordinators.transactions.effects.hold()
    producer = _begin(cluster, T0, U0)
    _end(cluster, producer)
    request = DeleteTopicsRequest(topic_names=["u"], timeout_ms=1000)
    assert cluster.call(request, DeleteTopicsResponse, 3).responses[0].error_code == 0
    cluster.broker.coordinators.transactions.effects.release()
    cluster.perform_effects()
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert len(_markers(cluster, *T0)) == 1


def test_a_partition_that_is_out_of_reach_is_tried_again(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0, U0)
    partition = cluster.broker.partition(*T0)
    partition.leader_id = 99
    _end(cluster, producer)
    assert _entry(cluster).metadata.state is PREPARE_COMMIT
    assert _entry(cluster).volatile.missing_markers == {T0}
    cluster.timers.advance(100)
    assert _entry(cluster).metadata.state is PREPARE_COMMIT
    partition.leader_id = 1
    cluster.timers.advance(100)
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert len(_markers(cluster, *U0)) == 1, "only the missing marker was sent again"


def test_a_marker_that_is_not_replicated_is_written_again(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cluster.broker.transport.direct:
        return  # of a request this is the handler's part
    markers = cluster.broker.coordinators.transactions.markers
    producer = _begin(cluster, T0)
    waiting: Deferred[None] = Deferred()
    with monkeypatch.context() as patched:
        patched.setattr(markers, "_append", lambda *_: waiting)
        _end(cluster, producer)
        assert _entry(cluster).metadata.state is PREPARE_COMMIT
    waiting.fail(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere"))
    assert _entry(cluster).volatile.missing_markers == {T0}
    cluster.timers.advance(100)
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert len(_markers(cluster, *T0)) == 1


class Looking:
    """Names what a broker sends, and lets it pass."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def serve(self, tapped: TappedRequest) -> Deferred[Any]:
        self.seen.append(tapped.api.name)
        return tapped.apply()


def test_rules_can_be_about_what_a_broker_sends_to_itself(cluster: MemoryCluster) -> None:
    transport = cluster.broker.transport
    assert isinstance(transport, TappedTransport)
    transport.tap = looking = Looking()
    producer = _begin(cluster, T0)
    verified = cluster.broker.coordinators.verifier.verify(Write(ID, *producer, [T0]), 10)
    assert verified.result() == {T0: ErrorCode.NONE}
    _end(cluster, producer)
    assert looking.seen[-2:] == ["AddPartitionsToTxn", "WriteTxnMarkers"]
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    transport.tap = None
    looking.seen.clear()
    _end(cluster, _begin(cluster, T0))
    assert looking.seen == []


def test_a_refused_marker_leaves_the_transaction_prepared_until_a_reload(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    # Somebody wrote a marker with a higher coordinator epoch for this producer (Admin.abortTransaction).
    hanging = end_txn_marker(
        producer_id=producer.producer_id,
        producer_epoch=0,
        commit=False,
        coordinator_epoch=1,
        timestamp_ms=cluster.clock.now_ms(),
    )
    cluster.broker.partition(*T0).append(hanging, origin=Origin.COORDINATOR)
    _end(cluster, producer)
    cluster.timers.advance(60_000)
    assert _entry(cluster).metadata.state is PREPARE_COMMIT
    with pytest.raises(ApiError) as caught:
        _init(cluster)
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    _fail_over(cluster)
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert _markers(cluster, *T0)[-1] == ("COMMIT", producer.producer_id, 0, 1)


@pytest.mark.parametrize(("version", "state"), [(0, COMPLETE_COMMIT), (2, PREPARE_COMMIT)])
def test_a_marker_says_how_its_epoch_is_to_be_checked(cluster: MemoryCluster, version: int, state: object) -> None:
    """From transaction.version 2 on a partition refuses one whose epoch is that of its open transaction."""
    producer_id, epoch = _begin(cluster, T0)
    batch = build_batch(
        [Record(0, cluster.clock.now_ms(), None, b"v", [])],
        producer_id=producer_id,
        producer_epoch=epoch + version // 2,  # as that of the marker
        base_sequence=0,
        transactional=True,
    )
    cluster.broker.partition(*T0).append(batch, origin=Origin.REPLICATION)
    _end(cluster, ProducerIdAndEpoch(producer_id, epoch), version=version)
    assert _entry(cluster).metadata.state is state


@pytest.mark.parametrize(("epoch", "coordinator_epoch"), [(0, 1), (5, 0)], ids=["coordinator-fenced", "epoch"])
def test_a_refused_marker_is_not_sent_again(cluster: MemoryCluster, epoch: int, coordinator_epoch: int) -> None:
    producer = _begin(cluster, T0)
    newer = end_txn_marker(
        producer_id=producer.producer_id,
        producer_epoch=epoch,
        commit=False,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=cluster.clock.now_ms(),
    )
    cluster.broker.partition(*T0).append(newer, origin=Origin.COORDINATOR)
    _end(cluster, producer)
    cluster.timers.advance(60_000)
    assert [refusal.api for refusal in cluster.broker.refusals] == ["WriteTxnMarkers"]
    assert _entry(cluster).metadata.state is PREPARE_COMMIT


def test_a_coordinator_that_lost_its_partition_stops_sending(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    partition = cluster.broker.partition(*T0)
    partition.leader_id = 99
    _end(cluster, producer)
    cluster.broker.coordinators.transactions.resigned(partition_for(ID, 50))
    partition.leader_id = 1
    cluster.timers.advance(60_000)
    assert _markers(cluster, *T0) == []


def test_an_election_without_a_resignation_drops_the_markers_of_before(cluster: MemoryCluster) -> None:
    service = cluster.broker.coordinators.transactions
    service.effects.hold()
    _end(cluster, _begin(cluster, T0))
    service.effects.hold(lambda _: False)
    state_partition = cluster.broker.partition(TRANSACTION_STATE_TOPIC, partition_for(ID, 50))
    state_partition.leader_epoch += 1
    service.elected(state_partition, state_partition.leader_epoch)
    assert _markers(cluster, *T0) == [("COMMIT", 0, 0, 1)]
    assert service.effects.held == []


# -- failover ----------------------------------------------------------------------------------------------------------


def test_a_prepared_transaction_is_completed_by_the_next_coordinator(cluster: MemoryCluster) -> None:
    cluster.broker.coordinators.transactions.effects.hold()
    producer = _begin(cluster, T0)
    _end(cluster, producer, version=2)
    cluster.broker.coordinators.transactions.effects.hold(lambda _: False)
    _fail_over(cluster)
    assert cluster.broker.coordinators.transactions.effects.held == [], "the former coordinator's markers are dropped"
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert _markers(cluster, *T0) == [("COMMIT", producer.producer_id, 1, 1)]


def test_nobody_answers_for_a_partition_it_does_not_lead(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    cluster.broker.coordinators.transactions.resigned(partition_for(ID, 50))
    service = cluster.broker.coordinators.transactions
    for request in (
        lambda: _init(cluster),
        lambda: service.add_partitions(ID, producer, [T1], transaction_version=0),
        lambda: service.verify_partitions(ID, producer, [T1]),
        lambda: _end(cluster, producer),
        lambda: service.describe(ID),
    ):
        with pytest.raises(ApiError) as caught:
            request()
        assert caught.value.code is ErrorCode.NOT_COORDINATOR


def test_everything_is_there_after_a_restart() -> None:
    first = MemoryCluster(topics={"t": 2})
    first.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    producer = _begin(first, T0, T1)
    first.stop()
    second = MemoryCluster(disk=first.disk)
    metadata = _entry(second).metadata
    assert (metadata.state, metadata.producer, metadata.partitions) == (ONGOING, producer, frozenset({T0, T1}))
    assert second.broker.coordinators.transactions.init_producer_id(None, 0, None).result().producer_id >= 1000, (
        "the rest of the first block is discarded"
    )
    second.stop()


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_timeout_sweep_runs_on_the_broker_clock(cluster: MemoryCluster) -> None:
    cluster.clock.freeze()
    _begin(cluster, T0, timeout_ms=2000)
    cluster.clock.advance(TIMEOUT_SWEEP_MS - 1)
    assert _entry(cluster).metadata.state is ONGOING
    cluster.clock.advance(1)
    assert _entry(cluster).metadata.state is COMPLETE_ABORT
    assert [m[0] for m in _markers(cluster, *T0)] == ["ABORT"]


def test_timeouts_are_looked_for_every_cleanup_interval() -> None:
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "700"}
    cluster = MemoryCluster(interval, topics={"t": 2})
    cluster.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    _begin(cluster, T0, timeout_ms=1000)
    cluster.clock.freeze()
    for delta_ms, state in ((1399, ONGOING), (1, COMPLETE_ABORT)):
        cluster.clock.advance(delta_ms)
        assert cluster.broker.coordinators.transactions.describe(ID).metadata.state is state
    cluster.stop()


def test_the_expiration_sweep_runs_on_the_broker_clock(cluster: MemoryCluster) -> None:
    cluster.clock.freeze()
    _init(cluster)
    week_ms = 604_800_000
    cluster.clock.advance(week_ms - EXPIRATION_SWEEP_MS)
    assert _entry(cluster).metadata.state is EMPTY
    cluster.clock.advance(2 * EXPIRATION_SWEEP_MS)
    with pytest.raises(ApiError) as caught:
        _entry(cluster)
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_feature_that_is_finalized_is_obeyed_at_once(cluster: MemoryCluster, level: int) -> None:
    """By shards that were loaded before: from transaction.version 2 on an abort is logged with it."""
    _begin(cluster, T0, timeout_ms=2000)
    before = cluster.broker.image.feature(TRANSACTION_VERSION)
    if level != before:
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=TRANSACTION_VERSION, max_version_level=level, upgrade_type=1 if level > before else 2
        )
        answer = cluster.call(UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse, 1)
        assert answer.error_code == ErrorCode.NONE
    assert cluster.broker.image.feature(TRANSACTION_VERSION) == level
    cluster.clock.advance(2 * TIMEOUT_SWEEP_MS)
    metadata = _entry(cluster).metadata
    assert (metadata.state, metadata.client_transaction_version) == (COMPLETE_ABORT, 2 if level == 2 else 0)


def test_a_closed_service_sweeps_no_more(cluster: MemoryCluster) -> None:
    _begin(cluster, T0, timeout_ms=2000)
    cluster.broker.coordinators.transactions.close()
    cluster.clock.advance(10 * TIMEOUT_SWEEP_MS)
    assert _markers(cluster, *T0) == []


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_nothing_is_listed_while_a_shard_is_loaded(cluster: MemoryCluster) -> None:
    _begin(cluster, T0)
    service = cluster.broker.coordinators.transactions
    assert [name for name, _ in service.entries()] == [ID]
    keep_loading(service.host, 7)
    with pytest.raises(ApiError) as caught:
        service.entries()
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("name", [None, ID])
def test_the_first_request_waits_for_a_block_of_producer_ids(cluster: MemoryCluster, name: str | None) -> None:
    block: Deferred[tuple[int, int]] = Deferred()
    cluster.broker.producer_ids = ProducerIdBlocks(lambda: block)
    waiting = cluster.broker.coordinators.transactions.init_producer_id(name, 60_000, None)
    assert not waiting.done
    block.resolve((5000, 1000))
    assert waiting.result() == (5000, 0)


def _hold_replication(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on nothing is replicated until the result is called."""
    index = cluster.broker.coordinators.transactions.host.partition_for(ID)
    partition = cluster.broker.partition(TRANSACTION_STATE_TOPIC, index)
    image = cluster.broker.image.partition(TRANSACTION_STATE_TOPIC, index)
    assert image is not None
    monkeypatch.setattr(PartitionLog, "update_high_watermark", lambda *_: False)

    def release() -> None:
        monkeypatch.undo()
        partition.follow(replace(image, partition_epoch=partition.partition_epoch + 1))

    return release


def test_state_moves_once_the_record_is_replicated(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = _init(cluster)
    service = cluster.broker.coordinators.transactions
    release = _hold_replication(cluster, monkeypatch)
    added = service.add_partitions(ID, producer, [T0], transaction_version=0)
    assert not added.done
    assert _entry(cluster).metadata.state is EMPTY
    with pytest.raises(ApiError) as caught:
        service.add_partitions(ID, producer, [T1], transaction_version=0)
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    with pytest.raises(ApiError) as caught:
        _init(cluster)
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    release()
    assert added.done
    assert _entry(cluster).metadata.state is ONGOING


def test_leadership_lost_while_a_record_is_on_its_way(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = _init(cluster)
    release = _hold_replication(cluster, monkeypatch)
    added = cluster.broker.coordinators.transactions.add_partitions(ID, producer, [T0], transaction_version=0)
    cluster.broker.coordinators.transactions.resigned(partition_for(ID, 50))
    release()
    with pytest.raises(ApiError) as caught:
        added.result()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("refused_with", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_append(cluster: MemoryCluster, refused_with: ErrorCode, told: ErrorCode) -> None:
    producer = _init(cluster)
    with refused_appends(TRANSACTION_STATE_TOPIC, refused_with):
        added = cluster.broker.coordinators.transactions.add_partitions(ID, producer, [T0], transaction_version=0)
    with pytest.raises(ApiError) as caught:
        added.result()
    assert caught.value.code is told
    cluster.broker.coordinators.transactions.add_partitions(ID, producer, [T0], transaction_version=0).result()


def test_a_completion_that_cannot_be_logged_is_tried_again(cluster: MemoryCluster) -> None:
    service = cluster.broker.coordinators.transactions
    service.effects.hold()
    _end(cluster, _begin(cluster, T0))
    with refused_appends(TRANSACTION_STATE_TOPIC):
        service.effects.release()
        cluster.timers.advance(1000)
        assert _entry(cluster).metadata.state is PREPARE_COMMIT
        with pytest.raises(ApiError) as caught:
            _init(cluster)
        assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.timers.advance(1000)
    assert _entry(cluster).metadata.state is COMPLETE_COMMIT
    assert len(_markers(cluster, *T0)) == 1


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_the_marker_of_the_offsets_topic_reaches_the_group_coordinator(cluster: MemoryCluster) -> None:
    cluster.broker.create_topics([CONSUMER_OFFSETS_TOPIC]).result()
    ended: list[tuple[int, int, int, bool]] = []
    groups = cluster.broker.coordinators.groups
    complete = groups.complete_transaction

    def watched(index: int, producer_id: int, epoch: int, committed: bool) -> None:
        ended.append((index, producer_id, epoch, committed))
        complete(index, producer_id, epoch, committed)

    groups.complete_transaction = watched  # type: ignore[method-assign, assignment]
    producer = _begin(cluster, (CONSUMER_OFFSETS_TOPIC, 3), T0)
    _end(cluster, producer)
    assert ended == [(3, producer.producer_id, 0, True)]
    assert len(_markers(cluster, CONSUMER_OFFSETS_TOPIC, 3)) == 1


def test_data_under_the_transaction_is_stable_once_it_ended(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    partition = cluster.broker.partition(*T0)
    guard = partition.log.producers.start_verification(producer.producer_id, 0, 0, False, cluster.clock.now_ms())
    batch = build_batch(
        [Record(0, cluster.clock.now_ms(), b"k", b"v", [])],
        producer_id=producer.producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    partition.append(batch, origin=Origin.CLIENT, guard=guard)
    assert (partition.log.last_stable_offset, partition.log.high_watermark) == (0, 1)
    _end(cluster, producer)
    assert (partition.log.last_stable_offset, partition.log.high_watermark) == (2, 2)


def test_a_transaction_that_cannot_be_aborted_yet_does_not_keep_others_open(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = cluster.broker.coordinators.transactions
    names = [f"tx{number}" for number in range(4)]
    for name in names:
        producer = service.init_producer_id(name, 1000, None).result()
        service.add_partitions(name, producer, [T0], transaction_version=0).result()
    abort = expiry.abort_timed_out

    def all_but_two(shard: Any, name: str, **options: Any) -> Any:
        if name in names[:2]:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id is at hand")
        return abort(shard, name, **options)

    monkeypatch.setattr(expiry, "abort_timed_out", all_but_two)
    cluster.timers.advance(TIMEOUT_SWEEP_MS)
    states = [service.describe(name).metadata.state for name in names]
    assert states == [ONGOING, ONGOING, COMPLETE_ABORT, COMPLETE_ABORT]
    monkeypatch.undo()
    cluster.timers.advance(TIMEOUT_SWEEP_MS)
    assert {service.describe(name).metadata.state for name in names} == {COMPLETE_ABORT}
