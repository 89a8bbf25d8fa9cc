"""What a cluster waits for, in lines for a person: why a test hangs.

Read by `read.waits`. Waits that are a client's everyday life, such as a Fetch that waits for records, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.consumer.member import MemberState
from minibroker.coordinators.transactions import queries
from minibroker.faults.operations import failed_disks, held_markers
from minibroker.kernel.words import counted
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.cluster.cluster import Cluster
    from minibroker.coordinators.groups.consumer.group import ConsumerGroup
    from minibroker.coordinators.transactions.metadata import TransactionEntry
    from minibroker.faults.engine import FaultEngine
    from minibroker.trace.recorder import Recorder

_SHOWN: Final = 20
_ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_EVERYDAY: Final = "Fetch"


def waits(cluster: Cluster, recorder: Recorder | None, engine: FaultEngine, wall_ms: int) -> list[str]:
    """At most 20 lines of each kind; the first kinds explain the later ones."""
    kinds = (_cluster(cluster), *on_the_wire(recorder, engine, wall_ms), _transactions(cluster))
    return [line for kind in (*kinds, _partitions(cluster), _groups(cluster)) for line in islice(kind, _SHOWN)]


def on_the_wire(recorder: Recorder | None, engine: FaultEngine, wall_ms: int) -> Iterator[Iterator[str]]:
    """The kinds that are seen without looking into a broker."""
    return iter((_rules(engine), _requests(recorder, wall_ms)))


def _cluster(cluster: Cluster) -> Iterator[str]:
    if cluster.clock.frozen:
        yield "the broker clock is frozen: no transaction times out, nothing expires"
    if not cluster.has_controller:
        yield "the controller is stopped: requests for it wait"
    for node in cluster.nodes:
        if node.node_id not in cluster.brokers:
            yield f"broker {node.node_id} does not run"
    for node_id in cluster.paused_brokers:
        yield f"broker {node_id} is paused: it answers no request"
    for node_id in failed_disks(cluster):
        yield f"the disk of broker {node_id} refuses every write"


def _rules(engine: FaultEngine) -> Iterator[str]:
    for rule in engine.rules.values():
        if rule.held:
            yield f"rule {rule.number} ({rule.rule.action.name}) holds {counted(rule.held, 'request')}"


def _requests(recorder: Recorder | None, wall_ms: int) -> Iterator[str]:
    for recorded in () if recorder is None else tuple(recorder.last):
        if recorded.outcome == "waiting" and (recorded.api != _EVERYDAY or recorded.fault):
            held = f", held by rule {recorded.fault}" if recorded.fault else ""
            who = recorded.client_id or ":".join(map(str, recorded.client))
            waited = _seconds(wall_ms - recorded.time_ms)
            yield f"{recorded.api} of client {who} has waited {waited} for its answer{held}"


def _transactions(cluster: Cluster) -> Iterator[str]:
    held = set(held_markers(cluster))
    for broker in _awake(cluster):
        service = broker.coordinators.transactions_if_any
        for name, entry in [] if service is None else service.entries():
            if not queries.forgotten(entry) and entry.metadata.state.label not in _ENDED:
                yield _transaction(name, entry, cluster.clock.now_ms(), markers_held=name in held)


def _transaction(name: str, entry: TransactionEntry, now_ms: int, *, markers_held: bool) -> str:
    metadata, started = entry.metadata, queries.start_of(entry)
    since = f" for {_seconds(now_ms - started)}" if started >= 0 else ""
    why = "; its markers are held" if markers_held else ""
    return (
        f"transaction of {name} is {metadata.state.label}{since} (timeout {_seconds(metadata.timeout_ms)}) "
        f"on {', '.join(queries.places_of(entry)[:_SHOWN]) or 'no partition'}{why}"
    )


def _partitions(cluster: Cluster) -> Iterator[str]:
    for topic in cluster.image.topics.values():
        for image in () if topic.internal else topic.partitions:
            broker = cluster.brokers.get(image.leader)
            if broker is None:
                yield f"{topic.name}-{image.index} has no leader"
                continue
            with suppress(ApiError):  # it is about to begin, or to be deleted
                led = broker.partition(topic.name, image.index)
                if led.is_open and led.log.last_stable_offset < led.log.high_watermark:
                    owner = next(iter(led.log.producers.open_transactions().values()), -1)
                    yield (
                        f"read_committed consumers get nothing of {topic.name}-{image.index} from offset "
                        f"{led.log.last_stable_offset} on: a transaction of producer id {owner} is open"
                    )


def _groups(cluster: Cluster) -> Iterator[str]:
    for broker in _awake(cluster):
        service = broker.coordinators.groups_if_any
        for _, shard in [] if service is None else service.host.shards():
            for name, group in shard.groups.items():
                waited = _classic(group) if isinstance(group, ClassicGroup) else _consumer(group)
                if waited:
                    yield f"group {name} is {group.state_name}: it waits for {', '.join(waited[:_SHOWN])}"
        for client_id, name in [] if service is None else service.unused_lookups():
            yield (
                f"client {client_id} has looked up the coordinator of group {name}, which has no members and "
                "no offsets; if it is a share consumer: this broker has no share groups"
            )


def _classic(group: ClassicGroup) -> list[str]:
    members = group.members.values()
    if group.state is GroupState.PREPARING_REBALANCE:
        known = [
            f"a JoinGroup of {member.client_id} ({member.member_id})"
            for member in members
            if member.awaiting_join is None
        ]
        return known + [f"the second JoinGroup of {member_id}" for member_id in sorted(group.pending_joins)]
    if group.state is GroupState.COMPLETING_REBALANCE:
        return [
            f"a SyncGroup of {member.client_id} ({member.member_id})"
            + (", which leads and assigns" if member.member_id == group.leader_id else "")
            for member in members
            if member.awaiting_sync is None
        ]
    return []


def _consumer(group: ConsumerGroup) -> list[str]:
    return [
        f"{member.client_id} ({member.member_id}) to "
        + ("give up partitions" if member.state is MemberState.UNREVOKED_PARTITIONS else "get its partitions")
        for member in group.members.values()
        if not member.reconciled_to(group.target_epoch)
    ]


def _awake(cluster: Cluster) -> list[Broker]:
    return [broker for broker in cluster.brokers.values() if broker.node_id not in cluster.paused_brokers]


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.1f} s"
