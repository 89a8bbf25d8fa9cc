"""What a request is about: topics, groups, transactional ids, producers. Found by the names of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from minibroker_protocol.dsl import Request
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import CorruptBatch, UnsupportedMagic, iter_batches
from minibroker_protocol.structs import Struct, struct_types

TopicName = Callable[[bytes], str | None]
"""Topic id → name."""

_COORDINATOR_GROUP, _COORDINATOR_TRANSACTION = 0, 1
_TOPIC_NAMES = ("name", "topic", "topic_name")
_PARTITION_LISTS = ("partitions", "partition_data", "partition_indexes", "partitions_with_epoch")
_PARTITION_NUMBERS = ("partition_index", "partition", "partition_id", "index")
_GROUPS = ("group_id", "group_ids", "groups_names")
_TRANSACTIONAL_IDS = ("transactional_id", "transactional_ids", "v3_and_below_transactional_id")
_PRODUCER_IDS = ("producer_id", "v3_and_below_producer_id")
_EPOCHS = ("producer_epoch", "v3_and_below_producer_epoch")
_OLD_MARK = "v3_and_below_transactional_id"
_OLD_NAMES = ("v3_and_below_producer_id", "v3_and_below_producer_epoch")
# Requests whose list of topics has another name than the rest, or whose `name` is none of a topic.
_NO_TOPICS = frozenset(
    {"DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "UpdateFeatures", "ApiVersions",
     "DescribeUserScramCredentials"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProducerFact:
    """A producer a request speaks for; the sequences, inclusive, of a batch, -1 without one."""

    producer_id: int
    epoch: int
    first_sequence: int = -1
    last_sequence: int = -1


@dataclass(slots=True)
class Facts:
    """Everything a rule can match on. Partition -1: the whole topic."""

    partitions: list[tuple[str, int]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    transactional_ids: list[str] = field(default_factory=list)
    producers: list[ProducerFact] = field(default_factory=list)


def facts_of(request: Request, topic_name: TopicName = lambda _: None) -> Facts:
    """What `request` is about. Record batches that cannot be read say nothing."""
    facts = Facts()
    if type(request).__name__ == "FindCoordinatorRequest":
        keys = [key for key in [request.key, *request.coordinator_keys] if key]  # type: ignore[attr-defined]
        found = facts.groups if request.key_type == _COORDINATOR_GROUP else facts.transactional_ids  # type: ignore[attr-defined]
        found += keys
        return facts
    _walk(request, facts, topic_name, topics=_name(type(request)) not in _NO_TOPICS)
    return facts


@cache
def carried_by(request: type[Request]) -> frozenset[str]:
    """Which of a rule's fields a request of this kind can have at all."""
    name = _name(request)
    if name == "FindCoordinator":
        return frozenset({"group", "transactional_id"})
    found: set[str] = set()
    if name == "DescribeGroups":
        found.add("group")
    for kind in _structs(request):
        fields = {f.name: f.annotation for f in kind.__fields__}
        if fields.keys() & {*_GROUPS}:
            found.add("group")
        if fields.keys() & {*_TRANSACTIONAL_IDS}:
            found.add("transactional_id")
        if fields.keys() & {*_PRODUCER_IDS}:
            found |= {"producer_id", "producer_epoch"}
        if "Records" in fields.values() or "Records | None" in fields.values():
            found |= {"producer_id", "producer_epoch", "sequence"}
        if name not in _NO_TOPICS and _is_topic(fields):
            found.add("topic")
            if fields.keys() & {*_PARTITION_LISTS}:
                found.add("partition")
    if name == "DeleteTopics":
        found.add("topic")
    return frozenset(found)


def _name(request: type[Request]) -> str:
    return request.__name__.removesuffix("Request")


def _structs(kind: type[Struct]) -> Iterator[type[Struct]]:
    yield kind
    for nested in struct_types(kind).values():
        yield from _structs(nested)


def _is_topic(fields: dict[str, str]) -> bool:
    names = fields.keys()
    return (
        "topic_id" in names
        or any(name in names for name in ("topic", "topic_name"))
        or ("name" in names and bool(names & {*_PARTITION_LISTS, "num_partitions", "count", "topic_id"}))
        or list(names) == ["name"]
    )


def _walk(struct: Struct, facts: Facts, topic_name: TopicName, *, topics: bool) -> None:
    fields = {f.name: f.annotation for f in struct.__fields__}
    producer_id = epoch = -1
    topic = _topic_of(struct, fields, topic_name) if topics and _is_topic(fields) else None
    if topic is not None:
        facts.partitions += _partitions(struct, fields, topic)
    for name in fields:
        value = getattr(struct, name)
        if name in _GROUPS:
            _collect(facts.groups, value)
        elif name in _TRANSACTIONAL_IDS:
            _collect(facts.transactional_ids, value)
        elif name in _OLD_NAMES and not getattr(struct, _OLD_MARK):
            continue  # a version that has no such field; the value is only its default
        elif name in _PRODUCER_IDS:
            producer_id = value
        elif name in _EPOCHS:
            epoch = value
        elif name == "records" and value is not None:
            facts.producers += _batches(value)
        elif name == "groups" and isinstance(value, list) and value and isinstance(value[0], str):
            _collect(facts.groups, value)
        elif name in ("topic_names", "subscribed_topic_names") and isinstance(value, list):
            facts.partitions += [(text, -1) for text in value]
        elif isinstance(value, Struct):
            _walk(value, facts, topic_name, topics=topics)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for item in value:
                _walk(item, facts, topic_name, topics=topics)
    if producer_id >= 0:
        facts.producers.append(ProducerFact(producer_id, epoch))


def _collect(found: list[str], value: Any) -> None:
    if isinstance(value, str):
        if value:
            found.append(value)
    elif value:
        found += value


def _topic_of(struct: Struct, fields: dict[str, str], topic_name: TopicName) -> str | None:
    for name in _TOPIC_NAMES:
        value = getattr(struct, name) if name in fields else None
        if isinstance(value, str) and value:
            return value
    topic_id = getattr(struct, "topic_id", NO_ID)
    return None if topic_id == NO_ID else topic_name(bytes(topic_id))


def _partitions(struct: Struct, fields: dict[str, str], topic: str) -> list[tuple[str, int]]:
    for name in _PARTITION_LISTS:
        if name not in fields:
            continue
        found = []
        for item in getattr(struct, name) or []:
            number = item if isinstance(item, int) else _number(item)
            if number is not None:
                found.append((topic, number))
        return found or [(topic, -1)]
    return [(topic, -1)]


def _number(item: Struct) -> int | None:
    for name in _PARTITION_NUMBERS:
        value = getattr(item, name, None)
        if isinstance(value, int):
            return value
    return None


def _batches(records: Any) -> list[ProducerFact]:
    try:
        return [
            ProducerFact(b.producer_id, b.producer_epoch, b.base_sequence, b.last_sequence)
            for _, b in iter_batches(records)
            if b.producer_id >= 0
        ]
    except (CorruptBatch, UnsupportedMagic):
        return []
