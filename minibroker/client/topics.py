"""Batches and offsets of topics, read over a blocking connection as a consumer reads them.

A busy cluster is waited for: quotas, elections, a leader that has died and is not yet replaced. Losses that waiting
cannot repair have their own error: a recreated topic, records that retention deleted, a truncated log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from minibroker.client.cluster import ClusterClient, NoSuchPartition, require
from minibroker.client.connection import BrokerFailed, Throttled
from minibroker.kernel.addresses import Address
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import BatchHeader, ControlType, CorruptBatch, control_record, iter_batches

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST, EARLIEST_LOCAL = -2, -1, -4
FETCH_BYTES: Final = 16 << 20
FETCH_WAIT_MS: Final = 100
NO_EPOCH: Final = -1
TOPIC_RESOURCE: Final = 2
_EMPTY_ANSWERS: Final = 3
"""So often a leader answers without records, before compaction is taken for the reason."""
_BY_NAME, _BY_ID = 11, 13
"""Versions of Fetch."""
_LOCAL_SINCE: Final = 8
"""The version of ListOffsets that has EARLIEST_LOCAL."""
_USUAL_VERSION: Final = 5
_OTHER_ID: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


class Position(NamedTuple):
    """An offset, and the epoch of the leader that answered with it (-1: it does not say)."""

    offset: int
    leader_epoch: int = NO_EPOCH


class Span(NamedTuple):
    """Offsets [start, stop) of a partition, of the topic with this id and as planned with a leader of this epoch (-1
    and None: not known)."""

    topic: str
    partition: int
    start: int
    stop: int
    leader_epoch: int = NO_EPOCH
    topic_id: bytes | None = None


class Fetched(NamedTuple):
    """Complete batches and the partition's offsets from one Fetch response.

    aborted: (producer id, first offset) of aborted transactions that overlap, with read_committed only.
    end: high watermark, or with read_committed the last stable offset.
    """

    data: memoryview
    log_start_offset: int
    end: int
    aborted: list[tuple[int, int]]


class OtherTopic(NoSuchPartition):
    """The topic was deleted and made again: another topic has the name now."""


class RecordsGone(BrokerFailed):
    """Offsets that were to be read are not in the log.

    resume: the next offset that can be read, None for none of the topic with this id.
    deleted: retention or DeleteRecords took them, and the log starts there now.
    """

    def __init__(self, text: str, resume: int | None, *, deleted: bool = False) -> None:
        super().__init__(text, resume)
        self.resume = resume
        self.deleted = deleted

    def __str__(self) -> str:
        return str(self.args[0])


class StillWaiting(BrokerFailed):
    """The cluster had not what was asked for within the client's patience."""


