"""One task of a batch: appends its rows under the attempt's producer id and epoch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from minibroker.client.transactional import Producer
from minibroker_pipeline.sink import Attempt, MicroBatch, Place, Sink, SinkRefused, Written, is_new, sink_errors
from minibroker_pipeline.sink_records import Records, blocks, by_partition, encode
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import MAGIC, BatchHeader, assemble
from minibroker_protocol.records.batch import TRANSACTIONAL_MASK
from minibroker_protocol.records.compression import compress

BATCH_BYTES: Final = 512 * 1024
"""Bytes in a record batch before compression, below a broker's max.message.bytes of 1 MiB."""
_FIRST_COUNTS: Final = 997
"""How many lengths the first batch of a partition can have."""


def write_task(
    sink: Sink, attempt: Attempt, batch: MicroBatch, attempt_number: int, task_id: int, rows: Iterable[Any]
) -> Written:
    """Append the rows of one task: Arrow record batches with the columns of `sink_options.COLUMNS`.

    attempt_number: 0 for the first. A later one is refused, as the broker knows sequences and not rows: the whole batch
        has to be tried again under a new epoch.
    task_id: another one for each attempt at a task, also where Spark runs a stage again and counts its attempts from 0.

    Raises SinkRefused.
    """
    if not is_new(sink, attempt.marker, batch):
        for _ in rows:  # a reader that stops early fails the task
            pass
        return Written(attempt, batch, {}, skipped=True)
    if attempt_number:
        raise SinkRefused(f"sink {sink.name}: attempt {attempt_number} of a task: the whole batch must be tried again")
    appender = Appender(sink, attempt.producer, task_id)
    try:
        with sink_errors(sink):
            for table in rows:
                for place, those in by_partition(
                    table, time.time_ns() // 1_000_000, sink.topic, several=bool(sink.others)
                ):
                    appender.add(place, those)
            appender.flush()
    finally:
        appender.close()
    return Written(attempt, batch, dict(appender.counts))


class Appender:
    """Gathers rows of each partition and appends them in order, sequences from 0.

    Two attempts at a task must not both succeed: the broker takes the second's batch for a copy of the first's where
    their sequences are equal, and the rows need not be. So the first batch of a partition ends at another record for
    each `task_id`, unless it holds all there is, and must not lie where the partition had ended before.
    """

    def __init__(self, sink: Sink, producer: Producer, task_id: int) -> None:
        if producer.producer_id < 0 or producer.producer_epoch < 0:
            # Kafka 4.3.1 appends such batches, and read_committed shows them at once.
            raise SinkRefused(f"sink {sink.name}: no producer id")
        self._sink = sink
        self._producer = producer
        self._first = 1 + task_id % _FIRST_COUNTS
        self._client = sink.client()
        self._partitions = sink.counts
        self._waiting: dict[Place, list[Any]] = {}
        self._sizes: Counter[Place] = Counter()
        self.counts: Counter[Place] = Counter()

    def add(self, place: Place, rows: Any) -> None:
        topic, partition = place
        if topic not in self._partitions:
            raise SinkRefused(f"topic {topic}: sink {self._sink.name} writes to {', '.join(self._partitions)}")
        if not 0 <= partition < self._partitions[topic]:
            raise SinkRefused(f"partition {partition} of {topic}: there are {self._partitions[topic]}")
        self._waiting.setdefault(place, []).append(rows)
        self._sizes[place] += rows.nbytes
        if self._sizes[place] > BATCH_BYTES:
            self._append(place)

    def flush(self) -> None:
        for place in sorted(self._waiting):
            self._append(place)

    def _append(self, place: Place) -> None:
        rows = pa.concat_batches(self._waiting.pop(place))
        self._sizes[place] = 0
        new = not self.counts[place]
        end = self._client.end_offset(*place) if new else 0
        for block in blocks(rows, BATCH_BYTES, self._first if new else None):
            records = encode(block)
            data = bytes(self._batch(records, self.counts[place]))
            try:
                offset = self._client.produce(self._producer, *place, data)
            except ApiError as error:
                if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise
                raise self._another_wrote(place, f" ({error.code.name})") from error
            if offset < end:
                raise self._another_wrote(place)
            self.counts[place] += records.size

    def _another_wrote(self, place: Place, answer: str = "") -> SinkRefused:
        return SinkRefused(
            f"sink {self._sink.name}: another task or attempt wrote to partition {place[1]} of "
            f"{place[0]}: repartition by the column of the partition, as exactly_once() does; after a "
            f"stage that Spark ran again the whole batch must be tried again{answer}"
        )

    def _batch(self, records: Records, sequence: int) -> bytearray:
        codec, payload = self._sink.compression, records.payload
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=codec | TRANSACTIONAL_MASK,
            last_offset_delta=records.size - 1,
            base_timestamp=records.base_timestamp,
            max_timestamp=records.max_timestamp,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.producer_epoch,
            base_sequence=sequence,
            record_count=records.size,
        )
        return assemble(header, compress(codec, payload) if codec else payload)

    def close(self) -> None:
        self._client.close()
