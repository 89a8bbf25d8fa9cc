"""Operations on the state of a running cluster, in one table.

Every operation is a function of the cluster and keyword arguments of simple types, so that Python, HTTP, the command
line and the rules' action `do` share it. Raises FaultError for arguments that make no sense and ApiError for what the
cluster refuses.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import iscoroutine
from itertools import combinations
from typing import TYPE_CHECKING, Any

from minibroker.faults.group_operations import rebalance_group, remove_member
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.transport import CONTROLLER
from minibroker.kernel.words import near
from minibroker.metadata.image import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from minibroker_protocol.records import Record, build_batch, end_txn_marker
from minibroker_protocol.records.sequences import increment_sequence
from minibroker_storage.disk import RefusingDisk, StorageError, SyncFailed
from minibroker_storage.origin import Origin

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.cluster.cluster import Cluster
    from minibroker.coordinator_runtime.transaction_service import TransactionService
    from minibroker.coordinators.result import Effect
    from minibroker.coordinators.transactions.metadata import TransactionEntry
    from minibroker.coordinators.transactions.shard import TransactionShard
    from minibroker.partitions.partition import Partition

ClusterOperation = Callable[..., Any]

_CREATE_TOPICS_VERSION = 7
_DELETE_TOPICS_VERSION = 6
_CREATE_TIMEOUT_MS = 30_000
_FIRST_TIMEOUT_MS = 60_000  # of the transactions of an id, until its client says another

# The transaction.version from which every end of a transaction begins a producer epoch (KIP-890).
_BUMPS_EPOCHS = 2


# -- topics ------------------------------------------------------------------------------------------------------------


async def create_topic(cluster: Cluster, *, topic: str, partitions: int = 1, replication_factor: int = -1) -> None:
    """Create a topic (-1: the broker's default number of replicas); returns once its leaders are known."""
    named = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=replication_factor
    )
    await create_topics(cluster, [named])


async def create_topics(cluster: Cluster, topics: list[CreateTopicsRequest.CreatableTopic]) -> None:
    """Create topics; returns once their leaders are known. Raises ApiError for the first that is refused."""
    if not topics:
        return
    response = await cluster.controller.handle(
        CreateTopicsRequest(topics=topics, timeout_ms=_CREATE_TIMEOUT_MS), _CREATE_TOPICS_VERSION
    )
    assert isinstance(response, CreateTopicsResponse)
    for result in response.topics:
        if result.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(result.error_code), result.error_message or result.name or "")


async def delete_topics(cluster: Cluster) -> None:
    """Delete every topic but the internal ones."""
    names = [topic.name for topic in cluster.image.topics.values() if topic.name not in INTERNAL_TOPICS]
    if not names:
        return
    response = await cluster.controller.handle(
        DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names], timeout_ms=_CREATE_TIMEOUT_MS
        ),
        _DELETE_TOPICS_VERSION,
    )
    assert isinstance(response, DeleteTopicsResponse)
    for result in response.responses:
        if result.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(result.error_code), result.error_message or "")


# -- partitions --------------------------------------------------------------------------------------------------------


def lose_producer_state(cluster: Cluster, *, topic: str, partition: int, producer_id: int | None = None) -> list[int]:
    """Make the leader forget one producer id, or all of them, as when its state was lost. Returns the forgotten ids."""
    led = leading_partition(cluster, topic, partition)
    gone = led.log.producers.forget(producer_id)
    led.notify()
    return gone


def lose_producers(cluster: Cluster, *, topic: str, partition: int, cause: str, offset: int | None = None) -> list[int]:
    """Make the leader lose producers by `cause`: expiration, retention, delete-records or lost-tail (from `offset` on).
    After the last three it has what a replica made by reassignment has: the producers of the records that are left, and
    a new leader epoch. Returns their ids."""
    from minibroker.partitions import producer_loss

    led = leading_partition(cluster, topic, partition)
    cluster.controller  # noqa: B018  (raises while there is no controller to begin an epoch)
    try:
        lost = producer_loss.lose_producers(led, cause, now_ms=cluster.clock.now_ms(), offset=offset)  # type: ignore[arg-type]
    except ValueError as error:
        raise FaultError(str(error)) from None
    if cause != "expiration":
        cluster.elect_again(topic, partition)
    return lost