class ReadingClient(ClusterClient):
    """Reads partitions. Raises BrokerFailed when no broker answers, ApiError when one refuses."""

    def position(self, topic: str, partition: int, which: int, isolation: int = READ_UNCOMMITTED) -> Position:
        """EARLIEST or LATEST (high watermark, or last stable offset with READ_COMMITTED), or EARLIEST_LOCAL."""
        kind = m.ListOffsetsRequest
        entry = kind.ListOffsetsPartition(partition_index=partition, timestamp=which)
        request = kind(
            replica_id=-1, isolation_level=isolation, topics=[kind.ListOffsetsTopic(name=topic, partitions=[entry])]
        )
        at_most = _LOCAL_SINCE if which == EARLIEST_LOCAL else _USUAL_VERSION
        answered, version = m.ListOffsetsResponse, self.version(kind, at_most)
        answer_part = self.ask_leader(topic, partition, request, answered, version, lambda a: a.topics[0].partitions[0])
        return Position(answer_part.offset, answer_part.leader_epoch)

    def offset(self, topic: str, partition: int, which: int, isolation: int = READ_UNCOMMITTED) -> int:
        """As `position`."""
        return self.position(topic, partition, which, isolation).offset

    def ends(self) -> dict[tuple[str, int], int]:
        """(topic, partition) → high watermark, of every partition that has a leader; one request to each leader."""
        return self.patiently(self._ends, self.leader_patience)

    def _ends(self) -> dict[tuple[str, int], int]:
        kind = m.ListOffsetsRequest
        wanted: dict[Address, dict[str, list[Any]]] = {}
        for (topic, partition), leader in self.leaders().items():
            if leader is not None:
                entry = kind.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
                wanted.setdefault(leader, {}).setdefault(topic, []).append(entry)
        ends = {}
        for leader, topics in wanted.items():
            entries = [kind.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]
            request = kind(replica_id=-1, topics=entries)
            answer = self.ask(leader, request, m.ListOffsetsResponse, self.version(kind, _USUAL_VERSION))
            for answered in answer.topics:
                for row in answered.partitions:
                    require(row.error_code, f"{answered.name}-{row.partition_index}")
                    ends[answered.name, row.partition_index] = row.offset
        return ends

    def epoch_end(self, topic: str, partition: int, leader_epoch: int) -> int | None:
        """The offset at which this leader epoch ends in the log, None where the leader does not know it (KIP-320)."""
        kind, answered = m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse
        entry = kind.OffsetForLeaderPartition(partition=partition, leader_epoch=leader_epoch)
        request = kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic=topic, partitions=[entry])])
        version = self.version(kind, 3)
        answer_part = self.ask_leader(topic, partition, request, answered, version, lambda a: a.topics[0].partitions[0])
        return None if answer_part.end_offset < 0 else int(answer_part.end_offset)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        isolation: int = READ_UNCOMMITTED,
        topic_id: bytes | None = None,
    ) -> Fetched:
        """Whole batches from the one that holds `offset` on; none at the end of the log.

        With a topic id only that topic is read: raises OtherTopic where another one has its name. Raises CorruptBatch,
        which names partition and offset, for bytes that cannot be a batch.
        """
        kind = m.FetchRequest
        by_id = NO_ID if topic_id is None or self.version(kind, _BY_ID) < _BY_ID else topic_id
        entry = kind.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = kind(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=isolation,
            topics=[kind.FetchTopic(topic=topic, topic_id=by_id, partitions=[entry])],
        )

        def ask() -> Any:
            address = self.leader(topic, partition)
            if topic_id is not None and self.topic_ids.get(topic, topic_id) != topic_id:
                raise OtherTopic(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic} was deleted and made again")
            answer = self.ask(address, request, m.FetchResponse, _BY_NAME if by_id == NO_ID else _BY_ID)
            if not answer.responses:  # so Kafka answers over a quota
                seconds = answer.throttle_time_ms / 1000
                said = f"{topic}-{partition}: a quota throttles {self.client_id} for {seconds:g} s, without any data"
                raise Throttled(said, seconds)
            partition_data = answer.responses[0].partitions[0]
            require(partition_data.error_code, f"{topic}-{partition}")
            return partition_data

        partition_data = self.patiently(ask, self.leader_patience, final=(NoSuchPartition,))
        buffers = (
            partition_data.records if isinstance(partition_data.records, list) else [partition_data.records or b""]
        )
        data = memoryview(b"".join(buffers))
        whole, next_offset = 0, offset
        try:
            for position, header in iter_batches(data):
                whole, next_offset = position + header.size, header.next_offset
        except CorruptBatch as error:
            raise CorruptBatch(f"{topic}-{partition}: the batch at offset {next_offset}: {error}") from None
        aborted = [
            (aborted_txn.producer_id, aborted_txn.first_offset)
            for aborted_txn in partition_data.aborted_transactions or []
        ]
        end = partition_data.last_stable_offset if isolation == READ_COMMITTED else partition_data.high_watermark
        return Fetched(data[:whole], partition_data.log_start_offset, end, aborted)

    def read(self, span: Span, isolation: int = READ_UNCOMMITTED) -> Iterator[Fetched]:
        """The batches of a span, the first of which may begin before it and the last end after it.

        The end of a compacted topic may be empty, and is passed over then. Raises RecordsGone for offsets that
        retention, DeleteRecords or a truncation took away after the span was planned, StillWaiting for records that do
        not come.
        """
        offset, deadline, empty = span.start, time.monotonic() + self.leader_patience, 0
        while offset < span.stop:
            fetched = self._fetch(span, offset, isolation)
            after = offset
            for _, header in iter_batches(fetched.data):
                if header.base_offset < span.stop and NO_EPOCH < span.leader_epoch < header.partition_leader_epoch:
                    self._refuse_truncated(span, offset)
                after = header.next_offset
            if after > offset:
                yield fetched
                offset, deadline, empty = after, time.monotonic() + self.leader_patience, 0
                continue
            empty += fetched.end >= span.stop
            if empty == _EMPTY_ANSWERS and self._may_be_empty(span, offset):
                return
            self._refuse_truncated(span, offset)
            if time.monotonic() > deadline:
                raise StillWaiting(
                    f"{span.topic}-{span.partition}: nothing from offset {offset} up to {span.stop}, the planned end; "
                    f"the leader's end is {fetched.end}, and {self.leader_patience:g} s have passed"
                )
            self.pause(FETCH_WAIT_MS / 1000)

    def batches(
        self, topic: str, partition: int, start: int, stop: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a partition, from the one that holds offset `start` up to `stop`, by default up to its present
        end."""
        end = self.position(topic, partition, LATEST)
        last = end.offset if stop is None else min(stop, end.offset)
        for fetched in self.read(Span(topic, partition, start, last, end.leader_epoch)):
            for position, header in iter_batches(fetched.data):
                if header.base_offset < last:
                    yield header, fetched.data[position : position + header.size]

    def _fetch(self, span: Span, offset: int, isolation: int) -> Fetched:
        """Raises RecordsGone for an offset that is not in the log."""
        deadline = time.monotonic() + self.leader_patience
        while True:
            try:
                return self.fetch(span.topic, span.partition, offset, isolation, span.topic_id)
            except NoSuchPartition as error:
                raise RecordsGone(f"{span.topic}-{span.partition}: offset {offset}: {error.message}", None) from None
            except ApiError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                self._refuse_deleted(span, offset)
                self._refuse_truncated(span, offset)
                if time.monotonic() > deadline:
                    raise
            self.pause(FETCH_WAIT_MS / 1000)

    def _refuse_deleted(self, span: Span, offset: int) -> None:
        """Raises RecordsGone where the log starts after the offset."""
        start = self.offset(span.topic, span.partition, EARLIEST)
        if offset < start:
            raise RecordsGone(
                f"{span.topic}-{span.partition}: offset {offset} is to be read, but the log starts at {start}: "
                f"retention or DeleteRecords has deleted the records up to there",
                start,
                deleted=True,
            )

    def _refuse_truncated(self, span: Span, offset: int) -> None:
        """Raises RecordsGone where the log was cut below the span's end since it was planned."""
        end = self.truncated(span.topic, span.partition, Position(span.stop, span.leader_epoch))
        if end is not None:
            raise RecordsGone(
                f"{span.topic}-{span.partition}: offsets {offset} to {span.stop} were there when the read was "
                f"planned, but the log was truncated to offset {end}: by an unclean leader "
                "election, or because the disk lost its end",
                min(offset, end),
            )

    def truncated(self, topic: str, partition: int, position: Position) -> int | None:
        """Where the log was cut below a position that it once had reached; None if it was not, or nothing is known."""
        if position.leader_epoch == NO_EPOCH:
            return None
        end = self.epoch_end(topic, partition, position.leader_epoch)
        return end if end is not None and end < position.offset else None

    def _may_be_empty(self, span: Span, offset: int) -> bool:
        """Whether compaction may have removed everything from an offset up to the span's end. What is in remote storage
        may come late, without an error."""
        tells = self.version(m.ListOffsetsRequest, _LOCAL_SINCE) == _LOCAL_SINCE
        if tells and self.offset(span.topic, span.partition, EARLIEST_LOCAL) > offset:
            return False
        return self.cleanup_policies([span.topic])[span.topic] != "delete"

    def cleanup_policies(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Topic → cleanup.policy, None where the broker does not say."""
        kind = m.DescribeConfigsRequest
        wanted = [
            kind.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=["cleanup.policy"]
            )
            for topic in topics
        ]
        answer = self.ask_any(kind(resources=wanted), m.DescribeConfigsResponse, 1)
        said = {result.resource_name: config.value for result in answer.results for config in result.configs}
        return {topic: said.get(topic) for topic in topics}


def committed(data: memoryview, aborted: Iterable[tuple[int, int]]) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of an answer to a read_committed Fetch that are for the reader, as Kafka's CompletedFetch has it: no
    markers, and none of an aborted transaction, which goes from its first offset up to its marker.

    aborted: as in `Fetched`. Raises Malformed for a marker that cannot be read.
    """
    waiting = sorted(aborted, key=lambda transaction: -transaction[1])
    aborting: set[int] = set()
    for position, header in iter_batches(data):
        while waiting and waiting[-1][1] <= header.last_offset:
            aborting.add(waiting.pop()[0])
        if header.is_control:
            control = control_record(data, position, header)
            if control and control.type is ControlType.ABORT:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield header, data[position : position + header.size]
