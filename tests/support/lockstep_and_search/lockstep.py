"""Requests of every API to two brokers in lockstep: each answer compared, each difference put into a class.

What may differ and is not compared: times, addresses, sizes of the volume, and how long a change takes to be seen
(after a change both brokers have a moment to settle). Ids that a broker makes are compared by symbol, see
`lockstep_requests`. A difference ends its round: the next one has names of its own.
"""

from __future__ import annotations

import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lockstep_requests import (
    MEMBER,
    ODD_RESOURCES,
    OWN_MEMBERS,
    PRODUCER,
    SESSION,
    STRANGER,
    TOPIC_ID,
    Batch,
    Requests,
    World,
    named,
    oddities,
    symbol,
)

from minibroker.client.connection import Connection, ConnectionClosed, NoResponse
from minibroker.handlers.table import apis
from minibroker.kernel.addresses import parse_address
from minibroker.requests.api import Api
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import CorruptBatch, Record, build_batch, decode_records, iter_batches, write_crc
from minibroker_protocol.structs import Struct

NOT_COMPARED = frozenset(
    [
        "throttle_time_ms",
        "host",
        "port",
        "cluster_id",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "log_append_time_ms",
        "last_timestamp",
        "last_update_timestamp",
        "transaction_start_time_ms",
        "finalized_features_epoch",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "partition_size",
        "log_end_offset",
        "last_tick",
        "controller_epoch",
        "documentation",
        "client_host",
    ]
)
LATER = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
FAMILIES = (
    ("Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch", "DescribeProducers"),
    ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "EndTxn", "TxnOffsetCommit",
     "ListTransactions", "DescribeTransactions", "WriteTxnMarkers"),
    ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "OffsetDelete",
     "DescribeGroups", "ListGroups", "DeleteGroups", "TxnOffsetCommit", "FindCoordinator"),
    ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "OffsetCommit", "OffsetFetch", "DescribeGroups",
     "DeleteGroups"),
    ("CreateTopics", "DeleteTopics", "CreatePartitions", "Metadata", "DescribeTopicPartitions", "ElectLeaders",
     "AlterPartitionReassignments", "ListPartitionReassignments", "DescribeLogDirs"),
    ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "ListConfigResources"),
    ("DescribeAcls", "CreateAcls", "DeleteAcls"),
)  # fmt: skip
CHANGES = {
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs", "UpdateFeatures",
    "CreateAcls", "DeleteAcls", "EndTxn", "InitProducerId", "WriteTxnMarkers", "DeleteGroups", "ConsumerGroupHeartbeat",
}  # fmt: skip
INTERNAL = ("__consumer_offsets", "__transaction_state")
ANSWER_SECONDS, SETTLE_SECONDS = 4.0, 3.0
ROUND = 30


@dataclass
class Side:
    """One broker, and which of its own ids each symbol is."""

    address: str
    number: str = ""
    own: dict[str, list[Any]] = field(default_factory=dict)
    _connection: Connection | None = None

    def ask(self, request: Request, version: int) -> Any:
        """The response, "closed" or "silence"."""
        if self._connection is None:
            self._connection = Connection(parse_address(self.address), ANSWER_SECONDS)
        try:
            return self._connection.ask(request, version, "lockstep", ANSWER_SECONDS)
        except (ConnectionClosed, NoResponse) as ended:
            self.close()
            return "closed" if isinstance(ended, ConnectionClosed) else "silence"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wait(self, seconds: float) -> None:
        """Leave the broker some time."""
        time.sleep(seconds)

    def own_of(self, kind: str, shown: Any) -> Any:
        held = self.own.get(kind, [])
        return next((held[i] for i in range(len(held)) if symbol(kind, i) == shown), shown)

    def symbol_of(self, kind: str, own: Any) -> Any:
        """The symbol of an id; of a new one the next (both sides then learn as many)."""
        held = self.own.setdefault(kind, [])
        if own not in held:
            held.append(own)
        return symbol(kind, held.index(own))