def set_sequence(cluster: Cluster, *, topic: str, partition: int, producer_id: int, last_sequence: int) -> None:
    """Set a producer's last sequence on the leader, such as one just before 2147483647, where it wraps."""
    if not 0 <= last_sequence <= 2**31 - 1:
        raise FaultError(f"a sequence is between 0 and 2147483647, not {last_sequence}")
    try:
        leading_partition(cluster, topic, partition).log.producers.renumber(producer_id, last_sequence)
    except KeyError:
        raise FaultError(f"{topic}-{partition} remembers no batch of producer {producer_id}") from None


def truncate_tail(cluster: Cluster, *, topic: str, partition: int, offset: int) -> int:
    """Truncate the leader's log to `offset` and begin a new leader epoch there, as an unclean election would:
    acknowledged records are lost, followers truncate theirs and join the in-sync set again. Returns the new end."""
    led = leading_partition(cluster, topic, partition)
    if offset < led.log.log_start_offset:
        raise FaultError(f"{topic}-{partition} starts at {led.log.log_start_offset}, above {offset}")
    cluster.controller  # noqa: B018  (raises while there is no controller to begin the epoch)
    led.lose_tail(offset)
    cluster.elect_again(topic, partition)
    return led.log.log_end_offset


def delete_records(cluster: Cluster, *, topic: str, partition: int, offset: int = -1) -> int:
    """Move the log start up to `offset` (-1: the high watermark), as DeleteRecords does. Returns the new start."""
    led = leading_partition(cluster, topic, partition)
    start = led.log.delete_records(offset)
    led.notify()
    return start


async def append_aborted(cluster: Cluster, *, topic: str, partition: int, value: str = "aborted") -> int:
    """Append an aborted transaction of a new producer to a partition: one record and its marker, which has the next
    producer epoch with transaction.version 2. Returns the record's offset."""
    led = leading_partition(cluster, topic, partition)
    broker = cluster.brokers[led.broker_id]
    producer = await broker.coordinators.transactions.init_producer_id(None, 0, None)
    ids = producer.producer_id, producer.producer_epoch
    now_ms = cluster.clock.now_ms()
    records = [Record(0, now_ms, None, value.encode())]
    batch = build_batch(records, producer_id=ids[0], producer_epoch=ids[1], base_sequence=0, transactional=True)
    guard = led.log.producers.start_verification(*ids, 0, True, now_ms)
    offset = led.append(bytearray(batch), origin=Origin.CLIENT, guard=guard).base_offset
    version = cluster.image.feature("transaction.version")
    marker = end_txn_marker(
        producer_id=ids[0],
        producer_epoch=ids[1] + (1 if version >= _BUMPS_EPOCHS else 0),
        commit=False,
        coordinator_epoch=0,
        timestamp_ms=now_ms,
    )
    info = led.append(marker, origin=Origin.COORDINATOR, transaction_version=version)
    await led.when_high_watermark(info.last_offset + 1)
    return offset


