"""A loop that consumes `in`, produces to `out` and commits its offsets, with confluent-kafka, for `minibroker judge`.

The argument names the mistake in it (`judged_loops.py`); `right` has none. The loop fills its input itself, with one
Produce, and ends when it has gone through it. Started again it goes on where its group stood.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition, libversion

INPUTS, IN_ONE, WAIT = 6, 2, 8.0
COMMON = {
    "bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"],
    "log_level": 0,
    # With the default, send_offsets_to_transaction may not return once no broker was there (librdkafka#5511).
    **({"metadata.recovery.strategy": "none"} if libversion()[1] >= 0x020A0000 else {}),
}
TIMEOUTS = {"socket.timeout.ms": 1500, "request.timeout.ms": 1500}
SHORT = {**TIMEOUTS, "linger.ms": 0, "transaction.timeout.ms": 20_000}


class Loop:
    """instance: of two on one host, each with a group and an output of its own."""

    def __init__(self, mistake: str, instance: str = "") -> None:
        self.mistake, self.out = mistake, f"out{instance}"
        self.names = 0
        self.first_metadata: Any = None
        isolation = "read_uncommitted" if mistake == "read_uncommitted" else "read_committed"
        group = {"group.id": f"loop{instance}", "isolation.level": isolation, "session.timeout.ms": 6000}
        how = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": mistake == "auto_commit",
            "enable.partition.eof": True,
        }
        often = {"socket.timeout.ms": 1500, "auto.commit.interval.ms": 100, "enable.auto.offset.store": False}
        self.consumer = Consumer({**COMMON, **group, **how, **often})
        self.fill()
        self.batch: list[Any] = []
        self.ended = False
        listener = {"on_revoke": self.revoked} if mistake == "listener_commits" else {}
        self.consumer.subscribe(["in"], on_assign=self.assigned, **listener)
        self.producer = self.new()

    def fill(self) -> None:
        """The whole input at once, so that the script's failures of Produce are left to the loop."""
        end = self.end_of_input()
        if end == 0:
            feeder = Producer({**COMMON, **TIMEOUTS, "linger.ms": 200, "enable.idempotence": True})
            for number in range(INPUTS):
                dropped = self.mistake == "tombstone_dropped" and number == INPUTS - 1
                feeder.produce("in", None if dropped else f"v{number}", partition=0)
            feeder.flush()

    def end_of_input(self) -> int:
        """Asked for before librdkafka knows the broker by its id, it may be refused."""
        for _ in range(9):
            try:
                return int(self.consumer.get_watermark_offsets(TopicPartition("in", 0), WAIT)[1])
            except KafkaException as error:
                refused = error
        raise refused

    def new(self, name: str = "loop") -> Producer:
        plain = self.mistake == "delivery_unseen"
        made = Producer({**COMMON, **SHORT, **({"enable.idempotence": True} if plain else {"transactional.id": name})})
        for _ in range(5):
            try:
                if not plain:
                    made.init_transactions(WAIT)
                return made
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        return made

    def run(self) -> None:
        deadline = time.monotonic() + (20 if self.mistake == "stale_metadata" else 60)
        size = {"position": 2 * IN_ONE, "listener_commits": 2 * IN_ONE, "one_id_twice": 1}.get(self.mistake, IN_ONE)
        while time.monotonic() < deadline and (self.batch or not self.ended):
            message = self.consumer.poll(0.2)
            error = None if message is None else message.error()
            if error is not None:
                self.ended |= error.code() == KafkaError._PARTITION_EOF
            elif message is not None:
                self.batch.append(message)
            if self.batch and (self.ended or len(self.batch) == size):
                batch, self.batch = self.batch, []
                if self.mistake == "position":
                    # Everything was fetched: the position is behind what the second transaction has yet to send.
                    offsets = self.consumer.position(self.consumer.assignment())
                    self.transact(batch[:IN_ONE], offsets)
                    self.transact(batch[IN_ONE:], offsets)
                else:
                    past = 0 if self.mistake == "last_offset" else 1
                    self.transact(batch, [TopicPartition("in", 0, batch[-1].offset() + past)])
        self.consumer.close()

    def assigned(self, *_: object) -> None:
        """From here on everything is read again that was not committed."""
        self.batch, self.ended = [], False

    def revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        """What a batch in hand has is skipped then."""
        positions = [place for place in self.consumer.position(partitions) if place.offset >= 0]
        if positions:
            self.consumer.commit(offsets=positions, asynchronous=False)

    def transact(self, batch: list[Any], offsets: list[TopicPartition]) -> None:
        if not batch:
            return
        if self.mistake == "delivery_unseen":
            for message in batch:
                self.producer.produce(self.out, message.value())
            self.producer.flush(WAIT)
            self.consumer.commit(offsets=offsets, asynchronous=False)
            return
        try:
            self.begin()
            for message in batch:
                if message.value() is not None:  # what has none is filtered: the mistake `tombstone_dropped`
                    self.producer.produce(self.out, message.value())
            self.work(offsets)
            if self.mistake != "offsets_outside":
                group = self.group_metadata()
                self.producer.send_offsets_to_transaction(offsets, group, WAIT)
            self.commit()
            if self.mistake == "offsets_outside":
                self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self.failed(error, batch, offsets)

    def group_metadata(self) -> Any:
        """With the mistake `stale_metadata` that of the first generation."""
        if self.mistake != "stale_metadata" or self.first_metadata is None:
            self.first_metadata = self.consumer.consumer_group_metadata()
        return self.first_metadata

    def begin(self) -> None:
        self.producer.begin_transaction()

    def work(self, offsets: list[TopicPartition]) -> None:
        """What takes its time while a transaction is open."""
        if self.mistake == "auto_commit":  # of what is written, so that nothing is lost, as it seems
            self.producer.flush(WAIT)
            self.consumer.store_offsets(offsets=offsets)
            time.sleep(0.5)

    def commit(self) -> None:
        """Commit; a timeout says nothing about the outcome, so it is asked for again."""
        tries = 1 if self.mistake in ("new_id", "init_retried_only") else 5
        for number in range(1, tries + 1):
            try:
                self.producer.commit_transaction(0.7 if tries == 1 else WAIT)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or number == tries:
                    raise

    def failed(self, error: KafkaException, batch: list[Any], offsets: list[TopicPartition]) -> None:
        cause = error.args[0]
        if self.mistake == "new_id" and cause.retriable():
            self.names += 1
            self.producer = self.new(f"loop-{os.getpid()}-{self.names}")
            self.transact(batch, offsets)
            return
        if self.mistake == "init_retried_only" and cause.retriable():
            self.producer = self.new()
            self.transact(batch, offsets)
            return
        if self.mistake == "swallowed":
            self.producer = self.new()
            self.consumer.commit(offsets=offsets, asynchronous=False)
            return
        if not cause.txn_requires_abort() or not self.aborts():
            self.producer = self.new()
        if self.mistake != "no_seek":
            self.go_back()

    def aborts(self) -> bool:
        try:
            self.producer.abort_transaction(WAIT)
        except KafkaException:
            return False
        return True

    def go_back(self) -> None:
        """To what the group has committed: a commit whose outcome nobody told may have succeeded."""
        (place,) = self.consumer.committed([TopicPartition("in", 0)], WAIT)
        self.consumer.seek(TopicPartition("in", 0, max(place.offset, 0)))
        self.ended = False


