"""A request that only waits needs none of the bytes it came in: others get their memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from many_brokers import ManyBrokers

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.dsl import Request
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.records import Record, build_batch

PADDING = 4000
LONG_MS = (1 << 31) - 1


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    running = ManyBrokers(3)
    running.create("t", [[1, 2, 3]])
    running.cluster.cut_link(1, 3)  # so what is written is not in every replica
    yield running
    running.stop()


class Sent:
    """A request whose bytes only the broker refers to. released: sizes of the frames it gave back."""

    def __init__(
        self, brokers: ManyBrokers, node_id: int, request: Request, version: int, *, gone: bool = False
    ) -> None:
        self.released: list[int] = []
        self.info = ConnectionInfo(gone=gone, release=lambda frame: self.released.append(len(frame)))
        self._buffer = brokers.frame(request, version)
        self.size = len(self._buffer)
        self.answer: Any = brokers.cluster.dispatcher(node_id).dispatch(memoryview(self._buffer), self.info)

    def is_viewed(self) -> bool:
        try:
            self._buffer.append(self._buffer.pop())  # refused while there is a view
        except BufferError:
            return True
        return False


def produce(brokers: ManyBrokers) -> ProduceRequest:
    batch = build_batch([Record(0, brokers.clock.now_ms(), None, bytes(PADDING), [])])
    request = brokers.produce_request("t", batch)
    request.timeout_ms = LONG_MS
    return request


def fetch(_: ManyBrokers) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    padding = FetchRequest.ForgottenTopic(topic="other", partitions=list(range(PADDING // 4)))
    return FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1 << 30,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
        forgotten_topics_data=[padding],
    )


@pytest.mark.parametrize(("make", "version"), [(produce, 9), (fetch, 12)])
def test_the_bytes_of_a_request_that_waits_are_given_back(brokers: ManyBrokers, make: Any, version: int) -> None:
    sent = Sent(brokers, 1, make(brokers), version)
    assert not sent.answer.done
    assert sent.size > PADDING
    assert sent.released == [sent.size]
    assert not sent.is_viewed()


def test_records_that_are_still_to_be_written_are_kept(brokers: ManyBrokers) -> None:
    brokers.cluster.pause_broker(1)
    written, waiting = Sent(brokers, 1, produce(brokers), 9), Sent(brokers, 1, fetch(brokers), 12)
    assert (written.released, waiting.released) == ([], [waiting.size])
    assert written.is_viewed()
    brokers.cluster.resume_broker(1)
    brokers.settle()
    assert written.released == [written.size]
    assert brokers.partition(1, "t").log.log_end_offset == 1


def test_a_fetch_whose_client_left_waits_no_longer(brokers: ManyBrokers) -> None:
    waiting = Sent(brokers, 1, fetch(brokers), 12)
    assert waiting.info.on_gone is not None
    waiting.info.gone = True
    waiting.info.on_gone()
    assert waiting.answer.done
    assert waiting.info.on_gone is None


def test_a_fetch_whose_client_left_before_its_turn_does_not_wait(brokers: ManyBrokers) -> None:
    sent = Sent(brokers, 1, fetch(brokers), 12, gone=True)
    assert not isinstance(sent.answer, Deferred) or sent.answer.done
