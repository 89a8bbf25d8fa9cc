"""The state of brokers, partitions, groups and transactional ids for the live page, read some rows at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.transactions.queries import forgotten, places_of, start_of
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.cluster.cluster import Cluster
    from minibroker.coordinators.groups.classic.member import ClassicMember
    from minibroker.coordinators.groups.consumer.member import ConsumerMember
    from minibroker.coordinators.groups.shard import GroupShard
    from minibroker.metadata.image import PartitionImage, TopicImage

Row = dict[str, Any]
"""kind: partition, group, transaction or broker; name; then either gone: true, for one that was removed, or its
state."""

GONE_KEPT: Final = 1000
"""Rows of what was removed that are kept for the pages that showed it: a page that is further behind begins again."""
AT_A_LOOK: Final = 250
"""Rows that are read in one turn of the loop: 2 to 3 ms."""
_SHOWN: Final = 50
"""Members, offsets and aborted ranges of one row."""


class LiveRows:
    """The rows as they were read last. Nothing is read while no page is open."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[int, Row]] = {}  # those that changed last are at the end
        self._version = 0
        self._gone: dict[tuple[str, str], None] = {}  # those that are removed, the oldest first
        self._forgotten = 0  # the version of the last removed row that is not kept
        self._seen: set[tuple[str, str]] = set()
        self._round = self._read()

    def look(self) -> None:
        """Read the next rows; after the last one comes the first again. On the cluster's thread."""
        rows = [*islice(self._round, AT_A_LOOK)]
        for row in rows:
            self._note(row)
        if len(rows) == AT_A_LOOK:
            return
        for kind, name in [key for key, (_, row) in self._rows.items() if key not in self._seen and "gone" not in row]:
            self._note({"kind": kind, "name": name, "gone": True})
        while len(self._gone) > GONE_KEPT:
            key = next(iter(self._gone))
            del self._gone[key]
            self._forgotten, _ = self._rows.pop(key)
        self._seen = set()
        self._round = self._read()

    def since(self, version: int) -> tuple[int, list[Row]] | None:
        """The version now, and the rows that have changed since an earlier one; 0 for all that are there.

        None where what was removed since that version is not known any more.
        """
        if 0 < version < self._forgotten:
            return None
        changed = []
        for at, row in reversed(self._rows.values()):
            if at <= version:
                break
            if version or "gone" not in row:
                changed.append(row)
        return self._version, changed[::-1]

    def _note(self, row: Row) -> None:
        key = row["kind"], row["name"]
        self._seen.add(key)
        before = self._rows.get(key)
        if before is None or before[1] != row:
            self._rows.pop(key, None)
            self._gone.pop(key, None)
            self._version += 1
            self._rows[key] = self._version, row
            if "gone" in row:
                self._gone[key] = None

    @abstractmethod
    def _read(self) -> Iterator[Row]:
        """Every row once; one that is added or removed in between may be missing."""


class LiveState(LiveRows):
    """The live rows of a minibroker cluster in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        super().__init__()

    def _read(self) -> Iterator[Row]:
        cluster = self._cluster
        leads: Counter[int] = Counter()
        for topic in sorted(cluster.image.topics.values(), key=lambda each: (each.internal, each.name)):
            for partition in topic.partitions:
                leads[partition.leader] += 1
                yield self._partition(topic, partition)
        for broker in list(cluster.brokers.values()):
            yield from _transactions(broker)
            yield from _groups(broker)
        for node in sorted(each.node_id for each in cluster.nodes):
            yield {
                "kind": "broker",
                "name": str(node),
                "leads": leads[node],
                "controller": cluster.has_controller and cluster.image.controller_id == node,
            }

    def _partition(self, topic: TopicImage, partition: PartitionImage) -> Row:
        row = {
            "kind": "partition",
            "name": f"{topic.name}-{partition.index}",
            "topic": topic.name,
            "partition": partition.index,
            "internal": topic.internal,
            "leader": partition.leader,
            "epoch": partition.leader_epoch,
            "isr": list(partition.isr),
            "replicas": list(partition.replicas),
        }
        broker = self._cluster.brokers.get(partition.leader)
        led = None
        with suppress(ApiError):  # it is about to begin, or to be deleted
            led = broker.partition(topic.name, partition.index) if broker is not None else None
        if led is not None and led.is_open:  # `log` would open it, which takes time and creates files
            log = led.log
            row["start"], row["end"] = log.log_start_offset, log.log_end_offset
            row["stable"], row["high"] = log.last_stable_offset, log.high_watermark
            row["open"] = [list(item) for item in islice(log.producers.open_transactions().items(), _SHOWN)]
            row["aborted"] = [[aborted.first_offset, aborted.last_offset] for aborted in log.last_aborted(_SHOWN)]
        return row


def _transactions(broker: Broker) -> Iterator[Row]:
    service = broker.coordinators.transactions_if_any
    for _, shard in [] if service is None else service.host.shards():
        for name, entry in list(shard.entries.items()):
            if not forgotten(entry):
                yield {
                    "kind": "transaction",
                    "name": name,
                    "state": entry.metadata.state.label,
                    "producer_id": entry.metadata.producer_id,
                    "epoch": entry.epoch,
                    "coordinator": broker.node_id,
                    "started": max(start_of(entry), 0),
                    "partitions": places_of(entry)[:_SHOWN],
                }


def _groups(broker: Broker) -> Iterator[Row]:
    service = broker.coordinators.groups_if_any
    for _, shard in [] if service is None else service.host.shards():
        for name in [*shard.groups.keys() | shard.offsets.group_ids()]:
            yield _group(name, shard, broker.node_id)


def _group(name: str, shard: GroupShard, coordinator: int) -> Row:
    group = shard.groups.get(name)
    row: Row = {"kind": "group", "name": name, "coordinator": coordinator, "state": "Empty", "members": []}
    if isinstance(group, ClassicGroup):
        row |= {"protocol": "classic", "state": group.state.value, "generation": group.generation_id}
    elif group is not None:
        row |= {"protocol": "consumer", "state": group.state_name, "generation": group.group_epoch}
    if group is not None:
        members: Iterable[ClassicMember | ConsumerMember] = group.members.values()
        row["count"] = len(group.members)
        row["members"] = [f"{member.client_id} {member.member_id}" for member in islice(members, _SHOWN)]
    committed = (
        (f"{topic}-{index}", committed_offset.offset)
        for topic, partitions in shard.offsets.group(name).items()
        for index, committed_offset in partitions.items()
    )
    row["committed"] = dict(islice(committed, _SHOWN))
    pending = (
        (f"{topic}-{index}", pending_offset.offset)
        for (topic, index), pending_offset in shard.offsets.pending_offsets(name)
    )
    row["pending"] = dict(islice(pending, _SHOWN))
    return row
