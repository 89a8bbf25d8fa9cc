"""Exactly-once writing of numbered batches to a topic, without Spark: one transaction a batch, shared by all its tasks.

`SinkDriver.begin` takes the transactional id over and reads the marker. `sink_task.write_task` appends the rows of one
task under that producer id and epoch. `SinkDriver.commit` adds the next marker and ends the transaction. The marker is
an offset of the group that has the sink's name, committed in the same transaction: the number of the next batch, with
the query that wrote it and the number of partitions as metadata.
"""

from __future__ import annotations

import json
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
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Compression

MARKER_PARTITION: Final = 0
OLD: Final = f"{TRANSACTION_VERSION} is below {BUMPS_EPOCH}"
_FENCED: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)


class SinkRefused(Exception):
    """The sink refuses: it would break exactly-once, or cannot do what is asked. The text is one line."""


class Fenced(SinkRefused):
    """A newer attempt, of this driver or another, has taken the sink over."""


@dataclass(frozen=True)
class Sink:
    """Where and how to write. Can be pickled.

    name: transactional id, and group of the marker. partitions: how many of the topic's are written to, for good.
    job: of a write that is no stream, the name under which it happens once. marked: whether there is a marker at all.
    first_batch: the only batch for which a missing marker is no error.
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

    @property
    def group(self) -> str:
        """The group whose offset is the marker; each job has its own."""
        return self.name if self.job is None else f"{self.name}.{self.job}"

    def over(self, partitions: int) -> Sink:
        """The same over so many partitions."""
        return replace(self, partitions=partitions)

    def client(self) -> TransactionalClient:
        return TransactionalClient(self.bootstrap, security=self.security)


class SinkMarker(NamedTuple):
    """The marker of the last committed batch."""

    next_batch: int
    query: str
    partitions: int

    @classmethod
    def read(cls, offset: int, metadata: str) -> SinkMarker:
        """Raises SinkRefused for an offset that no sink has committed."""
        try:
            content = json.loads(metadata)
            return cls(offset, str(content["query"]), int(content["partitions"]))
        except (ValueError, TypeError, KeyError):
            raise SinkRefused(f"offset {offset} with metadata {metadata!r} is no marker of a sink") from None

    @property
    def metadata(self) -> str:
        return json.dumps({"query": self.query, "partitions": self.partitions})


class Attempt(NamedTuple):
    """One try at one batch: the epoch that it writes under, and the marker before it."""

    producer: Producer
    marker: SinkMarker | None


class MicroBatch(NamedTuple):
    """Which batch of which query."""

    query: str
    number: int


class Written(NamedTuple):
    """A task's report: records by partition. skipped: the batch had been committed before."""

    attempt: Attempt
    batch: MicroBatch
    counts: Mapping[int, int]
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


class SinkDriver:
    """Begins, commits and aborts the attempts of one sink.

    It keeps no state and no connection between calls: everything it needs is in the reports.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._client = sink.client()

    def begin(self) -> Attempt:
        """Fence every earlier attempt, then read the marker. Raises SinkRefused."""
        sink = self.sink
        with self._asking():
            version = self._client.transaction_version()
            if version < BUMPS_EPOCH and (unverified := self._client.unverified()):
                raise SinkRefused(f"broker {unverified[0]}: {VERIFICATION} must be true where {OLD}")
            there = len(self._client.leaders([sink.topic]))
            if there < sink.partitions:
                raise SinkRefused(f"topic {sink.topic} has {there} partitions, not {sink.partitions}")
            producer = self._client.init_producer_id(sink.name, sink.timeout_ms, transaction_version=version)
            found = self._client.committed(sink.group, sink.topic, MARKER_PARTITION) if sink.marked else None
        marker = None if found is None else SinkMarker.read(*found)
        if marker is not None and marker.partitions != sink.partitions:
            raise SinkRefused(
                f"sink {sink.name} writes to {marker.partitions} partitions since its first batch, not to "
                f"{sink.partitions}: set partitions={marker.partitions}"
            )
        if version < BUMPS_EPOCH:
            with self._asking():
                # Now and not by the tasks: after an abort, adding them would begin another transaction.
                self._client.add_partitions(producer, sink.topic, range(sink.partitions))
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
        with self._asking():
            if skipped:
                self._leave(attempt)
                return
            if sink.marked:
                self._mark(attempt, SinkMarker(number + 1, batch.query, sink.partitions))
            self._client.end(attempt.producer, commit=True)

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
        attempt = self.begin()
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
        writers = Counter(partition for report in reports for partition in report.counts)
        shared = sorted(partition for partition, count in writers.items() if count > 1)
        if shared:
            raise SinkRefused(
                f"sink {self.sink.name}: more than one task wrote to partition {shared[0]} of {self.sink.topic}: "
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
