"""What a run came through: states, what came in them, and the ways from one to another, counted by name.

A name begins with its machine: ``transaction``, ``producer``, ``partition`` or ``group``. ``machine: state, event`` is
an event in a state, ``machine: state -> state`` a transition; everything else is an event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from minibroker.coordinators.hashing import partition_for
from minibroker.metadata.image import NO_LEADER, TRANSACTION_STATE_TOPIC, PartitionImage
from minibroker.rules.rows import TxnState
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ApiError
from minibroker_protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from minibroker_protocol.records import iter_batches

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker_lab.simulation.world import World

MACHINES = ("transaction", "producer", "partition", "group")
_GROUP_REQUESTS = (
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ConsumerGroupHeartbeatRequest,
    TxnOffsetCommitRequest,
)


class Coverage:
    """Looks at brokers when they take up a request; changes nothing (`minibroker_lab.simulation.world.Coverage`)."""

    def __init__(self, world: World) -> None:
        self._counts = world.history.counts
        self._world = world
        self._producers: dict[tuple[str, int, int], str] = {}

    # -- requests ------------------------------------------------------------------------------------------------------

    def served(self, node_id: int, request: Request) -> None:
        """A broker takes up a client's request."""
        broker = self._world.cluster.brokers.get(node_id)
        if broker is None:
            return
        if isinstance(request, ProduceRequest):
            self._produce(broker, request)
        elif isinstance(request, InitProducerIdRequest | EndTxnRequest | AddOffsetsToTxnRequest):
            if request.transactional_id is not None:
                self._transaction(broker, request.transactional_id, _event(request))
        elif isinstance(request, AddPartitionsToTxnRequest):
            self._transaction(broker, request.v3_and_below_transactional_id, _event(request))
        elif isinstance(request, _GROUP_REQUESTS):
            self._group(broker, request.group_id, _event(request))

    def _transaction(self, broker: Broker, transactional_id: str, event: str) -> None:
        index = partition_for(transactional_id, broker.partition_count(TRANSACTION_STATE_TOPIC, _PARTITIONS))
        shard = dict(broker.coordinators.transactions.host.shards()).get(index)
        entry = None if shard is None else shard.entries.get(transactional_id)
        state = "elsewhere" if shard is None else "unknown" if entry is None else entry.metadata.state.label
        if entry is not None and entry.volatile.pending_state is not None:
            state += " (changing)"
        self._counts[f"transaction: {state}, {event}"] += 1

    def _group(self, broker: Broker, group_id: str, event: str) -> None:
        shard = dict(broker.coordinators.groups.host.shards()).get(0)
        group = None if shard is None else shard.groups.get(group_id)
        state = "elsewhere" if shard is None else "unknown" if group is None else group.state_name
        self._counts[f"group: {state}, {event}"] += 1

    def _produce(self, broker: Broker, request: ProduceRequest) -> None:
        for topic in request.topic_data:
            for sent in topic.partition_data:
                try:
                    partition = broker.partition(topic.name, sent.index)
                    producers = partition.log.producers
                except ApiError:
                    self._counts["producer: elsewhere, batch"] += 1
                    continue
                assert sent.records is not None
                _, header = next(iter_batches(bytes(sent.records)))
                entry = producers.entry(header.producer_id)
                if entry is None:
                    state, event = "unknown", "first batch" if header.base_sequence == 0 else "later batch"
                else:
                    state = "in a transaction" if entry.current_txn_first_offset >= 0 else "known"
                    event = _batch(header.producer_epoch - entry.epoch, header.base_sequence, entry.last_sequence)
                self._counts[f"producer: {state}, {event}"] += 1
                key = topic.name, sent.index, header.producer_id
                before = self._producers.get(key, "unknown")
                if before != state:
                    self._counts[f"producer: {before} -> {state}"] += 1
                    self._producers[key] = state

    # -- the controller, and what logs hold ----------------------------------------------------------------------------

    def partition(self, before: PartitionImage | None, after: PartitionImage) -> None:
        """The controller changed a partition."""
        was, now = ("new" if before is None else _shape(before)), _shape(after)
        if was != now:
            self._counts[f"partition: {was} -> {now}"] += 1
        elif before is not None and before.leader != after.leader:
            self._counts[f"partition: {now}, new leader"] += 1

    def transactions(self, states: Iterable[TxnState]) -> None:
        """Every record of `__transaction_state`, of one replica, in order of offsets."""
        last: dict[str, str] = {}
        for state in states:
            before, now = last.get(state.transactional_id, "unknown"), state.state or "Dead"
            self._counts[f"transaction: {before} -> {now}"] += 1
            last[state.transactional_id] = now


_PARTITIONS = "transaction.state.log.num.partitions"


def _event(request: Request) -> str:
    name = type(request).__name__.removesuffix("Request")
    if isinstance(request, EndTxnRequest):
        return f"{name} commit" if request.committed else f"{name} abort"
    if isinstance(request, InitProducerIdRequest) and request.producer_epoch >= 0:
        return f"{name} with epoch"
    return name


def _batch(epochs: int, sequence: int, last: int) -> str:
    if epochs < 0:
        return "batch of an older epoch"
    if epochs > 0:
        return "new epoch" if sequence == 0 else "new epoch in the middle"
    if sequence == last + 1:
        return "next batch"
    return "batch again" if sequence <= last else "batch too early"


def _shape(partition: PartitionImage) -> str:
    shape = f"{len(partition.isr)} of {len(partition.replicas)} in sync"
    if partition.leader == NO_LEADER:
        shape += ", no leader"
    return shape + (", being moved" if partition.adding or partition.removing else "")


def report(counts: Counter[str]) -> list[str]:
    """What the runs came through, machine by machine, most frequent first: a lazy simulation shows here."""
    parts: dict[str, list[tuple[str, int]]] = {}
    for event, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        parts.setdefault(section(event), []).append((event, count))
    width = max(map(len, counts), default=0)
    lines = []
    for name in (*(f"{m}: {kind}" for m in MACHINES for kind in _KINDS), "events"):
        if name in parts:
            lines.append(f"-- {name} ({len(parts[name])})")
            lines += [f"{event:<{width}}  {count}" for event, count in parts[name]]
    return lines


_KINDS = ("events in states", "transitions")


def section(event: str) -> str:
    """The part of the report that an event belongs to."""
    machine = event.partition(":")[0]
    if machine not in MACHINES:
        return "events"
    return f"{machine}: {_KINDS['->' in event]}"


def sizes(counts: Counter[str]) -> dict[str, int]:
    """How many different ones each part of the report has."""
    return dict(Counter(section(event) for event in counts))
