"""Options of the Spark data source `kafka-topics`: those of Spark's own connector by their names, and some more.

A table beside Spark's own is in docs/how-to/topics-on-spark.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from minibroker.client.security import Security
from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from minibroker.kernel.outside_json import parse_json
from minibroker_pipeline.topics import TIMEOUT_MS

NAME: Final = "kafka-topics"
_ALIASES: Final = {"kafka.bootstrap.servers": "bootstrap", "topics": "subscribe", "kafka.isolation.level": "isolation"}
_COMMON: Final = (
    "bootstrap",
    "subscribe",
    "subscribePattern",
    "assign",
    "isolation",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "timeoutMs",
)
_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OF_TABLES: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SECURITY: Final = ("kafka.security.protocol", "kafka.sasl.", "kafka.ssl.")
_CLIENT_ID: Final = "kafka.client.id"
_NO_GROUP: Final = "offsets are kept in Spark's checkpoint, and no consumer group is used"
_WAITING: Final = "timeoutMs says how long a request is tried again"
_NOT_HERE: Final = {
    "groupidprefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafkaconsumer.polltimeoutms": _WAITING,
    "fetchoffset.numretries": _WAITING,
    "fetchoffset.retryintervalms": _WAITING,
}
"""Options of Spark's connector that have no meaning here, and why."""
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FIFTEEN_MINUTES: Final = 900_000

Partitions = Mapping[str, Mapping[int, int]]
"""Topic → partition → offset, or time in ms."""


