"""One member of the consumer group that reads, transforms and writes inside transactions (the loop of KIP-447).

A member runs in a thread of the demo, or as a process of its own (`python -m minibroker_lab.demo.member`), which can be
killed for real. Its last act may be to stall in the middle of a transaction, as a process in a long pause does.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from minibroker.output import say

CALL_SECONDS = 30.0
BATCH_RECORDS = 40
BATCH_SECONDS = 0.05
FENCED_CODES = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
# Fenced and killed clients are part of the story and told by the demo; what they log about it themselves is dropped.
SILENCE = logging.getLogger("minibroker_lab.demo.clients")
SILENCE.addHandler(logging.NullHandler())
SILENCE.propagate = False
QUIET: dict[str, Any] = {"logger": SILENCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Settings of one member; times in milliseconds, `abort_rate` in 0..1."""

    name: str
    bootstrap: str
    group: str
    source: str
    target: str
    transactional_id: str
    session_timeout_ms: int
    transaction_timeout_ms: int
    abort_rate: float = 0.0
    stall_with_offsets: bool = False
    seed: int = 0


class Fenced(Exception):
    """Another producer with the same transactional.id has taken over; this one can only be closed."""


def transform(value: bytes) -> bytes:
    """What the loop does to a record: the id stays, the amount is doubled."""
    order = json.loads(value)
    return json.dumps({"id": order["id"], "doubled": 2 * order["amount"]}).encode()


class Member:
    """A consumer and a transactional producer bound together; `run` is the whole life of both."""

    def __init__(self, settings: MemberSettings, *, on_stall: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.committed = 0
        self.aborted = 0
        self.rebalances = 0
        self.fenced = False
        self.error: Exception | None = None
        self.ready = threading.Event()
        self.stall = threading.Event()
        self._stop = threading.Event()
        self._on_stall = on_stall
        self._random = random.Random(settings.seed)
        self._membership: object = None

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Process until stopped, fenced or failed; the attributes say which."""
        try:
            self._process()
        except Fenced:
            self.fenced = True
        except Exception as error:
            self.error = error
        finally:
            self.ready.set()

    def _process(self) -> None:
        producer = Producer(producer_config(self.settings))
        producer.init_transactions(CALL_SECONDS)
        consumer = Consumer(consumer_config(self.settings))
        try:
            consumer.subscribe(
                [self.settings.source], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
            self.ready.set()
            while not self._stop.is_set():
                batch = self._next_batch(consumer)
                if batch:
                    self._transact(producer, consumer, batch)
        finally:
            consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Taken here and not when offsets are sent: records polled under this generation must be committed under it,
        # or a member that has lost its partitions would commit them in the name of the next generation.
        self._membership = consumer.consumer_group_metadata()
        self.rebalances += 1

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._membership = None
        self.rebalances += 1

    def _next_batch(self, consumer: Consumer) -> list[Any]:
        """Some records, all polled under one assignment."""
        batch: list[Any] = []
        seen = self.rebalances
        deadline = time.monotonic() + BATCH_SECONDS
        while len(batch) < BATCH_RECORDS and (seconds := deadline - time.monotonic()) > 0:
            message = consumer.poll(seconds)
            if self.rebalances != seen:
                # What was polled before belongs to partitions that may have another owner by now.
                reset_to_committed(consumer)
                return []
            if message is not None and message.error() is None:
                batch.append(message)
        return batch

    def _transact(self, producer: Producer, consumer: Consumer, batch: list[Any]) -> None:
        try:
            producer.begin_transaction()
            for message in batch:
                producer.produce(self.settings.target, transform(message.value()), message.key())
            stalls = self.stall.is_set()
            if stalls and not self.settings.stall_with_offsets:
                self._stall(producer)
            producer.send_offsets_to_transaction(next_offsets(batch), self._membership, CALL_SECONDS)
            if stalls and self.settings.stall_with_offsets:
                self._stall(producer)
            if self._random.random() < self.settings.abort_rate:
                self._abort(producer, consumer)
                return
            commit(producer)
            self.committed += 1
        except KafkaException as refused:
            error = refused.args[0]
            if error.fatal() and error.code() in FENCED_CODES:
                raise Fenced from refused
            if not error.txn_requires_abort():
                raise
            self._abort(producer, consumer)

    def _stall(self, producer: Producer) -> None:
        producer.flush(CALL_SECONDS)
        self._on_stall()

    def _abort(self, producer: Producer, consumer: Consumer) -> None:
        producer.abort_transaction(CALL_SECONDS)
        self.aborted += 1
        reset_to_committed(consumer)


def producer_config(settings: MemberSettings) -> dict[str, Any]:
    return QUIET | {
        "bootstrap.servers": settings.bootstrap,
        "transactional.id": settings.transactional_id,
        "transaction.timeout.ms": settings.transaction_timeout_ms,
        "linger.ms": 0,
    }


def consumer_config(settings: MemberSettings) -> dict[str, Any]:
    return QUIET | {
        "bootstrap.servers": settings.bootstrap,
        "group.id": settings.group,
        "client.id": settings.name,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "session.timeout.ms": settings.session_timeout_ms,
        "max.poll.interval.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": max(100, settings.session_timeout_ms // 15),
        "fetch.wait.max.ms": 50,
    }


def next_offsets(batch: Iterable[Any]) -> list[TopicPartition]:
    """Per partition, the offset after the last record of the batch."""
    ends = {(message.topic(), message.partition()): message.offset() + 1 for message in batch}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]


def commit(producer: Producer) -> None:
    """Commit, trying again as long as the client says that this may help."""
    while True:
        try:
            producer.commit_transaction(CALL_SECONDS)
            return
        except KafkaException as refused:
            if not refused.args[0].retriable():
                raise


def reset_to_committed(consumer: Consumer) -> None:
    """Go back to where the group's last committed transaction ended, for every partition owned now."""
    deadline = time.monotonic() + CALL_SECONDS
    while (owned := consumer.assignment()) and time.monotonic() < deadline:
        try:
            for place in consumer.committed(owned, 1.0):
                start = place.offset if place.offset >= 0 else OFFSET_BEGINNING
                consumer.seek(TopicPartition(place.topic, place.partition, start))
            return
        except KafkaException as refused:
            # Offsets of a transaction that has not ended yet: the next try waits for its end.
            if refused.args[0].fatal():
                raise
            time.sleep(0.02)


def main() -> int:
    """Say `sharing` once two transactions are committed, then on a line of input stall, and say `stalled`."""
    member = Member(MemberSettings(**json.loads(sys.argv[1])), on_stall=stalled_for_ever)
    threading.Thread(target=member.run, daemon=True).start()
    while member.committed < 2:
        if member.error or member.fenced:
            say(f"broken: {member.error or 'fenced'}", flush=True)
            return 1
        time.sleep(0.01)
    say("sharing", flush=True)
    if sys.stdin.readline():
        member.stall.set()
        sys.stdin.read()  # ends when the demo does, if that comes before the kill
    return 0


def stalled_for_ever() -> None:
    say("stalled", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