_NAMES = ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name")
_KIND_OF_ENTITY = {"producerId": PRODUCER, "topicId": TOPIC_ID, "memberId": MEMBER}
_KIND_OF_NAME = {"session_id": SESSION, "leader": MEMBER}


def _kind(field_: Any) -> str | None:
    if field_.name in ("leader_id", "broker_id"):
        return None
    return _KIND_OF_NAME.get(field_.name) or _KIND_OF_ENTITY.get(field_.entity)


def for_side(value: Any, side: Side, kind: str | None = None) -> Any:
    """The request with this broker's ids."""
    if isinstance(value, Struct):
        values = {f.name: for_side(getattr(value, f.name), side, _kind(f)) for f in value.__fields__}
        return type(value)(**values)
    if isinstance(value, list):
        return [for_side(item, side, kind) for item in value]
    if isinstance(value, Batch):
        records = [Record(key=None, value=b"v%d" % i, timestamp=value.timestamp) for i in range(value.count)]
        batch = build_batch(
            records, producer_id=side.own_of(PRODUCER, value.producer_id), producer_epoch=value.producer_epoch,
            base_sequence=value.sequence, transactional=value.transactional,
        )  # fmt: skip
        if value.header is None:
            return batch
        position, code, number = value.header
        changed = bytearray(batch)
        struct.pack_into(f">{code}", changed, position, number)
        write_crc(changed, 0, len(changed))
        return bytes(changed)
    return value if kind is None else side.own_of(kind, value)


def plain(value: Any, side: Side, kind: str | None = None) -> Any:
    """An answer as dicts and lists with symbols, without what is not compared."""
    if isinstance(value, Struct):
        return {
            f.name: _records(getattr(value, f.name), side)
            if f.records
            else plain(getattr(value, f.name), side, _kind(f))
            for f in value.__fields__
            if f.name not in NOT_COMPARED
        }
    if isinstance(value, list):
        ours = [item for item in value if not _of_another_round(item, side)]
        if not ours or not isinstance(ours[0], (Struct, int, str)):
            return [plain(item, side, kind) for item in ours]
        # New ids have their symbols by name, and what is about the same thing is compared.
        items = [plain(item, side, kind) for item in sorted(ours, key=_name_of)]
        return sorted(items, key=lambda item: (named(item), repr(item)))
    if kind is None or value in (-1, -2, STRANGER, "", None, NO_ID) or (kind == SESSION and value == 0):
        return value
    if kind == MEMBER and value in OWN_MEMBERS:
        return value
    return side.symbol_of(kind, value)


def _name_of(item: Any) -> str:
    return next((str(getattr(item, name)) for name in _NAMES if isinstance(getattr(item, name, None), str)), "")


def _of_another_round(item: Any, side: Side) -> bool:
    name = item if isinstance(item, str) else None
    for field_ in _NAMES:
        name = name or getattr(item, field_, None)
    if name in ODD_RESOURCES and hasattr(item, "resource_name"):
        return True
    return isinstance(name, str) and bool(re.match(r"[tgxmn]\d+x\d+_", name)) and side.number not in name


def _records(buffers: Any, side: Side) -> Any:
    if not buffers:
        return None
    data = b"".join(bytes(b) for b in buffers) if isinstance(buffers, list) else bytes(buffers)
    batches = []
    try:
        for at, header in iter_batches(data):
            values = (
                [bytes(r.value or b"") for r in decode_records(data, at, header)] if not header.is_control else None
            )
            producer = header.producer_id
            producer = producer if producer < 0 or producer == STRANGER else side.symbol_of(PRODUCER, producer)
            batches.append((header.base_offset, header.last_offset, producer, header.producer_epoch,
                            header.base_sequence, header.is_transactional, values))  # fmt: skip
    except CorruptBatch:
        batches.append("cut")
    return batches


