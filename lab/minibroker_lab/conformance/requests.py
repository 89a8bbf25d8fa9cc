"""The short form of a request: `at: t/0@5` and `batch:` become the body's topics and partitions."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from .batches import batch_bytes
from .failure import ScenarioError
from .values import resolve

_TARGET = re.compile(r"(?P<topic>.*)/(?P<partition>-?\d+)(?:@(?P<at>.*))?", re.DOTALL)
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A partition and the number after `@`: a fetch offset, committed offset, timestamp or leader epoch."""

    topic: str
    partition: int
    at: int | None


def targets(at: str | list[str], variables: Mapping[str, Any]) -> list[Target]:
    """`t/0@5`, or several; `t` is a topic variable or a name."""
    targets = []
    for text in at if isinstance(at, list) else [at]:
        match = _TARGET.fullmatch(str(text))
        if match is None:
            raise ScenarioError(f"at: {text!r} is not topic/partition or topic/partition@number")
        topic, number = match["topic"], match["at"]
        name = variables[topic] if topic in variables else resolve(topic, variables, strict=True)
        targets.append(
            Target(
                str(name),
                int(match["partition"]),
                None if number is None else int(resolve(number, variables, strict=True)),
            )
        )
    return targets


def topic_id(name: str, variables: Mapping[str, Any]) -> str:
    """The id of the topic that a variable `t` names, which is in `t.id`; else one that no broker has given to a topic:
    the zero id may stand for a topic without a name, which some brokers create."""
    for variable, value in variables.items():
        if value == name and f"{variable}.id" in variables:
            return str(variables[f"{variable}.id"])
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def request_body(
    api: str, version: int, step: Mapping[str, Any], variables: Mapping[str, Any], now_ms: Callable[[], int]
) -> Body:
    """The whole body of a step's request, in the schema's field names."""
    body: Body = dict(resolve(step.get("req") or {}, variables, strict=True))
    extra: Body = dict(resolve(step.get("part") or {}, variables, strict=True))
    at = step.get("at")
    if api == "Produce":
        _produce(body, step, variables, now_ms)
    elif at is not None:
        if api not in _SHORT_FORMS:
            raise ScenarioError(f"at: {api} has no short form; there is one for {', '.join(sorted(_SHORT_FORMS))}")
        grouped: dict[str, list[Target]] = {}
        for target in targets(at, variables):
            grouped.setdefault(target.topic, []).append(target)
        _SHORT_FORMS[api](_Request(version, body, grouped, extra, variables))
    return body


def _produce(body: Body, step: Mapping[str, Any], variables: Mapping[str, Any], now_ms: Callable[[], int]) -> None:
    body.setdefault("acks", -1)
    body.setdefault("timeoutMs", 5000)
    at = step.get("at")
    if at is None:
        body.setdefault("topicData", [])
        return
    pairs = at.items() if isinstance(at, dict) else [(at, step["batch"] if "batch" in step else step.get("batches"))]
    topics: dict[str, Body] = {}
    for text, specs in pairs:
        (target,) = targets(text, variables)
        specs = resolve(specs, variables, strict=True)
        records = None
        if specs is not None:
            records = b"".join(batch_bytes(spec, now_ms) for spec in (specs if isinstance(specs, list) else [specs]))
        topic = topics.setdefault(
            target.topic,
            {"name": target.topic, "topicId": topic_id(target.topic, variables), "partitionData": []},
        )
        topic["partitionData"].append({"index": target.partition, "records": records})
    body["topicData"] = list(topics.values())


@dataclass(frozen=True, slots=True)
class _Request:
    version: int
    body: Body
    grouped: dict[str, list[Target]]
    extra: Body
    variables: Mapping[str, Any]

    def topics(
        self, make: Callable[[Target], Any], *, name: str = "name", partitions: str = "partitions", ids: bool = False
    ) -> list[Body]:
        """One entry a topic; `make` gives a partition's entry, to which the step's `part` is added."""
        made = []
        for topic, of_topic in self.grouped.items():
            entries = [make(target) for target in of_topic]
            entry: Body = {
                name: topic,
                partitions: [item | self.extra if isinstance(item, dict) else item for item in entries],
            }
            if ids:
                entry["topicId"] = topic_id(topic, self.variables)
            made.append(entry)
        return made


