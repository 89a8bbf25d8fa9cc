"""The lineage of an application: which input records its output records were made of.

By content, a key, a value, a header or a field of a JSON value that both sides have; or by position, where the output
names the place of its input, as `TOPIC-PARTITION@OFFSET`, in a header or a field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minibroker.rules.catalogue import NOTICE
from minibroker.rules.history_rules import RecordPosition, judge_lineage
from minibroker.rules.lineage_keys import POSITION, bytes_of, checked_key, place_of, values_of
from minibroker.rules.offset_rules import final_offsets
from minibroker.rules.rows import CONSUMER_OFFSETS, EVERYTHING, CommittedOffset, Finding, LogFacts, Transaction
from minibroker.rules.rules import finding
from minibroker_pipeline.files import Files, NotReadable, Part
from minibroker_pipeline.outcomes import Outcomes
from minibroker_pipeline.reading import PlainRecord, read_records
from minibroker_pipeline.topics import Topics

INPUT, OUTPUT = "input", "output"
UNSETTLED_INPUT, OPEN_OUTPUT = "unsettled input", "open output"
"""In a running cluster: input above the group's offset, of which there may be output; output that may commit."""

Bounds = Mapping[tuple[str, int], int]
"""(topic, partition) -> an offset."""
RowKey = tuple[int, bool, bytes]
"""The application's number, whether the record has a key, and the key. Spark sorts them when it spills."""
Row = tuple[RowKey, tuple[str, RecordPosition]]
"""(key, (side, place)): each record with a key, and the first of each part without."""


@dataclass(frozen=True)
class Lineage:
    """A consume-transform-produce application: each input record makes one output record, or is named by one.

    key: the value shared by input and output record (`lineage_keys.HOW`).

    With a `group` only input that it has consumed counts.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    key: str = "key"
    group: str | None = None

    @property
    def topics(self) -> frozenset[str]:
        return frozenset({*self.inputs, *self.outputs})


def lineage_of(text: str, key: str, group: str | None) -> Lineage:
    """Parse `--lineage IN[,IN]=OUT[,OUT]` and `--lineage-key`. Raises ValueError."""
    inputs, equals, outputs = text.partition("=")
    if not equals or not inputs or not outputs:
        raise ValueError(f"--lineage {text}: expected INPUT=OUTPUT, topics separated by commas")
    return Lineage(tuple(inputs.split(",")), tuple(outputs.split(",")), checked_key(key), group)


def read_order(lineages: Sequence[Lineage]) -> dict[str, int]:
    """Topic -> its place in the order in which the ends of logs that grow are asked for: input after its output."""
    order = {topic: 0 for lineage in lineages for topic in lineage.topics}
    for _ in lineages:
        for lineage in lineages:
            behind = 1 + max(order[topic] for topic in lineage.outputs)
            for topic in {*lineage.inputs} - {*lineage.outputs}:
                order[topic] = max(order[topic], behind)
    return order


def consumed(
    lineage: Lineage, commits: Iterable[CommittedOffset], transactions: Iterable[Transaction]
) -> Bounds | None:
    """Up to where the group has consumed; None without a group: everything. Raises NotReadable for a group without an
    offset in these topics, of which every output record would be called stray."""
    if lineage.group is None:
        return None
    offsets = [txn for txn in transactions if txn.log.topic == CONSUMER_OFFSETS]
    final = final_offsets(commits, offsets)
    own = {(c.topic, c.partition): c.committed for c in final if c.group == lineage.group}
    if not any(topic in lineage.inputs for topic, _ in own):
        raise NotReadable(
            f"--group {lineage.group}: no offset that it committed for {', '.join(lineage.inputs)} was read: is it the "
            f"name of the group, and are all partitions of {CONSUMER_OFFSETS} read (--topic, --partition)?"
        )
    return own


def beginnings(facts: Iterable[LogFacts]) -> dict[tuple[str, int], int]:
    """The offset from which each partition has all its records, in at least one replica."""
    begins: dict[tuple[str, int], int] = {}
    for fact in facts:
        place, begin = (fact.log.topic, fact.log.partition), max(fact.start_offset, fact.cleaned_offset)
        begins[place] = min(begin, begins.get(place, begin))
    return begins


class Deleted(NamedTuple):
    """Why a record's counterpart may be gone from the input, or from the output; empty where all of it is there."""

    inputs: str
    outputs: str