async def hang_transaction(
    cluster: Cluster, *, topic: str, partition: int, transactional_id: str = "hanging", value: str = "hanging"
) -> int:
    """Leave a transaction open on a partition that its coordinator does not know of, as a batch does that arrives after
    its transaction's marker where partitions are not verified. Nothing ends it but an administrator's command. The id's
    own transaction must have ended; an unknown id gets a producer id first. Returns the record's offset."""
    led = leading_partition(cluster, topic, partition)
    await _need_transaction_topic(cluster)
    service = _coordinating(cluster, transactional_id).coordinators.transactions
    index, shard = service.host.shard_for(transactional_id)
    if transactional_id not in shard.entries:
        await service.claim(index, transactional_id, _FIRST_TIMEOUT_MS)
    entry = _ended(shard, transactional_id)
    producer_id, epoch = entry.metadata.producer_id, entry.epoch
    producers, now_ms = led.log.producers, cluster.clock.now_ms()
    if producers.has_open_transaction(producer_id, epoch):
        raise FaultError(f"a transaction of {transactional_id} is open on {topic}-{partition} already")
    before = producers.entry(producer_id)
    sequence = 0
    if before is not None and before.epoch == epoch and before.batches:
        sequence = increment_sequence(before.last_sequence, 1)
    batch = build_batch(
        [Record(0, now_ms, None, value.encode())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    guard = producers.start_verification(producer_id, epoch, sequence, True, now_ms)
    info = led.append(bytearray(batch), origin=Origin.CLIENT, guard=guard)
    await led.when_high_watermark(info.last_offset + 1)
    return info.base_offset


class _DiskFault(ApiError):
    """The error of a log that refuses writes because of a fault, not because of its disk."""


def fail_disk(
    cluster: Cluster, *, topic: str | None = None, partition: int | None = None, broker: int | None = None
) -> None:
    """Make the leader's log of one partition refuse every write (KAFKA_STORAGE_ERROR), or the whole disk of a broker
    fail every write with an I/O error, until `heal_disk`."""
    led = _one_partition(cluster, topic, partition, broker)
    if led is not None:
        # A sync that really failed stays the reason, so that `heal_disk` leaves it.
        led.log.offline = led.log.offline or _DiskFault(
            ErrorCode.KAFKA_STORAGE_ERROR, f"fault: the disk of {topic}-{partition} fails"
        )
    else:
        _disk(cluster, the_broker(cluster, broker)).refuse_writes(errno.EIO)


def fill_disk(cluster: Cluster, *, broker: int | None = None) -> None:
    """Make a broker's disk full: every write of every log and file there fails with ENOSPC until `heal_disk`. (A Kafka
    whose only log directory fails ends; here `kill_broker` does that.)"""
    _disk(cluster, the_broker(cluster, broker)).refuse_writes(errno.ENOSPC)


def heal_disk(
    cluster: Cluster, *, topic: str | None = None, partition: int | None = None, broker: int | None = None
) -> None:
    """Undo `fail_disk` or `fill_disk`."""
    led = _one_partition(cluster, topic, partition, broker)
    if led is None:
        node_id = the_broker(cluster, broker)
        _disk(cluster, node_id).refuse_writes(None)
        if node_id in cluster.brokers:
            _heal_logs(cluster.brokers[node_id].partitions(), _was_refused_a_write)
    else:
        # Another replica may lead since the fault.
        place = led.topic, led.index
        replicas = [replica for replica in _replicas(cluster) if (replica.topic, replica.index) == place]
        _heal_logs(replicas, lambda error: isinstance(error, _DiskFault) or _was_refused_a_write(error))


def _replicas(cluster: Cluster) -> Iterator[Partition]:
    return (replica for broker in cluster.brokers.values() for replica in broker.partitions())


def _heal_logs(partitions: Iterable[Partition], undone: Callable[[ApiError], bool]) -> None:
    for partition in partitions:
        if partition.is_open and partition.log.offline is not None and undone(partition.log.offline):
            partition.log.offline = None


def _was_refused_a_write(error: ApiError) -> bool:
    """Whether the partition went offline by a write that was refused. After a failed sync or a half-done change it
    stays offline until a restart."""
    return isinstance(error.__cause__, StorageError) and not isinstance(error.__cause__, SyncFailed)


def failed_disks(cluster: Cluster) -> list[int]:
    """Node ids of the brokers whose disk a fault makes fail or full."""
    return sorted(n.node_id for n in cluster.nodes if isinstance(n.disk, RefusingDisk) and n.disk.refused is not None)


def _one_partition(cluster: Cluster, topic: str | None, partition: int | None, broker: int | None) -> Partition | None:
    """The partition that the arguments name; None when they mean the whole disk of a broker."""
    if (topic is None) != (partition is None) or (topic is not None and broker is not None):
        raise FaultError("a topic and a partition are needed, or a broker")
    return None if topic is None or partition is None else leading_partition(cluster, topic, partition)


def _disk(cluster: Cluster, node_id: int) -> RefusingDisk:
    for node in cluster.nodes:
        if node.node_id == node_id:
            if not isinstance(node.disk, RefusingDisk):
                raise FaultError(f"the disk of broker {node_id} cannot be made to fail")
            return node.disk
    raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {node_id}")


# -- transactions ------------------------------------------------------------------------------------------------------


def expire_transactional_id(cluster: Cluster, *, transactional_id: str) -> None:
    """Make the coordinator forget a transactional id, as after transactional.id.expiration.ms. Its transaction must
    have ended."""
    from minibroker.coordinators.transactions import expiry

    service = _coordinating(cluster, transactional_id).coordinators.transactions
    index, shard = service.host.shard_for(transactional_id)
    _ended(shard, transactional_id)
    service.host.execute(index, expiry.forget(shard, [transactional_id]))


async def set_producer_epoch(cluster: Cluster, *, transactional_id: str, epoch: int) -> None:
    """Set the producer epoch of a transactional id, such as 32766, the last one a client can have. The next
    InitProducerId continues from there; a running producer is fenced. Its transaction must have ended. An unknown id
    gets a producer id first."""
    if not 0 <= epoch <= 32767:
        raise FaultError(f"an epoch is between 0 and 32767, not {epoch}")
    await _need_transaction_topic(cluster)
    service = _coordinating(cluster, transactional_id).coordinators.transactions
    index, shard = service.host.shard_for(transactional_id)
    if transactional_id not in shard.entries:
        await service.claim(index, transactional_id, _FIRST_TIMEOUT_MS)
    entry = _ended(shard, transactional_id)
    changed = entry.metadata._replace(producer_epoch=epoch, last_producer_epoch=-1)
    await service.host.execute(index, shard.write(entry, changed, None))


def hold_markers(cluster: Cluster, *, transactional_id: str | None = None) -> None:
    """Hold the transaction markers of one transactional id, or of all: transactions stay in PrepareCommit or
    PrepareAbort."""
    for broker in cluster.brokers.values():
        broker.coordinators.transactions.effects.hold(_sends_markers(transactional_id))


def release_markers(cluster: Cluster, *, transactional_id: str | None = None) -> list[str]:
    """Send the held markers of one transactional id; without one send all and stop holding. Returns the transactional
    ids."""
    wanted = None if transactional_id is None else _sends_markers(transactional_id)
    return _with_markers(effect for service in _services(cluster) for effect in service.effects.release(wanted))


def held_markers(cluster: Cluster) -> list[str]:
    """Transactional ids whose markers are held."""
    return sorted(_with_markers(effect for service in _services(cluster) for effect in service.effects.held))


def _sends_markers(transactional_id: str | None) -> Callable[[Effect], bool]:
    from minibroker.coordinators.transactions.effects import SendMarkers

    return lambda effect: isinstance(effect, SendMarkers) and transactional_id in (None, effect.transactional_id)


def _with_markers(effects: Iterable[Effect]) -> list[str]:
    from minibroker.coordinators.transactions.effects import SendMarkers

    return [effect.transactional_id for effect in effects if isinstance(effect, SendMarkers)]


# -- brokers -----------------------------------------------------------------------------------------------------------


def the_broker(cluster: Cluster, broker: int | None) -> int:
    """`broker`, or the only one there is. Raises FaultError when there are several to choose from."""
    if broker is not None:
        return broker
    ids = sorted(node.node_id for node in cluster.nodes)
    if len(ids) != 1:
        raise FaultError(f"broker is needed, one of {', '.join(map(str, ids))}")
    return ids[0]


async def stop_broker(cluster: Cluster, *, broker: int | None = None) -> None:
    """Stop a broker as SIGTERM does: it shuts down cleanly."""
    await cluster.stop_broker(the_broker(cluster, broker))


def kill_broker(cluster: Cluster, *, broker: int | None = None, unnoticed: bool = False) -> None:
    """Kill a broker as SIGKILL does: nothing is flushed or closed. `unnoticed`: the controller learns of it only when
    the broker's session times out."""
    cluster.kill_broker(the_broker(cluster, broker), unnoticed=unnoticed)


async def start_broker(cluster: Cluster, *, broker: int | None = None) -> None:
    """Start a stopped or killed broker again, with the data on its disk."""
    await cluster.start_broker(the_broker(cluster, broker))


def pause_broker(cluster: Cluster, *, broker: int | None = None) -> None:
    """Pause a broker as SIGSTOP does: connections stay open and new ones are accepted, but no request is processed."""
    cluster.pause_broker(the_broker(cluster, broker))


def resume_broker(cluster: Cluster, *, broker: int | None = None) -> None:
    """Resume a paused broker: requests received while paused are processed, in order."""
    cluster.resume_broker(the_broker(cluster, broker))


async def restart_broker(cluster: Cluster, *, broker: int | None = None, clean: bool = True) -> None:
    """Stop a broker, or kill it without `clean`, and start it again at once with the data on its disk."""
    node_id = the_broker(cluster, broker)
    if clean:
        await cluster.stop_broker(node_id)
    else:
        cluster.kill_broker(node_id)
    await cluster.start_broker(node_id)


def stop_controller(cluster: Cluster) -> None:
    """Stop the active controller: there are no elections, and requests for the controller wait."""
    cluster.stop_controller()


def start_controller(cluster: Cluster) -> None:
    """Start the next active controller, which reads the metadata journal."""
    cluster.start_controller()


def cut_link(cluster: Cluster, *, one: int, other: int) -> None:
    """Drop every message between two brokers, or a broker and the controller (-1), without an error."""
    cluster.cut_link(one, other)


def mend_link(cluster: Cluster, *, one: int, other: int) -> None:
    """Undo `cut_link`; held messages are delivered if their sender still waits."""
    cluster.mend_link(one, other)


def move_leader(cluster: Cluster, *, topic: str, partition: int, to: int) -> Deferred[None]:
    """Make broker `to` the leader of a partition."""
    return cluster.move_leader(topic, partition, to)


def move_coordinator(
    cluster: Cluster, *, to: int, transactional_id: str | None = None, group: str | None = None
) -> Deferred[None]:
    """Make broker `to` the coordinator of a transactional id or a group."""
    if (transactional_id is None) == (group is None):
        raise FaultError("move_coordinator needs a transactional_id or a group")
    if transactional_id is not None:
        return cluster.move_coordinator("transaction", transactional_id, to)
    assert group is not None
    return cluster.move_coordinator("group", group, to)


async def restore(cluster: Cluster) -> None:
    """Undo lasting faults: a stopped controller, cut links, failing disks, paused and stopped brokers, held markers.
    Rules and the clock are left as they are."""
    if not cluster.has_controller:
        cluster.start_controller()
    ends = [CONTROLLER, *(node.node_id for node in cluster.nodes)]
    for end, other in combinations(ends, 2):
        cluster.mend_link(end, other)
    for node_id in failed_disks(cluster):
        heal_disk(cluster, broker=node_id)
    _heal_logs(_replicas(cluster), lambda error: isinstance(error, _DiskFault))
    for node_id in cluster.paused_brokers:
        cluster.resume_broker(node_id)
    for node in cluster.nodes:
        if node.node_id not in cluster.brokers:
            await start_broker(cluster, broker=node.node_id)
    release_markers(cluster)


OPERATIONS: dict[str, ClusterOperation] = {
    function.__name__: function
    for function in (
        create_topic, lose_producer_state, lose_producers, set_sequence, truncate_tail, delete_records, append_aborted,
        hang_transaction, fail_disk, fill_disk, heal_disk,
        expire_transactional_id, set_producer_epoch, hold_markers, release_markers, held_markers,
        stop_broker, kill_broker, start_broker, restart_broker, pause_broker, resume_broker,
        rebalance_group, remove_member,
        restore, stop_controller, start_controller, cut_link, mend_link, move_leader, move_coordinator,
    )
}  # fmt: skip

_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}
_WORDS = {"str": "text", "int": "a whole number", "bool": "true or false", "float": "a number"}


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises FaultError unless `arguments` fit the operation."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise FaultError(f"there is no operation {name!r}{near(name, OPERATIONS)}")
    check_call(name, operation, arguments)


def check_call(name: str, function: ClusterOperation, arguments: Mapping[str, Any]) -> None:
    """Raises FaultError unless `arguments` fit the keyword parameters of the command `name`."""
    known = parameters(function)
    for argument, value in arguments.items():
        if argument not in known:
            has = ", ".join(known) or "no arguments"
            raise FaultError(f"{name} has no {argument!r}{near(argument, known) or f'; it has {has}'}")
        kind, _, optional = str(known[argument].annotation).partition(" | ")
        wanted = _KINDS.get(kind)
        if value is None and optional:
            continue
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise FaultError(f"{name}: {argument} is {_WORDS[kind]}, not {value!r}")
    for needed, parameter in known.items():
        if parameter.default is parameter.empty and needed not in arguments:
            raise FaultError(f"{name} needs {needed}")


def parameters(function: ClusterOperation) -> dict[str, inspect.Parameter]:
    """The keyword parameters of an operation."""
    declared = inspect.signature(function).parameters
    return {name: p for name, p in declared.items() if p.kind is p.KEYWORD_ONLY}


async def run_operation(cluster: Cluster, name: str, arguments: Mapping[str, Any]) -> Any:
    """Run the operation; its result, once it is done."""
    check_arguments(name, arguments)
    done = OPERATIONS[name](cluster, **arguments)
    return await done if isinstance(done, Deferred) or iscoroutine(done) else done


def leading_partition(cluster: Cluster, topic: str, partition: int) -> Partition:
    """The partition at its leader. Raises FaultError when there is none."""
    leader = cluster.image.leader_of(topic, partition)
    broker = cluster.brokers.get(leader) if leader is not None else None
    if broker is None:
        raise FaultError(f"{topic}-{partition} does not exist, or has no leader")
    return broker.partition(topic, partition)


def _services(cluster: Cluster) -> list[TransactionService]:
    """The transaction coordinators that were needed so far."""
    services = (broker.coordinators.transactions_if_any for broker in cluster.brokers.values())
    return [service for service in services if service is not None]


def _ended(shard: TransactionShard, transactional_id: str) -> TransactionEntry:
    """What is known of the id. Raises FaultError while its transaction has not ended."""
    from minibroker.coordinators.transactions.states import EXPIRABLE

    entry = shard.entry(transactional_id)
    if entry.metadata.state not in EXPIRABLE:
        raise FaultError(f"the transaction of {transactional_id} has not ended: {entry}")
    return entry


async def _need_transaction_topic(cluster: Cluster) -> None:
    """Create `__transaction_state`, as the first client that looks for a coordinator does."""
    if TRANSACTION_STATE_TOPIC not in cluster.image.topics and cluster.brokers:
        refused = await next(iter(cluster.brokers.values())).create_topics([TRANSACTION_STATE_TOPIC])
        if TRANSACTION_STATE_TOPIC in refused:
            raise ApiError(refused[TRANSACTION_STATE_TOPIC], f"{TRANSACTION_STATE_TOPIC} could not be created")


def _coordinating(cluster: Cluster, transactional_id: str) -> Broker:
    node = cluster.coordinator("transaction", transactional_id)
    broker: Broker | None = cluster.brokers.get(node) if node is not None else None
    if broker is None:
        raise FaultError(f"{transactional_id} has no coordinator")
    return broker