# -- classes of differences --------------------------------------------------------------------------------------------


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in theirs:
            yield from differences(ours[name], theirs[name], f"{path}.{name}" if path else name)
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{path}#", len(ours), len(theirs)
        else:
            for mine, other in zip(ours, theirs, strict=True):
                yield from differences(mine, other, path)
    elif ours != theirs:
        yield path, ours, theirs


def _shown(path: str, value: Any) -> str:
    if path.endswith("error_code") and isinstance(value, int) and value in ErrorCode._value2member_map_:
        return ErrorCode(value).name
    if path.endswith("message") and value:
        return "'" + re.sub(r"[tgxmn]\d+x\d+_\w*|\d+", "*", str(value)) + "'"
    if isinstance(value, (bytes, dict, list, tuple)):
        return type(value).__name__
    return repr(value)[:80]


def class_of(api: str, ours: Any, theirs: Any) -> str | None:
    """ "API path: Kafka's | ours" of the difference that says most; None for equal answers."""
    different = list(differences(ours, theirs))
    if not different:
        return None
    path, mine, other = min(different, key=lambda d: (not d[0].endswith("error_code"), d[0].endswith("message")))
    return f"{api} {path}: {_shown(path, other)} | {_shown(path, mine)}"


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """Requests by API, and the classes of differences with how often each came and one example."""

    requests: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


