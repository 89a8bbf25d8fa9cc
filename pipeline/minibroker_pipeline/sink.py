"""Exactly-once writing of numbered batches to a topic, without Spark: one transaction a batch, shared by all its tasks.

`SinkDriver.begin` takes the transactional id over and reads the marker. `sink_task.write_task` appends the rows of one
task under that producer id and epoch. `SinkDriver.commit` adds the next marker and ends the transaction. The marker is
an offset of the group that has the sink's name, committed in the same transaction: the number of the next batch, with
the query that wrote it, the number of partitions and the partitioner as metadata.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from minibroker.client.connection import BrokerFailed
from minibroker.client.security import PLAINTEXT, Security
from minibroker.client.transactional import (
    BUMPS_EPOCH,
    TRANSACTION_VERSION,
    VERIFICATION,
    Producer,
    TransactionalClient,
)
from minibroker.kernel.words import reason
from minibroker.output import say
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Compression

MARKER_PARTITION: Final = 0
MURMUR2: Final = "murmur2"
SPARKS_HASH: Final = "hash"
"""The partitioner of earlier releases, whose markers name none."""
OLD: Final = f"{TRANSACTION_VERSION} is below {BUMPS_EPOCH}"
_FENCED: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)


# Spark plans a writer by pickling it, and hides every other exception there behind "Could not serialize object".
class SinkRefused(pickle.PickleError):
    """The sink refuses: it would break exactly-once, or cannot do what is asked. The text is one line."""


Place = tuple[str, int]
"""Topic and partition."""


class Fenced(SinkRefused):
    """A newer attempt, of this driver or another, has taken the sink over."""


@dataclass(frozen=True)
class Sink:
    """Where and how to write. Can be pickled.

    name: transactional id, and group of the marker.
    topic: has the marker.
    partitions: how many of the topic's are written to.
    others: further topics that a batch may write to, each with its number of partitions.
    job: the name under which a write that is no stream happens once.
    marked: whether there is a marker at all.
    first_batch: the only batch for which a missing marker is no error.
    partitioner: what has chosen the partitions of the rows, None where the query itself did.
    commit_log: a file on the driver's machine that gets a line of JSON for each commit.
    """

    bootstrap: str
    topic: str
    name: str
    partitions: int
    security: Security = PLAINTEXT
    job: str | None = None
    marked: bool = True
    first_batch: int = 0
    timeout_ms: int = 300_000
    compression: Compression = Compression.NONE
    others: tuple[tuple[str, int], ...] = ()
    partitioner: str | None = None
    commit_log: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Topic → how many partitions are written to."""
        return {self.topic: self.partitions, **dict(self.others)}

    @property
    def group(self) -> str:
        """The group whose offset is the marker; each job has its own."""
        return self.name if self.job is None else f"{self.name}.{self.job}"

    def over(self, counts: Mapping[str, int]) -> Sink:
        """The same over so many partitions of its topics."""
        others = tuple((topic, counts[topic]) for topic, _ in self.others)
        return replace(self, partitions=counts[self.topic], others=others)

    def client(self) -> TransactionalClient:
        return TransactionalClient(self.bootstrap, security=self.security)


class SinkMarker(NamedTuple):
    """The marker of the last committed batch, with the numbers of partitions that it was written to and the partitioner
    (None: the query itself)."""

    next_batch: int
    query: str
    partitions: int
    others: tuple[tuple[str, int], ...] = ()
    partitioner: str | None = None

    @classmethod
    def read(cls, offset: int, metadata: str) -> SinkMarker:
        """Raises SinkRefused for an offset that no sink has committed."""
        try:
            content = json.loads(metadata)
            others = tuple((str(topic), int(count)) for topic, count in content.get("others", {}).items())
            partitioner = content.get("partitioner", SPARKS_HASH)
            return cls(offset, str(content["query"]), int(content["partitions"]), others, partitioner)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SinkRefused(f"offset {offset} with metadata {metadata!r} is no marker of a sink") from None

    @property
    def metadata(self) -> str:
        others = {"others": dict(self.others)} if self.others else {}
        return json.dumps(
            {"query": self.query, "partitions": self.partitions, **others, "partitioner": self.partitioner}
        )


def _is_marker(offset: int, metadata: str) -> bool:
    try:
        SinkMarker.read(offset, metadata)
    except SinkRefused:
        return False
    return True


class Attempt(NamedTuple):
    """One try at one batch: the epoch that it writes under, and the marker before it."""

    producer: Producer
    marker: SinkMarker | None


class MicroBatch(NamedTuple):
    """Which batch of which query."""

    query: str
    number: int


