"""Producer id blocks: never the same id twice, and never one without a block from the controller."""

from __future__ import annotations

import pytest

from minibroker.controller.state import PRODUCER_ID_BLOCK_SIZE as BLOCK_SIZE
from minibroker.coordinators.producer_ids import Block, ProducerIdBlocks
from minibroker.kernel.deferred import Deferred, resolved
from minibroker_protocol.errors import ApiError, ErrorCode


class Controller:
    """Hands out blocks at once, or when `answer` is called."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.asked = 0
        self._next = 0
        self._waiting: list[Deferred[Block]] = []

    def allocate(self) -> Deferred[Block]:
        self.asked += 1
        if self.at_once:
            return resolved(self._block())
        waiting: Deferred[Block] = Deferred()
        self._waiting.append(waiting)
        return waiting

    def _block(self) -> Block:
        first = self._next
        self._next += BLOCK_SIZE
        return first, BLOCK_SIZE

    def answer(self) -> None:
        self._waiting.pop(0).resolve(self._block())

    def refuse(self) -> None:
        self._waiting.pop(0).fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "no controller"))


def test_ids_are_counted_through_blocks_without_a_gap() -> None:
    ids = ProducerIdBlocks(Controller().allocate)
    assert [ids.take() for _ in range(2500)] == list(range(2500))


def test_the_next_block_is_asked_for_when_nine_tenths_are_used() -> None:
    controller = Controller(at_once=False)
    ids = ProducerIdBlocks(controller.allocate)
    waiting = ids.ready()
    controller.answer()
    assert waiting.done
    for _ in range(899):
        ids.take()
    assert controller.asked == 1
    ids.take()
    assert controller.asked == 2
    for _ in range(100):
        ids.take()
    assert controller.asked == 2, "one request at a time"
    with pytest.raises(ApiError) as caught:
        ids.take()
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    controller.answer()
    assert ids.take() == 1000


def test_a_restart_discards_the_rest_of_the_block() -> None:
    controller = Controller()
    assert ProducerIdBlocks(controller.allocate).take() == 0
    assert ProducerIdBlocks(controller.allocate).take() == 1000


def test_a_refused_block_is_asked_for_again() -> None:
    controller = Controller(at_once=False)
    ids = ProducerIdBlocks(controller.allocate)
    first = ids.ready()
    controller.refuse()
    assert first.done
    assert not ids.available
    with pytest.raises(ApiError, match="still being allocated"):
        ids.take()
    assert controller.asked == 2
    controller.answer()
    assert ids.take() == 0
