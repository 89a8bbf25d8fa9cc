"""A small producer and consumer on the wire that does one thing wrong, named by its argument; `right` does none."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from minibroker.client.connection import BrokerFailed, Connection
from minibroker.kernel.addresses import parse_address
from minibroker_protocol import messages as m
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import registry

TOPIC, GROUP, ID = "orders", "workers", "tx"
CLIENT_ID = "mini"
BEGAN = time.time_ns() // 1_000_000
Producer = tuple[int, int]
NOBODY: Producer = (-1, -1)


class Client:
    """One request after the other; one that was not answered is sent again, unchanged."""

    def __init__(self) -> None:
        self._connection = Connection(parse_address(os.environ["BOOTSTRAP_SERVERS"]), 10)
        self._count = 0
        self.tries = 3

    def call(self, request: Any, version: int) -> Any:
        for tries_left in range(self.tries, 0, -1):
            try:
                return self._once(request, version)
            except BrokerFailed:
                self._connection = Connection(parse_address(os.environ["BOOTSTRAP_SERVERS"]), 10)
                if tries_left == 1:
                    raise
        raise AssertionError

    def _once(self, request: Any, version: int) -> Any:
        key = request.__api_key__
        self._count += 1
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=self._count, client_id=CLIENT_ID
        )
        flexible = version >= first_flexible_version(key)
        self._connection.send_frame(header.encode(2 if flexible else 1) + request.encode(version))
        return registry()[key][1].decode(self._connection.receive(10), version, 5 if flexible else 4)

    def init(self, held: Producer = NOBODY, *, name: str | None = None) -> Producer:
        request = m.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=60_000, producer_id=held[0], producer_epoch=held[1]
        )
        while True:
            answer = self.call(request, 4)
            if answer.error_code not in (14, 15, 16, 51):
                assert not answer.error_code, answer
                return answer.producer_id, answer.producer_epoch
            self.call(m.FindCoordinatorRequest(key=name or "", key_type=1), 2)
            time.sleep(0.05)

    def send(
        self,
        value: str,
        producer: Producer = NOBODY,
        sequence: int = -1,
        *,
        name: str | None = None,
        topic: str = TOPIC,
        transactional: bool | None = None,
        at: int = BEGAN,
    ) -> int:
        """The error code."""
        batch = build_batch(
            [Record(timestamp=at, value=value.encode())],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=name is not None if transactional is None else transactional,
        )
        data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
        request = m.ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        return int(self.call(request, 12).responses[0].partition_responses[0].error_code)

    def end(self, producer: Producer, *, commit: bool = True) -> Producer:
        """The producer for the next transaction."""
        request = m.EndTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        answer = self.call(request, 5)
        assert not answer.error_code, answer
        return answer.producer_id, answer.producer_epoch

    def commit_offset(self, offset: int) -> None:
        partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        request = m.OffsetCommitRequest(group_id=GROUP, member_id="", generation_id_or_member_epoch=-1, topics=[topic])
        while self.call(request, 8).topics[0].partitions[0].error_code:
            self.call(m.FindCoordinatorRequest(key=GROUP, key_type=0), 2)
            time.sleep(0.05)


def tell(event: str, **fields: object) -> None:
    """A line of the history."""
    with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "topic": TOPIC, **fields}) + "\n")


def right(c: Client) -> None:
    """Idempotent, then transactional, and believes what is so."""
    producer = c.init()
    for number in range(4):
        tell("send", value=f"i{number}")
        assert c.send(f"i{number}", producer, number) == 0
        tell("ack", value=f"i{number}")
        tell("read", partition=0, offset=number, value=f"i{number}")
    producer = c.init(name=ID)
    for transaction, outcome in enumerate(("commit", "abort", "commit")):
        tell("send", value=f"t{transaction}", transaction=transaction)
        assert c.send(f"t{transaction}", producer, 0, name=ID) == 0
        producer = c.end(producer, commit=outcome == "commit")
        tell("end", transaction=transaction, outcome=outcome)
    for number in range(2):
        c.send(f"x{number}", topic="in")
        c.send(f"x{number}", topic="out")
    c.commit_offset(1)


def duplicate_record(c: Client) -> None:
    """Sends again after a lost answer, without a producer id."""
    for number in range(4):
        c.send(f"v{number}")


def duplicate_record_by_the_network(c: Client) -> None:
    """Has no producer id by which the broker could see that a batch came twice."""
    c.send("v")


def duplicate_record_by_new_id(c: Client) -> None:
    """Sends again after a lost answer, under a new producer id."""
    c.tries = 1
    producer, sequence = c.init(), 0
    for number in range(4):
        while True:
            try:
                c.send(f"v{number}", producer, sequence)
            except BrokerFailed:
                producer, sequence = c.init(), 0
            else:
                sequence += 1
                break


def duplicate_record_by_history(c: Client) -> None:
    """Sends again with a new timestamp, as an application's own retry does."""
    tell("send", value="v")
    c.send("v", c.init(), 0)
    c.send("v", c.init(), 0, at=BEGAN + 777)