class Written(NamedTuple):
    """A task's report: records by topic and partition.

    skipped: the batch had been committed before.
    """

    attempt: Attempt
    batch: MicroBatch
    counts: Mapping[Place, int]
    skipped: bool = False


def is_new(sink: Sink, marker: SinkMarker | None, batch: MicroBatch) -> bool:
    """Whether the batch has yet to be written. Raises SinkRefused where the marker does not fit it."""
    if marker is None:
        if sink.marked and batch.number != sink.first_batch:
            raise SinkRefused(
                f"sink {sink.name}: no marker, but batch {batch.number} is not the first: its offset in group "
                f"{sink.group} has expired or was deleted. Look whether the topic has batch {batch.number}; if not, go "
                f"on with firstBatch={batch.number}"
            )
        return True
    if marker.query and marker.query != batch.query:
        raise SinkRefused(
            f"sink {sink.name} belongs to query {marker.query}, not {batch.query}: "
            "a query with another checkpoint needs another sink"
        )
    if batch.number > marker.next_batch:
        raise SinkRefused(f"sink {sink.name}: batch {batch.number} follows, but the marker awaits {marker.next_batch}")
    return batch.number == marker.next_batch


def _changes(sink: Sink, marker: SinkMarker) -> Iterator[str]:
    """Each difference from the marker that makes the next batch's layout another one than the last batch's."""
    before = {sink.topic: marker.partitions, **dict(marker.others)}
    for topic, count in sink.counts.items():
        if before.get(topic, count) != count:
            yield f"that is written to {count} partitions of {topic}, {before[topic]} before"
    # A query that chooses the partitions itself knows what it does.
    if sink.partitioner not in (None, marker.partitioner):
        earlier = "the query itself" if marker.partitioner is None else marker.partitioner
        yield f"whose partitions {sink.partitioner} chooses, {earlier} before"


