"""Unusual clients: one deletes records, one writes transactional batches without a producer id."""

from __future__ import annotations

import contextlib

from minibroker.rules.rows import Seen
from minibroker_lab.simulation.client import RETRIABLE
from minibroker_lab.simulation.history import ABORT
from minibroker_lab.simulation.links import Disconnected
from minibroker_lab.simulation.producers import Abortable, Fatal, Producer
from minibroker_lab.simulation.readers import Reader
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offsets import DeleteRecordsRequest, DeleteRecordsResponse

CARELESS = "careless"
"""Transactional id of the client that has no producer id."""


class Janitor(Reader):
    """Reads partitions and deletes the records that it has read. `seen`: those records."""

    async def run(self) -> None:
        """Until the world closes."""
        rate = self.world.plan.delete_records
        while not self.world.closing:
            await self.pause(min(2000.0, self.random.expovariate(rate) * 1000))
            place = self.random.choice(list(self.positions))
            await self.poll(place)
            if self.positions[place] and not self.world.closing:
                await self._delete(place, self.random.randint(1, self.positions[place]))

    async def _delete(self, place: tuple[str, int], offset: int) -> None:
        topic, index = place
        wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=500
        )
        node = await self.leader(topic, index)
        self.tell("DeleteRecords", f"has {topic}-{index} deleted below {offset} at {node}")
        try:
            answer = await self.ask(node, request, 2, DeleteRecordsResponse)
        except Disconnected:
            self.lost_leader(topic, index)
            return
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        self.tell(f"DeleteRecords: {code.name}", f"DeleteRecords of {topic}-{index}: {code.name}")
        if code in RETRIABLE:
            self.lost_leader(topic, index)
        elif code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):  # a new leader's high watermark may lag
            self.history.report(
                "refusal", topic, index, f"{self.name} is told {code.name} by DeleteRecords at {offset}"
            )

    def deleted(self, starts: dict[tuple[str, int], int]) -> list[Seen]:
        """The records that it saw below these log start offsets."""
        return [seen for seen in self.seen if seen.offset < starts.get((seen.topic, seen.partition), 0)]


class Careless(Producer):
    """Ignores the response of InitProducerId, and writes transactional batches without a producer id. Brokers accept
    them, their transaction never ends, and readers get them."""

    async def run(self) -> None:
        """Until the world closes."""
        while not self.world.closing:
            self.begin()
            self.tell("no producer id", "writes a transactional batch without a producer id")
            with contextlib.suppress(Abortable, Fatal):
                await self.write([self.batch(self.random.choice(self.places), 1)])
            self.history.outcomes[self.transaction_name] = ABORT
            self._transaction = None
            await self.pause(300 + self.random.random() * 1000)