class Lockstep:
    """Two brokers, ours first, and one random source. The versions are those that both list."""

    def __init__(self, sides: Sequence[Side], seed: int) -> None:
        self.sides = sides
        self.random, self.seed = Random(seed), seed
        self.report = Report()
        self.round_number = 0
        self.subject = ""
        """What the next request is about, for a report; set by who chooses it."""
        unknown = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
        listed = [{k.api_key: k for k in side.ask(unknown, 3).api_keys} for side in self.sides]
        self.table: dict[str, tuple[Api, int, int]] = {}
        for key, api in apis().items():
            if all(key in keys for keys in listed) and api.name not in ("SaslHandshake", "SaslAuthenticate"):
                low = max(api.min_version, listed[-1][key].min_version)
                self.table[api.name] = api, low, min(keys[key].max_version for keys in listed)

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def run(self, focus: str, requests: int) -> None:
        """`requests` of one API, with others of its family in between."""
        family = next((f for f in FAMILIES if focus in f), (focus, "CreateTopics", "InitProducerId", "Produce"))
        while self.report.requests[focus] < requests:
            with self.round(focus, f"{self.seed}x{self.round_number + 1}_") as world:
                self._ask_for(focus, family, requests, world)

    @contextmanager
    def round(self, focus: str, number: str) -> Iterator[World]:
        """Topics and names of its own, which are gone afterwards, as are settings of the broker."""
        self.round_number += 1
        self._forget_broker_configs()
        world = World(number)
        self._prepare(world)
        yield world
        names = [*world.topics, *(f"{world.topics[2]}-{i}" for i in range(3))]
        for side in self.sides:
            side.ask(m.DeleteTopicsRequest(topic_names=names, timeout_ms=5000), 5)
        if focus == "UpdateFeatures":
            self._restore_features()
        self._forget_broker_configs()

    def _forget_broker_configs(self) -> None:
        resource = m.AlterConfigsRequest.AlterConfigsResource
        nothing = [resource(resource_type=4, resource_name=name, configs=[]) for name in ("", "1")]
        for side in self.sides:
            side.ask(m.AlterConfigsRequest(resources=nothing, validate_only=False), 2)

    def _restore_features(self) -> None:
        update = m.UpdateFeaturesRequest.FeatureUpdateKey
        for name, level in (("group.version", 1), ("transaction.version", 2)):
            wanted = [update(feature=name, max_version_level=level, upgrade_type=1)]
            for side in self.sides:
                side.ask(m.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=wanted), 1)

    def _ask_for(self, focus: str, family: tuple[str, ...], requests: int, world: World) -> None:
        for _ in range(ROUND):
            name = focus if self.random.random() < 0.5 else self.random.choice(family)
            if name not in self.table:
                continue
            if not self._step(name, world) or self.report.requests[focus] >= requests:
                return

    def _prepare(self, world: World) -> None:
        for side in self.sides:
            side.own, side.number = {}, f"{world.number}"
        topic = m.CreateTopicsRequest.CreatableTopic
        config = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")
        made = [
            topic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[config])
            for name, count in zip(world.topics[:2], (2, 1), strict=True)
        ]
        request = m.CreateTopicsRequest(topics=made, timeout_ms=5000, validate_only=False)
        for side in self.sides:
            assert all(t.error_code == 0 for t in side.ask(request, 7).topics)
        self._settle_topics(world)
        for kind, keys in ((0, world.groups), (1, world.ids)):
            find = m.FindCoordinatorRequest(key="", key_type=kind, coordinator_keys=keys)
            for side in self.sides:
                self._until(lambda side=side, find=find: all(c.error_code == 0 for c in side.ask(find, 4).coordinators))
        describe = m.DescribeGroupsRequest(groups=world.groups)
        for side in self.sides:  # while a coordinator loads, its answer to a heartbeat is NONE
            self._until(lambda side=side: not {g.error_code for g in side.ask(describe, 4).groups} & LATER)

    def _metadata(self, side: Side, world: World) -> Any:
        topic = m.MetadataRequest.MetadataRequestTopic
        names = [topic(name=name) for name in [*world.topics, *(f"{world.topics[2]}-{i}" for i in range(3)), *INTERNAL]]
        answer = side.ask(m.MetadataRequest(topics=names, allow_auto_topic_creation=False), 12)
        for name in [*world.topics[:2], *INTERNAL]:
            topic_id = next((t.topic_id for t in answer.topics if t.name == name and t.topic_id != NO_ID), None)
            if topic_id is None:
                break  # what comes later has its symbol after this one
            side.symbol_of(TOPIC_ID, topic_id)
        return sorted(
            (t.name, t.error_code, sorted((p.partition_index, p.error_code) for p in t.partitions))
            for t in answer.topics
        )

    def _settle_topics(self, world: World) -> None:
        def served(side: Side) -> bool:
            """Whether every partition that has a leader answers as one; DescribeProducers would not wait for that."""
            wanted = [
                (name, [index for index, _ in partitions])
                for name, code, partitions in self._metadata(side, world)
                if not code
            ]
            latest = m.ListOffsetsRequest.ListOffsetsPartition
            topics = [
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name=name, partitions=[latest(partition_index=index, timestamp=-1) for index in ids]
                )
                for name, ids in wanted
            ]
            answer = side.ask(m.ListOffsetsRequest(replica_id=-1, topics=topics), 7)
            return all(p.error_code == 0 for topic in answer.topics for p in topic.partitions)

        self._until(lambda: self._metadata(self.sides[0], world) == self._metadata(self.sides[-1], world))
        self._until(lambda: all(served(side) for side in self.sides))
        world.known[TOPIC_ID] = [symbol(TOPIC_ID, i) for i in range(len(self.sides[0].own.get(TOPIC_ID, [])))]

    def settle(self, name: str, world: World) -> None:
        """Leave a change the time to be seen."""
        if name not in CHANGES:
            return
        if name in ("CreateTopics", "DeleteTopics", "CreatePartitions"):
            self._settle_topics(world)
        elif name in ("EndTxn", "InitProducerId", "WriteTxnMarkers"):
            describe = m.DescribeTransactionsRequest(transactional_ids=world.ids)

            def done(side: Side) -> bool:
                return not any(
                    s.transaction_state.startswith("Prepare") for s in side.ask(describe, 0).transaction_states
                )

            self._until(lambda: all(done(side) for side in self.sides))
        elif name == "ConsumerGroupHeartbeat":
            groups = m.ConsumerGroupDescribeRequest(group_ids=world.groups, include_authorized_operations=False)

            def epochs(side: Side) -> list[tuple[int, int]]:
                return [(g.group_epoch, g.assignment_epoch) for g in side.ask(groups, 0).groups]

            # An expression is matched after the answer.
            self._until(lambda: epochs(self.sides[0]) == epochs(self.sides[-1]))
        else:
            self._wait(0.02)

    def _wait(self, seconds: float) -> None:
        for side in self.sides:
            side.wait(seconds)

    def _until(self, ready: Callable[[], bool]) -> None:
        seconds = SETTLE_SECONDS
        while not ready() and seconds > 0:
            self._wait(0.01)
            seconds -= 0.01

    def _step(self, name: str, world: World) -> bool:
        """One random request; False after a difference."""
        api, low, high = self.table[name]
        version = self.random.randint(low, high)
        return self.step(name, version, Requests(name, api.request, version, self.random, world).make(), world)

    def step(self, name: str, version: int, request: Any, world: World) -> bool:
        """One request to both; False after a difference."""
        answers = [self.answer(side, request, version) for side in self.sides]
        self.report.requests[name] += 1
        both = answers[0], answers[-1]
        self.answered(name, version, request, *both)
        ours, theirs = ([a, None] if isinstance(a, str) else ["answer", a] for a in both)
        class_ = (
            f"{name} outcome: {theirs[0]} | {ours[0]}" if ours[0] != theirs[0] else class_of(name, ours[1], theirs[1])
        )
        if class_ is not None:
            odd = oddities(request, version)
            class_ += f" ({', '.join(odd)})" if odd else ""
            self.report.classes[class_] += 1
            self.report.examples.setdefault(class_, f"v{version} {request}\n  Kafka: {theirs[1]}\n  ours:  {ours[1]}")
            return False
        if ours[1] is not None:
            learn(name, version, request, ours[1], world)
            for kind in (PRODUCER, MEMBER, SESSION):
                world.known[kind] = [symbol(kind, i) for i in range(len(self.sides[0].own.get(kind, [])))]
        self.settle(name, world)
        return True

    def answered(self, name: str, version: int, request: Struct, ours: Any, theirs: Any) -> None:
        """For who wants to keep it."""

    @staticmethod
    def answer(side: Side, request: Struct, version: int) -> Any:
        """What the broker says once it no longer puts the client off."""
        for _ in range(40):
            answer = side.ask(for_side(request, side), version)
            if isinstance(answer, str) or not _codes(answer) & LATER:
                break
            side.wait(0.05)
        return answer if isinstance(answer, str) else plain(answer, side)


