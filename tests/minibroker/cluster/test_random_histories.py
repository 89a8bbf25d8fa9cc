"""Random events against random producers: what was acknowledged by all in sync is there once, in order, everywhere."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from many_brokers import ManyBrokers
from sampling import thinned

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Record, build_batch, decode_records, iter_batches

SEEDS = range(40)
STEPS = 60
RETRIED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class History:
    """One idempotent producer that has one record on its way, as long as it takes, and the events around it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.brokers = ManyBrokers(3)
        self.brokers.create("t", [[1, 2, 3]], {"min.insync.replicas": "2"})
        self.down: set[int] = set()
        self.sequence = 0
        self.acknowledged: list[bytes] = []
        self.pending: Any = None
        self.told: list[str] = []
        self.end_seen = 0
        self.refused: ErrorCode | None = None

    def step(self) -> None:
        action = self.random.choices(
            (self.produce, self.kill, self.stop, self.start, self.move, self.reassign, self.wait),
            (10, 2, 1, 5, 2, 1, 4),
        )[0]
        self.told.append(action.__name__)
        action()
        self.observe()

    def produce(self) -> None:
        leader = self.brokers.cluster.image.leader_of("t", 0)
        if self.pending is not None and not self.pending.done:
            return
        self.collect()
        if leader is None:
            return
        batch = build_batch(
            [Record(0, self.brokers.clock.now_ms(), None, b"%d" % self.sequence, [])],
            producer_id=5,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.pending = self.brokers.send(leader, self.brokers.produce_request("t", batch), 9)

    def collect(self) -> None:
        """Take the answer; one that never comes, or that clients retry, means the same record again."""
        if self.pending is None or not self.pending.done:
            self.pending = None
            return
        pending, self.pending = self.pending, None
        answer = pending.result().responses[0].partition_responses[0]
        if answer.error_code == 0:
            self.acknowledged.append(b"%d" % self.sequence)
            self.sequence += 1
        else:
            self.refused = ErrorCode(answer.error_code)
            assert self.refused in RETRIED, (self.refused, self.told)

    def _up(self) -> list[int]:
        return sorted(self.brokers.cluster.brokers)

    def _end(self, end: Any) -> None:
        # Two at a time may be down: with one replica in sync nothing is acknowledged, and nobody else may lead.
        if len(self._up()) > 1:
            node = self.random.choice(self._up())
            end(node)
            self.down.add(node)
            if self.pending is not None and not self.pending.done:
                self.pending = None  # its connection may be the one that ended

    def kill(self) -> None:
        self._end(self.brokers.cluster.kill_broker)

    def stop(self) -> None:
        self._end(self.brokers.cluster.stop_broker)

    def start(self) -> None:
        if self.down:
            node = self.random.choice(sorted(self.down))
            self.brokers.cluster.start_broker(node)
            self.down.discard(node)

    def move(self) -> None:
        try:
            self.brokers.cluster.move_leader("t", 0, self.random.choice((1, 2, 3)))
        except ApiError as error:
            if error.code not in (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELECTION_NOT_NEEDED):
                raise

    def reassign(self) -> None:
        replicas = self.random.sample((1, 2, 3), self.random.choice((2, 3)))
        self.brokers.cluster.reassign("t", 0, replicas)

    def wait(self) -> None:
        self.brokers.settle(self.random.choice((1, 2, 3, 5, 20, 700)))

    def observe(self) -> None:
        """The end that consumers see never goes back, whoever leads."""
        image = self.brokers.cluster.image.partition("t", 0)
        assert image is not None
        broker = self.brokers.cluster.brokers.get(image.leader)
        if broker is not None:
            partition = broker.partition("t", 0)
            if not partition.lags_behind_epoch:
                end = partition.high_watermark
                assert end >= self.end_seen, (end, self.end_seen, self.told)
                self.end_seen = end

    def finish(self) -> None:
        for node in sorted(self.down):
            self.brokers.cluster.start_broker(node)
        self.down.clear()
        for _ in range(100):
            self.brokers.settle(100)
            image = self.brokers.cluster.image.partition("t", 0)
            assert image is not None
            if len(image.isr) == len(image.replicas) and not image.adding:
                break
            if set(image.adding) & set(image.removing):  # it leads back: as in Kafka, it waits until it is cancelled
                self.brokers.cluster.controller.reassignments.reassign("t", 0, None)
        else:
            raise AssertionError(f"not in sync in the end: {image} {self.told}")
        self.brokers.settle(1000)
        self.collect()
        last_sequence = self.sequence
        for _ in range(50):  # the producer gets its last record through
            self.produce()
            self.brokers.settle(50)
            self.collect()
            if self.sequence > last_sequence:
                break
        else:
            raise AssertionError(f"no record is taken in the end: {self.refused!r} {self.told}")
        self.brokers.settle(1000)


@pytest.mark.parametrize("seed", thinned(SEEDS, 3))
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.finish()
    brokers = history.brokers
    image = brokers.cluster.image.partition("t", 0)
    assert image is not None
    logs = {node: brokers.log_bytes(node, "t") for node in image.replicas}
    assert len(set(logs.values())) == 1, history.told
    (log,) = set(logs.values())
    values = [
        bytes(record.value or b"")
        for position, header in iter_batches(log)
        for record in decode_records(log, position, header)
    ]
    assert values == history.acknowledged, history.told
    entries = {brokers.partition(node, "t").log.producers.entry(5).last_sequence for node in image.replicas}  # type: ignore[union-attr]
    assert entries == {history.sequence - 1}
    brokers.stop()