@dataclass(frozen=True)
class Subscription:
    """What is read: these topics, those whose whole name matches a pattern, or these partitions of topics."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, frozenset[int]] | None = None

    def names(self) -> list[str] | None:
        """The topics, None where the cluster's topics decide."""
        if self.pattern is not None:
            return None
        return sorted(self.assigned) if self.assigned is not None else list(self.topics)

    def includes(self, topic: str) -> bool:
        """Whether a topic of this name is read, or some of its partitions."""
        names = self.names()
        return bool(self.matching([topic])) if names is None else topic in names

    def matching(self, topics: Collection[str]) -> list[str]:
        """Those that the pattern matches."""
        return sorted(topic for topic in topics if self.pattern is not None and re.fullmatch(self.pattern, topic))

    def chosen(self, places: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Of these partitions, those that are read. Raises ValueError for assigned ones that are missing."""
        if self.assigned is None:
            return list(places)
        for topic in {topic for topic, _ in places}:
            if absent := self.assigned.get(topic, frozenset()) - {number for name, number in places if name == topic}:
                raise ValueError(f"{NAME}: assign: topic {topic} has no partition {min(absent)}")
        return [(topic, number) for topic, number in places if number in self.assigned.get(topic, ())]


@dataclass(frozen=True)
class Bound:
    """Where reading begins or stops, as the option `option` says.

    everywhere: EARLIEST, LATEST or, with `by_time`, a time in ms; None where each partition has its own in `each`, in
        which -2 and -1 are EARLIEST and LATEST unless `by_time`.
    or_latest: what a partition without a record from that time on means: its end, or an error.
    """

    option: str
    everywhere: int | None = None
    each: Partitions = field(default_factory=dict)
    by_time: bool = False
    or_latest: bool = False

    def check(self, places: Collection[tuple[str, int]]) -> None:
        """Raises ValueError unless a bound by partition names these partitions and no others, as with Spark's own."""
        if self.everywhere is not None:
            return
        named = {(topic, partition) for topic, partitions in self.each.items() for partition in partitions}
        if absent := set(places) - named:
            raise ValueError(f"{NAME}: {self.option} must name every partition: {_place(min(absent))} is missing")
        if others := named - set(places):
            raise ValueError(f"{NAME}: {self.option}: {_place(min(others))} is not read, or not in the cluster")

    def at(self, topic: str, partition: int) -> int:
        """EARLIEST, LATEST, an offset or, with `by_time`, a time in ms."""
        return self.each[topic][partition] if self.everywhere is None else self.everywhere


@dataclass(frozen=True)
class TopicOptions:
    """The parsed options. Can be pickled. Numbers are counts or ms; None where there is no limit."""

    bootstrap: str
    subscription: Subscription
    isolation: int
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = _FIFTEEN_MINUTES
    timeout_ms: int = TIMEOUT_MS
    security: Security = field(default_factory=Security)
    client_id: str | None = None


def topic_options(options: Mapping[str, str], *, streaming: bool) -> TopicOptions:
    """Parse the options, whose names may have any case. Raises ValueError, naming the option."""
    texts = _known(options, streaming=streaming)
    choice = _Choices(texts)
    bootstrap = texts.get("bootstrap")
    if not bootstrap:
        raise ValueError(f"{NAME}: the option bootstrap, or kafka.bootstrap.servers, is needed")
    settings = {name.removeprefix("kafka."): text for name, text in texts.items() if name.startswith(_SECURITY)}
    least, most = choice.number("minOffsetsPerTrigger"), choice.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ValueError(f"{NAME}: minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    isolations = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
    return TopicOptions(
        bootstrap=bootstrap,
        subscription=_subscription(texts),
        isolation=isolations[choice.word("isolation", tuple(isolations))],
        starting=_starting(texts, choice, streaming=streaming),
        ending=_bound(texts, "ending", LATEST, {"latest": LATEST}, or_latest=True),
        fail_on_data_loss=choice.word("failOnDataLoss", ("true", "false")) == "true",
        include_headers=choice.word("includeHeaders", ("false", "true")) == "true",
        min_partitions=choice.number("minPartitions"),
        max_records_per_partition=choice.number("maxRecordsPerPartition"),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=choice.duration("maxTriggerDelay", _FIFTEEN_MINUTES),
        timeout_ms=choice.number("timeoutMs") or TIMEOUT_MS,
        security=Security.of(settings),
        client_id=texts.get(_CLIENT_ID),
    )


def _known(options: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """The options by lower-case name, aliases replaced. Raises ValueError for one that there is not."""
    here = {name.lower() for name in (*_COMMON, *(_OF_STREAMS if streaming else _OF_TABLES))}
    elsewhere = {name.lower(): name for name in (*_OF_STREAMS, *_OF_TABLES)}
    texts: dict[str, str] = {}
    for spelled, text in options.items():
        name = _ALIASES.get(spelled.lower(), spelled.lower())
        if name in _NOT_HERE:
            raise ValueError(f"{NAME}: option {spelled} is not there: {_NOT_HERE[name]}")
        if name in elsewhere and name not in here:
            raise ValueError(f"{NAME}: {elsewhere[name]} is for {'tables' if streaming else 'streams'}")
        if name not in here and name != _CLIENT_ID and not name.startswith(_SECURITY):
            there = ", ".join((*_COMMON, *(_OF_STREAMS if streaming else _OF_TABLES), _CLIENT_ID))
            raise ValueError(
                f"{NAME}: option {spelled} is not there; there are {there}, kafka.security.protocol, kafka.sasl.… and "
                "kafka.ssl.…"
            )
        if texts.setdefault(name, text) != text:
            raise ValueError(f"{NAME}: {name} is set twice, under two names: {texts[name]!r} and {text!r}")
    return texts


class _Choices:
    """Values of options, each checked.

    texts: by lower-case name.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def word(self, name: str, words: Sequence[str]) -> str:
        """In lower case, by default the first."""
        text = self._texts.get(name.lower(), words[0])
        if text.lower() not in words:
            raise ValueError(f"{NAME}: {name} {text!r} is none of {', '.join(words)}")
        return text.lower()

    def number(self, name: str) -> int | None:
        text = self._texts.get(name.lower())
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal()) or not int(text):
            raise ValueError(f"{NAME}: {name}={text}: expected a whole number from 1")
        return int(text)

    def duration(self, name: str, default: int) -> int:
        """ms."""
        text = self._texts.get(name.lower())
        if text is None:
            return default
        parts = re.fullmatch(r"(\d{1,15})\s*([a-z]+)", text.strip().lower(), re.ASCII)
        if parts is None or parts[2] not in _UNITS:
            raise ValueError(f"{NAME}: {name}={text}: expected a number with one of {', '.join(_UNITS)}, as 15m")
        return int(parts[1]) * _UNITS[parts[2]]


def _subscription(texts: Mapping[str, str]) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if texts.get(name.lower())]
    if len(chosen) != 1:
        stated = " and ".join(chosen) if chosen else "none"
        raise ValueError(f"{NAME}: one of subscribe, subscribePattern and assign is needed, not {stated}")
    text = texts[chosen[0].lower()]
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"{NAME}: subscribePattern {text!r}: {error}") from None
        return Subscription(pattern=text)
    if chosen[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise ValueError(f"{NAME}: subscribe={text}: no topic")
        return Subscription(topics=names)
    assigned = {topic: frozenset(numbers) for topic, numbers in _json_object("assign", text).items()}
    return Subscription(assigned=assigned)


def _starting(texts: Mapping[str, str], choice: _Choices, *, streaming: bool) -> Bound:
    or_latest = choice.word("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest"
    words = {"earliest": EARLIEST, "latest": LATEST}
    bound = _bound(texts, "starting", EARLIEST, words, or_latest=or_latest)
    offsets = (offset for partitions in bound.each.values() for offset in partitions.values())
    if not streaming and not bound.by_time and LATEST in (bound.everywhere, *offsets):
        raise ValueError(f"{NAME}: startingOffsets: latest, or -1, is for streams: a table would be empty")
    return bound


def _bound(texts: Mapping[str, str], side: str, default: int, words: Mapping[str, int], *, or_latest: bool) -> Bound:
    """Of the three options of a side, by Spark's precedence: one time, times by partition, offsets."""
    option = f"{side}Timestamp"
    if (text := texts.get(option.lower())) is not None:
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise ValueError(f"{NAME}: {option}={text}: expected milliseconds since 1970")
        return Bound(option, int(text), by_time=True, or_latest=or_latest)
    option = f"{side}OffsetsByTimestamp"
    if (text := texts.get(option.lower())) is not None:
        return Bound(option, each=_by_partition(option, text, least=0), by_time=True, or_latest=or_latest)
    option = f"{side}Offsets"
    text = texts.get(option.lower())
    if text is None:
        return Bound(option, default)
    if text.lower() in words:
        return Bound(option, words[text.lower()])
    if not text.lstrip().startswith("{"):
        raise ValueError(f"{NAME}: {option} {text!r} is none of {', '.join(words)} and no JSON object")
    return Bound(option, each=_by_partition(option, text, least=min(words.values())))


def _by_partition(option: str, text: str, *, least: int) -> dict[str, dict[int, int]]:
    example = '{"orders": {"0": 23, "1": 5}}'
    values: dict[str, dict[int, int]] = {}
    for topic, numbers in _json_object(option, text, dict, example).items():
        values[topic] = {}
        for partition, value in numbers.items():
            if (
                not (partition.isascii() and partition.isdecimal())
                or not _is_int(value)
                or not least <= value < 1 << 63
            ):
                raise ValueError(f"{NAME}: {option}: {topic}: {partition!r}: {value!r}; expected as {example}")
            values[topic][int(partition)] = value
    return values


def _json_object(
    option: str, text: str, kind: type[list[Any]] | type[dict[str, Any]] = list, example: str = '{"orders": [0, 1]}'
) -> dict[str, Any]:
    """A JSON object whose values are of `kind`; lists are of partition numbers."""
    try:
        content = parse_json(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not content or not all(map(_holds(kind), content.values())):
        raise ValueError(f"{NAME}: {option}={text}: expected JSON as {example}")
    return content


def _holds(kind: type[Any]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, kind) or not value:
            return False
        return kind is dict or all(_is_int(number) and 0 <= number < 1 << 31 for number in value)

    return check


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _place(place: tuple[str, int]) -> str:
    return f"{place[0]}-{place[1]}"


def option_names() -> Iterator[str]:
    """All names of options of this source, for the test that the page lists them."""
    yield from (*_COMMON, *_OF_STREAMS, *_OF_TABLES, *_ALIASES, _CLIENT_ID)