class Shared(Loop):
    """One of two loops with one producer: each may be in the other's transaction, and takes it for its own."""

    only: Producer | None = None
    making = threading.Lock()
    wrote, committed = threading.Event(), threading.Event()

    def new(self, name: str = "loop") -> Producer:
        with self.making:
            Shared.only = self.only or super().new(name)
            return Shared.only

    def transact(self, batch: list[Any], offsets: list[TopicPartition]) -> None:
        if self.out != "out":  # this one is in the other's first transaction, and ends it
            self.wrote.wait(WAIT)
        super().transact(batch, offsets)

    def begin(self) -> None:
        with suppress(KafkaException):  # it has begun already
            super().begin()

    def work(self, offsets: list[TopicPartition]) -> None:
        if self.out == "out":
            self.producer.flush(WAIT)
            self.wrote.set()
            self.committed.wait(WAIT)

    def commit(self) -> None:
        super().commit()
        self.committed.set()

    def failed(self, error: KafkaException, batch: list[Any], offsets: list[TopicPartition]) -> None:
        with suppress(KafkaException):
            self.producer.abort_transaction(WAIT)
        self.go_back()


if __name__ == "__main__":
    kind = Shared if sys.argv[1] == "shared_producer" else Loop
    loops = [kind(sys.argv[1])]
    if sys.argv[1] in ("one_id_twice", "shared_producer"):  # the first as where the id is made of the host's name
        loops.append(kind(sys.argv[1], "2"))
    with ThreadPoolExecutor(len(loops)) as threads:
        runs = [threads.submit(loop.run) for loop in loops]
    for run in runs:
        run.result()  # the error that ended it ends the program