PARTITION, AT, OFFSET = "partition", "the number after @", "the number after @, or 0"


class _Form(NamedTuple):
    """entry: what a partition becomes, alone or a mapping with PARTITION and AT in it.
    defaults: values of the request's other fields.
    """

    entry: Any
    defaults: Body = {}
    name: str = "name"
    partitions: str = "partitions"
    ids: bool = False


_FORMS = {
    "DeleteRecords": _Form({"partitionIndex": PARTITION, "offset": AT}, {"timeoutMs": 5000}),
    "DescribeProducers": _Form(PARTITION, partitions="partitionIndexes"),
    "Fetch": _Form(
        {"partition": PARTITION, "fetchOffset": OFFSET, "partitionMaxBytes": 1 << 20, "currentLeaderEpoch": -1},
        {"maxWaitMs": 100, "minBytes": 0, "maxBytes": 10 << 20},
        name="topic",
        ids=True,
    ),
    "ListOffsets": _Form({"partitionIndex": PARTITION, "timestamp": AT}, {"replicaId": -1}),
    "OffsetCommit": _Form({"partitionIndex": PARTITION, "committedOffset": AT, "committedMetadata": ""}, ids=True),
    "OffsetDelete": _Form({"partitionIndex": PARTITION}),
    "OffsetForLeaderEpoch": _Form({"partition": PARTITION, "leaderEpoch": AT}, {"replicaId": -2}, name="topic"),
    "TxnOffsetCommit": _Form({"partitionIndex": PARTITION, "committedOffset": AT, "committedMetadata": ""}, ids=True),
}


def _plain(request: _Request, form: _Form) -> None:
    def filled(entry: Any, target: Target) -> Any:
        if isinstance(entry, dict):
            return {key: filled(value, target) for key, value in entry.items()}
        if entry == PARTITION:
            return target.partition
        return _number(target) if entry == AT else target.at or 0 if entry == OFFSET else entry

    for key, value in form.defaults.items():
        request.body.setdefault(key, value)
    request.body["topics"] = request.topics(
        lambda target: filled(form.entry, target), name=form.name, partitions=form.partitions, ids=form.ids
    )


def _add_partitions(request: _Request) -> None:
    body = request.body
    topics = request.topics(lambda target: target.partition)
    identity = {key: body.pop(key) for key in ("transactionalId", "producerId", "producerEpoch") if key in body}
    if request.version >= 4:
        body["transactions"] = [identity | {"verifyOnly": body.pop("verifyOnly", False), "topics": topics}]
    else:
        body |= {f"v3AndBelow{key[0].upper()}{key[1:]}": value for key, value in identity.items()}
        body["v3AndBelowTopics"] = topics


def _offset_fetch(request: _Request) -> None:
    body = request.body
    topics = request.topics(lambda target: target.partition, partitions="partitionIndexes", ids=request.version >= 8)
    if request.version >= 8:
        body["groups"] = [{"groupId": body.pop("groupId", ""), "topics": topics} | request.extra]
    else:
        body["topics"] = topics


def _write_markers(request: _Request) -> None:
    markers = request.body.get("markers")
    if not isinstance(markers, list) or not markers:
        raise ScenarioError("at: WriteTxnMarkers needs req.markers, whose first one it is for")
    markers[0]["topics"] = request.topics(lambda target: target.partition, partitions="partitionIndexes")


def _number(target: Target) -> int:
    if target.at is None:
        raise ScenarioError(f"at: {target.topic}/{target.partition} needs a number: topic/partition@number")
    return target.at


_SHORT_FORMS: dict[str, Callable[[_Request], None]] = {
    **{api: partial(_plain, form=form) for api, form in _FORMS.items()},
    "AddPartitionsToTxn": _add_partitions,
    "OffsetFetch": _offset_fetch,
    "WriteTxnMarkers": _write_markers,
}
APIS_WITH_SHORT_FORM = frozenset({"Produce", *_SHORT_FORMS})