def deleted(lineage: Lineage, begins: Bounds) -> Deleted:
    """What retention or compaction took of the application's topics. Output that names the place of its input is not
    looked for where that is gone."""

    def reason(topics: Sequence[str]) -> str:
        for (topic, partition), begin in sorted(begins.items()):
            if topic in topics and begin > 0:
                return f"{topic}-{partition} " + (
                    "was compacted" if begin == EVERYTHING else f"starts at offset {begin}"
                )
        return ""

    return Deleted("" if lineage.key.startswith(POSITION) else reason(lineage.inputs), reason(lineage.outputs))


def lineage_rows(
    number: int,
    lineage: Lineage,
    files: Files | Topics,
    part: Part,
    outcomes: Outcomes,
    offsets: Bounds | None,
    begins: Bounds,
) -> Iterator[Row]:
    """The keys of a part's committed records; `number` is the application's.

    A running cluster was listed in the order of `read_order`: what the group had consumed has its output, with or
    without a marker, and all output has its input, consumed or not.
    """
    log = part.facts.log
    sides = [side for side, topics in ((INPUT, lineage.inputs), (OUTPUT, lineage.outputs)) if log.topic in topics]
    end = 1 << 62 if offsets is None else offsets.get((log.topic, log.partition), 0)
    running, untied = isinstance(files, Topics), {INPUT: False, OUTPUT: False}
    for record in read_records(files, part) if sides else ():
        if record.offset < part.facts.start_offset:
            continue
        committed = outcomes.committed(record)
        place = RecordPosition(log, record.offset)
        for side in sides:
            as_side = side
            if side == OUTPUT and not committed:
                as_side = OPEN_OUTPUT if running and outcomes.is_open(record) else ""
            elif side == INPUT and not (committed and record.offset < end):
                as_side = UNSETTLED_INPUT if running and committed else ""
            if as_side:
                keys = [*_keys(record, lineage, side, begins)]
                yield from (((number, True, key), (as_side, place)) for key in keys)
                if not keys and untied.get(as_side) is False and not lineage.key.startswith(POSITION):
                    untied[as_side] = True
                    yield (number, False, b""), (as_side, place)


def _keys(record: PlainRecord, lineage: Lineage, side: str, begins: Bounds) -> Iterator[bytes]:
    if not lineage.key.startswith(POSITION):
        yield from map(bytes_of, _values(record, lineage.key))
    elif side == INPUT:
        yield f"{record.log}@{record.offset}".encode()
    else:
        named = [place_of(value) for value in _values(record, lineage.key)]
        for place in named or [None]:
            if place is None:
                yield f"no position in {record.log}@{record.offset}".encode()
            elif place[0] not in lineage.inputs or place[2] >= begins.get(place[:2], 1 << 62):
                yield "{}-{}@{}".format(*place).encode()  # else it is gone, or its partition is not in the data


def _values(record: PlainRecord, how: str) -> Iterator[Any]:
    return values_of(how, record.key, record.value, record.headers)


def judge_key(row_key: RowKey, rows: Iterable[tuple[str, RecordPosition]], gone: Deleted) -> list[Finding]:
    """`judge_lineage` over what `lineage_rows` gave for one key; replicas of a record are one. What a deleted record
    would explain is a notice."""
    _, tied, key = row_key
    if not tied:
        return _untied(rows)
    sides: dict[str, dict[tuple[str, int, int], RecordPosition]] = defaultdict(dict)
    for side, place in rows:
        replicas = sides[side]
        at = place.log.topic, place.log.partition, place.offset
        replicas[at] = min(place, replicas.get(at, place))
    inputs, outputs = (sorted(sides[side].values()) for side in (INPUT, OUTPUT))
    unsettled, open_outputs = len(sides[UNSETTLED_INPUT]), len(sides[OPEN_OUTPUT])
    findings = judge_lineage(_shown(key), inputs, outputs, unsettled_inputs=unsettled, open_outputs=open_outputs)
    return [_doubted(judged, gone.outputs if judged.rule == "lineage-lost" else gone.inputs) for judged in findings]


def _untied(rows: Iterable[tuple[str, RecordPosition]]) -> list[Finding]:
    """A notice for each side: else a wrong `--lineage-key` looks like an application without a fault."""
    firsts: dict[str, RecordPosition] = {}
    for side, place in rows:
        firsts[side] = min(place, firsts.get(side, place))
    reason = "records that lack what --lineage-key names, such as this one, are not compared"
    return [
        finding(rule, firsts[side].log, reason, first_offset=firsts[side].offset, severity=NOTICE)
        for side, rule in ((INPUT, "lineage-lost"), (OUTPUT, "lineage-stray"))
        if side in firsts
    ]


def _doubted(judged: Finding, reason: str) -> Finding:
    if not reason:
        return judged
    return judged._replace(message=f"{judged.message}; or it was deleted: {reason}", severity=NOTICE)


def _shown(key: bytes) -> Any:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
