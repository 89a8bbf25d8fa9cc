"""Options and columns of the Spark data sink `kafka-exactly-once`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from minibroker.client.security import Security
from minibroker.kernel.addresses import parse_address
from minibroker_pipeline.sink import MURMUR2, SPARKS_HASH, Sink, SinkRefused, sink_errors
from minibroker_protocol.records import Compression

NAME: Final = "kafka-exactly-once"
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "partition": ("int",),
    "topic": ("string",),
}
"""Names and types, as Spark's own sink has them."""
_NEEDED: Final = ("value", "partition")
_KNOWN: Final = frozenset(
    {
        "bootstrap",
        "topic",
        "sink",
        "partitions",
        "jobid",
        "firstbatch",
        "transactiontimeoutms",
        "compression",
        "partitioner",
        "commitlog",
    }
)
_SPARKS: Final = frozenset({"checkpointlocation", "queryname", "path"})


def check_columns(columns: Mapping[str, str], topics: int = 1) -> None:
    """columns: name → Spark's name of the type.
    topics: how many the sink writes to.

    Raises SinkRefused.
    """
    for name in (*_NEEDED, *(["topic"] if topics > 1 else [])):
        if name not in columns:
            raise SinkRefused(f"{NAME}: the column {name} is missing")
    for name, kind in columns.items():
        if name not in COLUMNS:
            raise SinkRefused(f"{NAME}: column {name}: there are only {', '.join(COLUMNS)}")
        if kind not in COLUMNS[name]:
            raise SinkRefused(f"{NAME}: column {name} is {kind}, not {' or '.join(COLUMNS[name])}")


def sink_of(options: Mapping[str, str], *, streaming: bool) -> Sink:
    """Parse the options. Without `partitions` the topic's number is read from the cluster. Raises SinkRefused."""
    texts = {name.lower(): text for name, text in options.items()}
    for name in ("bootstrap", "topic", "sink"):
        if not texts.get(name):
            raise SinkRefused(f"{NAME}: the option {name} is needed")
    for name in texts.keys() - _KNOWN - _SPARKS:
        if not name.startswith("kafka."):
            raise SinkRefused(f"{NAME}: option {name}: there are only {', '.join(sorted(_KNOWN))} and kafka.…")
    if streaming and "jobid" in texts:
        raise SinkRefused(f"{NAME}: jobId is for tables: the batches of a stream have numbers")
    compression = texts.get("compression", "none").upper()
    if compression not in Compression.__members__:
        known = ", ".join(codec.lower() for codec in Compression.__members__)
        raise SinkRefused(f"{NAME}: compression {texts['compression']!r} is none of {known}")
    partitioner = texts.get("partitioner")
    if partitioner not in (None, MURMUR2, SPARKS_HASH):
        raise SinkRefused(f"{NAME}: partitioner {partitioner!r} is none of {MURMUR2}, {SPARKS_HASH}")
    topics, counts = _topics(texts)
    try:
        for address in texts["bootstrap"].split(","):
            parse_address(address.strip())
        security = Security.of(
            {name.removeprefix("kafka."): text for name, text in options.items() if name.startswith("kafka.")}
        )
    except ValueError as error:
        raise SinkRefused(f"{NAME}: {error}") from None
    sink = Sink(
        bootstrap=texts["bootstrap"],
        topic=topics[0],
        name=texts["sink"],
        partitions=counts[0],
        others=tuple(zip(topics[1:], counts[1:], strict=True)),
        security=security,
        job=texts.get("jobid"),
        marked=streaming or "jobid" in texts,
        first_batch=_number(texts, "firstBatch", 0, 0),
        timeout_ms=_number(texts, "transactionTimeoutMs", 300_000, 1),
        compression=Compression[compression],
        partitioner=partitioner,
        commit_log=texts.get("commitlog"),
    )
    if all(counts):
        return sink
    chosen = {topic: count for topic, count in sink.counts.items() if count}
    return sink.over({**_partitions(sink), **chosen})


def _topics(texts: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """The topics, and of each the number of partitions: 0 where the cluster is to be asked."""
    topics = [name.strip() for name in texts["topic"].split(",")]
    if not all(topics) or len(set(topics)) < len(topics):
        raise SinkRefused(f"{NAME}: topic={texts['topic']}: expected different names, separated by commas")
    numbers = texts.get("partitions", ",".join("0" for _ in topics)).split(",")
    if len(numbers) != len(topics):
        raise SinkRefused(
            f"{NAME}: partitions={texts['partitions']}: expected a number for each of {len(topics)} topics"
        )
    return topics, [_number({"partitions": text.strip()}, "partitions", 0, 0) for text in numbers]


def _number(texts: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = texts.get(name.lower())
    if text is None:
        return default
    if not text.isdigit() or int(text) < least:
        raise SinkRefused(f"{NAME}: {name}={text}: expected a whole number from {least}")
    return int(text)


def _partitions(sink: Sink) -> dict[str, int]:
    with sink.client() as client, sink_errors(sink):
        return dict(Counter(topic for topic, _ in client.leaders([*sink.counts])))