def duplicate_content(c: Client) -> None:
    """Bumps its epoch and sends again what had been appended."""
    producer = c.init(name=ID)
    c.send("v", producer, 0, name=ID)
    c.send("v", c.end(producer), 0, name=ID)
    c.end((producer[0], producer[1] + 1))


def lost_record(c: Client) -> None:
    """Uses a sequence twice; the second record is taken for a retry of the first."""
    producer = c.init()
    c.send("first", producer, 0)
    assert c.send("second", producer, 0) == 0


def lost_record_by_history(c: Client) -> None:
    """Believes that a transaction was committed, and aborted it."""
    producer = c.init(name=ID)
    tell("send", value="v", transaction=1)
    c.send("v", producer, 0, name=ID)
    c.end(producer, commit=False)
    tell("end", transaction=1, outcome="commit")


def torn_transaction(c: Client) -> None:
    """Spreads one transaction of its own over two of Kafka's."""
    producer = c.init(name=ID)
    for number, commit in enumerate((True, False)):
        tell("send", value=f"v{number}", transaction=1)
        assert c.send(f"v{number}", producer, 0, name=ID) == 0
        tell("ack", value=f"v{number}")
        producer = c.end(producer, commit=commit)


def aborted_read(c: Client) -> None:
    """Gives its application records of an aborted transaction."""
    producer = c.init(name=ID)
    tell("send", value="v", transaction=1)
    c.send("v", producer, 0, name=ID)
    c.end(producer, commit=False)
    tell("end", transaction=1, outcome="abort")
    tell("read", partition=0, offset=0, value="v")


def order(c: Client) -> None:
    """Gives its application one record twice."""
    tell("send", value="v")
    c.send("v", c.init(), 0)
    for _ in range(2):
        tell("read", partition=0, offset=0, value="v")


def stray_record(c: Client) -> None:
    """Writes what its application did not ask for."""
    producer = c.init()
    tell("send", value="v0")
    for number in range(2):
        c.send(f"v{number}", producer, number)


def no_producer_id(c: Client) -> None:
    """Marks a batch as transactional and names no producer."""
    assert c.send("v", name=ID) == 0


def offset_end(c: Client) -> None:
    """Commits an offset past the end."""
    c.send("v")
    c.commit_offset(99)


def lineage_lost(c: Client) -> None:
    """Reads two records and writes one."""
    for value, topic in (("a", "in"), ("b", "in"), ("a", "out")):
        c.send(value, topic=topic)


def lineage_unfinished(c: Client) -> None:
    """Reads two records, writes one and fails."""
    lineage_lost(c)
    sys.exit(3)


def lineage_duplicate(c: Client) -> None:
    """Reads one record and writes two."""
    for number, topic in enumerate(("in", "out", "out")):
        c.send("a", topic=topic, at=BEGAN + number)


def lineage_stray(c: Client) -> None:
    """Writes what it did not read."""
    c.send("a", topic="in")
    for value in ("a", "b"):
        c.send(value, topic="out")


def no_progress(c: Client) -> None:
    """Reads a record, and never comes to an end."""
    c.send("v", topic="in")
    time.sleep(600)


def gave_up(c: Client) -> None:
    """Comes to an end without the success it tried for."""
    c.send("v")
    tell("give up", reason="every try failed")


WRONG: dict[str, Callable[[Client], None]] = {
    f.__name__: f
    for f in (
        right, duplicate_record, duplicate_record_by_the_network, duplicate_record_by_new_id,
        duplicate_record_by_history, duplicate_content, lost_record,
        lost_record_by_history, torn_transaction, aborted_read, order, stray_record, no_producer_id, offset_end,
        lineage_lost, lineage_unfinished, lineage_duplicate, lineage_stray, no_progress, gave_up,
    )
}  # fmt: skip


if __name__ == "__main__":
    WRONG[sys.argv[1]](Client())