class SinkDriver:
    """Begins, commits and aborts the attempts of one sink.

    It keeps no state and no connection between calls: everything it needs is in the reports.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._client = sink.client()

    def begin(self) -> Attempt:
        """Fence every earlier attempt, then read the marker. Raises SinkRefused.

        Where the number of partitions, or the partitioner, is another one than before, that is printed: every batch
        before has been committed or aborted whole, so the next one can be laid out anew.
        """
        attempt = self._begin()
        if attempt.marker is not None:
            for change in _changes(self.sink, attempt.marker):
                say(
                    f"sink {self.sink.name}: batch {attempt.marker.next_batch} is the first {change}: keys may have "
                    "another partition now",
                    to=sys.stderr,
                    flush=True,
                )
        return attempt

    def _begin(self) -> Attempt:
        sink = self.sink
        with self._asking():
            version = self._client.transaction_version()
            if version < BUMPS_EPOCH and (unverified := self._client.unverified()):
                raise SinkRefused(f"broker {unverified[0]}: {VERIFICATION} must be true where {OLD}")
            there = Counter(topic for topic, _ in self._client.leaders([*sink.counts]))
            for topic, count in sink.counts.items():
                if there[topic] < count:
                    raise SinkRefused(f"topic {topic} has {there[topic]} partitions, not {count}")
            producer = self._client.init_producer_id(sink.name, sink.timeout_ms, transaction_version=version)
            found = self._client.committed(sink.group, sink.topic, MARKER_PARTITION) if sink.marked else None
            committed = self._client.all_committed(sink.group) if sink.marked and found is None else {}
        for (topic, partition), other in committed.items():
            if partition == MARKER_PARTITION and topic != sink.topic and _is_marker(*other):
                raise SinkRefused(
                    f"sink {sink.name}: its marker is with topic {topic}, and not with {sink.topic}, the first of its "
                    f"topics now: batches would be written again; name {topic} first"
                )
        marker = None if found is None else SinkMarker.read(*found)
        if version < BUMPS_EPOCH:
            with self._asking():
                # Now and not by the tasks: after an abort, adding them would begin another transaction.
                for topic, count in sink.counts.items():
                    self._client.add_partitions(producer, topic, range(count))
                if sink.marked:
                    self._client.add_group(producer, sink.group)
        return Attempt(producer, marker)

    def commit(self, reports: Sequence[Written], number: int) -> None:
        """Make the batch visible, whole; nothing when it was already. Raises SinkRefused, the attempt then aborted."""
        if not reports:
            attempt = self.begin()
            batch = MicroBatch(attempt.marker.query if attempt.marker else "", number)
            reports = [Written(attempt, batch, {}, not is_new(self.sink, attempt.marker, batch))]
        attempt, batch, _, skipped = reports[0]
        try:
            self._check(reports, number)
        except SinkRefused:
            self.abort(reports)
            raise
        sink = self.sink
        began = time.monotonic()
        with self._asking():
            if skipped:
                self._leave(attempt)
                return
            if sink.marked:
                marker = SinkMarker(number + 1, batch.query, sink.partitions, sink.others, sink.partitioner)
                self._mark(attempt, marker)
            self._client.end(attempt.producer, commit=True)
        self._note(reports, time.monotonic() - began)

    def _note(self, reports: Sequence[Written], seconds: float) -> None:
        """Add the commit to the log of commits. A log that cannot be written is only said: the batch is committed."""
        if self.sink.commit_log is None:
            return
        batch = reports[0].batch
        line = {
            "sink": self.sink.name,
            "query": batch.query,
            "batch": batch.number,
            "records": sum(count for report in reports for count in report.counts.values()),
            "partitions": sum(len(report.counts) for report in reports),
            "commit_ms": round(seconds * 1000, 3),
        }
        try:
            with open(self.sink.commit_log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            say(f"sink {self.sink.name}: commitLog: {reason(error)}", to=sys.stderr, flush=True)

    def keep(self, query: str) -> None:
        """Commit this query's marker again as it is, so that it does not expire; nothing if there is none.

        It fences an attempt at a batch as a newer driver does: a commit without a transaction could overwrite the
        marker that a batch writes at the same time. Raises SinkRefused.
        """
        sink = self.sink
        with self._asking():
            found = self._client.committed(sink.group, sink.topic, MARKER_PARTITION)
        if found is None or SinkMarker.read(*found).query != query:
            return
        attempt = self._begin()
        with self._asking():
            if attempt.marker is None:
                self._leave(attempt)
                return
            self._mark(attempt, attempt.marker)
            self._client.end(attempt.producer, commit=True)

    def _leave(self, attempt: Attempt) -> None:
        """End an attempt that wrote nothing."""
        if attempt.producer.transaction_version < BUMPS_EPOCH:  # its partitions are in a transaction already
            self._client.end(attempt.producer, commit=False)

    def _mark(self, attempt: Attempt, marker: SinkMarker) -> None:
        sink = self.sink
        self._client.commit_offset(
            attempt.producer, sink.group, sink.topic, MARKER_PARTITION, marker.next_batch, marker.metadata
        )

    def _check(self, reports: Sequence[Written], number: int) -> None:
        if len({(report.attempt, report.batch, report.skipped) for report in reports}) > 1:
            raise SinkRefused(f"sink {self.sink.name}: the tasks of batch {number} belong to different attempts")
        if reports[0].batch.number != number:
            raise SinkRefused(f"sink {self.sink.name}: tasks wrote batch {reports[0].batch.number}, not {number}")
        writers = Counter(place for report in reports for place in report.counts)
        shared = sorted(place for place, count in writers.items() if count > 1)
        if shared:
            topic, partition = shared[0]
            raise SinkRefused(
                f"sink {self.sink.name}: more than one task wrote to partition {partition} of {topic}: "
                "repartition by the column of the partition, as exactly_once() does"
            )

    def abort(self, reports: Iterable[Written | None]) -> None:
        """End what these tasks have begun; nothing without a report, and after a commit that took effect."""
        for producer in {report.attempt.producer for report in reports if report is not None and not report.skipped}:
            with self._asking():
                try:
                    self._client.end(producer, commit=False)
                except ApiError as error:
                    if error.code is not ErrorCode.INVALID_TXN_STATE and error.code not in _FENCED:
                        raise

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._client, sink_errors(self.sink):
            yield


@contextmanager
def sink_errors(sink: Sink) -> Iterator[None]:
    """Turn a broker's refusal, and a broker out of reach, into SinkRefused."""
    try:
        yield
    except BrokerFailed as error:
        raise SinkRefused(f"sink {sink.name}: {error}") from None
    except ApiError as error:
        if error.code in _FENCED:
            raise Fenced(f"sink {sink.name}: a newer attempt has taken it over ({error.code.name})") from None
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise SinkRefused(
                f"sink {sink.name}: a transaction timeout of {sink.timeout_ms} ms is above the broker's "
                "transaction.max.timeout.ms"
            ) from None
        if error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            raise SinkRefused(
                f"sink {sink.name}: the transaction before has not ended in group {sink.group}; if all brokers are "
                f"there, it hangs: minibroker transactions find-hanging --bootstrap {sink.bootstrap}"
            ) from None
        raise SinkRefused(f"sink {sink.name}: {error.message} ({error.code.name})") from None
