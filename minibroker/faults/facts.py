"""The topics, groups, transactional ids and producers that a request is about, by the meaning of its fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from minibroker_protocol.dsl import Request
from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.records import CorruptBatch, iter_batches
from minibroker_protocol.structs import Struct, named_by, struct_of, struct_types

TopicName = Callable[[bytes], str | None]
"""Topic id → name."""

_COORDINATORS = {0: "groupId", 1: "transactionalId"}
"""What the keys of a FindCoordinator request of each type name (FindCoordinatorRequest.CoordinatorType)."""
_CARRIED = {
    "groupId": {"group"},
    "transactionalId": {"transactional_id"},
    "coordinatorKey": {"group", "transactional_id"},
    "producerId": {"producer_id"},
    "producerEpoch": {"producer_epoch"},
    "topicName": {"topic"},
    "topicId": {"topic"},
}
"""Entity → the fields of a rule that can match it."""


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
    _walk(request, facts, topic_name)
    return facts


@cache
def carried_by(request: type[Request]) -> frozenset[str]:
    """Which of a rule's fields a request of this kind can have at all."""
    names: set[str] = set()
    for kind in (request, *struct_types(request).values()):
        for field_ in kind.__fields__:
            names |= _CARRIED.get(field_.entity or "", set())
            if field_.records:
                names |= {"producer_id", "producer_epoch", "sequence"}
        is_topic = named_by(kind, "topicName") is not None or named_by(kind, "topicId") is not None
        if is_topic and any(_is_partitions(request, field_) for field_ in kind.__fields__):
            names.add("partition")
    return frozenset(names)


def _value_of(struct: Struct, entity: str) -> Any:
    name = named_by(type(struct), entity)
    return None if name is None else getattr(struct, name)


def _is_partitions(request: type[Request], field_: Field) -> bool:
    """Whether a list has partitions, as numbers or as structs."""
    item = struct_of(request, field_)
    return field_.array and (field_.entity == "partition" or (item is not None and bool(named_by(item, "partition"))))


def _walk(struct: Struct, facts: Facts, topic_name: TopicName) -> None:
    topic = _topic_of(struct, topic_name)
    if topic is not None:
        facts.partitions += _partitions(struct, topic)
    for field_ in struct.__fields__:
        value = getattr(struct, field_.name)
        if not value:
            continue
        entity = field_.entity
        if entity == "coordinatorKey":
            entity = _COORDINATORS.get(_value_of(struct, "coordinatorType"))
        if entity == "groupId":
            facts.groups += value if field_.array else [value]
        elif entity == "transactionalId":
            facts.transactional_ids += value if field_.array else [value]
        elif entity == "producerId" and field_.array:
            facts.producers += [ProducerFact(producer_id, -1) for producer_id in value]
        elif entity == "topicName" and field_.array:
            facts.partitions += [(text, -1) for text in value]
        elif field_.records:
            facts.producers += _batches(value)
        elif isinstance(value, Struct):
            _walk(value, facts, topic_name)
        elif field_.array and isinstance(value[0], Struct):
            for item in value:
                _walk(item, facts, topic_name)
    _add_producer(struct, facts)


def _add_producer(struct: Struct, facts: Facts) -> None:
    producer_id = _value_of(struct, "producerId")
    # An empty transactional id stands for a field that the request's version does not have; then the producer id is not
    # set either.
    if producer_id is not None and producer_id >= 0 and _value_of(struct, "transactionalId") != "":
        epoch = _value_of(struct, "producerEpoch")
        facts.producers.append(ProducerFact(producer_id, -1 if epoch is None else epoch))


def _topic_of(struct: Struct, topic_name: TopicName) -> str | None:
    name = _value_of(struct, "topicName")
    if name:
        return str(name)
    topic_id = _value_of(struct, "topicId")
    return None if topic_id is None or topic_id == NO_ID else topic_name(bytes(topic_id))


def _partitions(struct: Struct, topic: str) -> list[tuple[str, int]]:
    partitions = []
    for field_ in struct.__fields__:
        if field_.array:
            for item in getattr(struct, field_.name) or ():
                number = _value_of(item, "partition") if isinstance(item, Struct) else item
                if number is not None and (field_.entity == "partition" or isinstance(item, Struct)):
                    partitions.append((topic, number))
    return partitions or [(topic, -1)]


def _batches(records: Any) -> list[ProducerFact]:
    try:
        return [
            ProducerFact(b.producer_id, b.producer_epoch, b.base_sequence, b.last_sequence)
            for _, b in iter_batches(records)
            if b.producer_id >= 0
        ]
    except CorruptBatch:
        return []