def _codes(value: Any) -> set[int]:
    if isinstance(value, Struct):
        return {
            code
            for f in value.__fields__
            for code in ({getattr(value, f.name)} if f.name == "error_code" else _codes(getattr(value, f.name)))
        }
    return {code for item in value for code in _codes(item)} if isinstance(value, list) else set()


def learn(name: str, version: int, request: Any, answer: dict[str, Any], world: World) -> None:
    """What later requests should know of an answer that both brokers gave."""
    if answer.get("error_code"):
        return
    if (name == "InitProducerId" and request.transactional_id) or (
        name == "EndTxn" and version >= 5 and answer["producer_id"] >= 0
    ):
        world.producers[request.transactional_id] = answer["producer_id"], answer["producer_epoch"]
    elif name == "JoinGroup" and answer["member_id"]:
        held = world.members.setdefault(request.group_id, [])
        held[:] = [(member, answer["generation_id"]) for member, _ in held if member != answer["member_id"]]
        held.append((answer["member_id"], answer["generation_id"]))
    elif name == "ConsumerGroupHeartbeat":
        held = world.members.setdefault(request.group_id, [])
        held[:] = [pair for pair in held if pair[0] != answer["member_id"]]
        if answer["member_epoch"] >= 0 and answer["member_id"]:
            held.append((answer["member_id"], answer["member_epoch"]))
    elif name == "Produce":
        for topic in request.topic_data:
            for partition in topic.partition_data:
                batch = partition.records
                if isinstance(batch, Batch) and batch.sequence >= 0:
                    world.sequences[batch.producer_id, "", 0] = batch.sequence + batch.count
