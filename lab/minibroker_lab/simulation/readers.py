"""A read_committed consumer without a group: the records it receives, and the offsets of partitions as it sees them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from minibroker.client.topics import committed
from minibroker.rules.rows import Marks, Seen
from minibroker_lab.simulation.client import RETRIABLE, Client, ClientEnvironment
from minibroker_lab.simulation.evidence import TopicPartition
from minibroker_lab.simulation.links import Disconnected
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker_protocol.records import decode_records, iter_batches

READ_COMMITTED = 1
_EARLIEST = -2
_SHOWN = 6


class Reader(Client):
    """Reads `places` from their beginning.

    positions: the next offset of each.
    """

    def __init__(self, world: ClientEnvironment, name: str, random: Random, places: Sequence[TopicPartition]) -> None:
        super().__init__(world, name, random)
        self.positions = dict.fromkeys(places, 0)
        #: Log start offset of each partition in which this reader had to start over.
        self.starts: dict[TopicPartition, int] = {}
        self.stable: dict[TopicPartition, int] = {}
        self.seen: list[Seen] = []

    async def run(self) -> None:
        """Until the world closes."""
        while not self.world.closing:
            for place in list(self.positions):
                await self.poll(place)
            await self.pause(self.random.random() * 2 * self.world.plan.think_ms)

    async def read_all(self) -> None:
        """To the last stable offset that each partition has now."""
        for place in self.positions:
            await self.poll(place)
            while self.positions[place] < self.stable.get(place, 1 << 62):
                await self.poll(place)

    async def poll(self, place: TopicPartition) -> list[Seen]:
        """One answer's records, without those of aborted transactions."""
        topic, index = place
        node = await self.leader(topic, index)
        self.doing = f"Fetch of {topic}-{index} at {node}"
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            isolation_level=READ_COMMITTED,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, fetch_offset=self.positions[place], partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
        )
        try:
            answer = await self.ask(node, request, 12, FetchResponse)
        except Disconnected:
            self.lost_leader(topic, index)
            await self.pause(50)
            return []
        data = answer.responses[0].partitions[0]
        code = ErrorCode(data.error_code)
        self.history.counts[f"Fetch: {code.name}"] += 1
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._begin_anew(place)
            return []
        if code != ErrorCode.NONE:
            if code not in RETRIABLE:
                text = f"{self.name} at offset {self.positions[place]} is told {code.name}"
                self.history.report("refusal", topic, index, text)
                self.positions[place] = 0
            self.lost_leader(topic, index)
            await self.pause(50)
            return []
        return self._take(place, node, data)

    async def _begin_anew(self, place: TopicPartition) -> None:
        """As with auto.offset.reset=earliest; lawful only where records were deleted, or lost."""
        topic, index = place
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=_EARLIEST)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
        )
        try:
            answer = await self.ask(await self.leader(topic, index), request, 7, ListOffsetsResponse)
        except Disconnected:
            self.lost_leader(topic, index)
            return
        start = answer.topics[0].partitions[0]
        if start.error_code != ErrorCode.NONE:
            self.lost_leader(topic, index)
            await self.pause(50)
            return
        position = self.positions[place]
        self.tell("begins anew", f"{topic}-{index} has no offset {position} any more, it begins at {start.offset}")
        if start.offset <= position and place not in self.history.evidence.unclean:
            text = f"{self.name} at offset {position} is out of range, though the log begins at {start.offset}"
            self.history.report("refusal", topic, index, text)
        self.positions[place] = self.starts[place] = start.offset

    def _take(self, place: TopicPartition, node: int, data: Any) -> list[Seen]:
        # Another broker may know less of what is committed for a moment, so marks are of one life of one broker.
        running = self.world.dispatcher(node)
        who = f"{self.name} at {node} in life {running[0] if running else 0}"
        self.stable[place] = data.last_stable_offset
        self.history.marks.append(
            Marks(who, *place, data.log_start_offset, data.last_stable_offset, data.high_watermark)
        )
        buffer = memoryview(b"" if data.records is None else b"".join(bytes(b) for b in _buffers(data.records)))
        position = self.positions[place]
        for _, header in iter_batches(buffer):
            position = max(position, header.next_offset)
        aborted = [
            (transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()
        ]
        fresh = [
            Seen(self.name, *place, record.offset, bytes(record.value or b"").decode())
            for header, batch in committed(buffer, aborted)
            for record in decode_records(batch, 0, header)
            if record.offset >= self.positions[place]
        ]
        if position > self.positions[place]:
            self.history.tell(
                "read",
                f"{self.name}: {place[0]}-{place[1]} from {self.positions[place]}: "
                f"{_some([str(seen.key) for seen in fresh]) or 'nothing committed'}",
            )
        self.positions[place] = position
        self.seen += fresh
        return fresh


def _some(keys: Sequence[str]) -> str:
    shown = ", ".join(keys) if len(keys) <= _SHOWN else f"{', '.join(keys[: _SHOWN - 1])}, … {keys[-1]}"
    return shown if len(keys) <= _SHOWN else f"{len(keys)} records: {shown}"


def _buffers(records: Any) -> list[Any]:
    return list(records) if isinstance(records, (list, tuple)) else [records]
