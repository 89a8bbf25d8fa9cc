from __future__ import annotations

import random

import pytest

from minibroker.server.memory import LARGEST_ORDINARY_BYTES, RequestMemory, wanted_bytes

KIB, MIB = 1024, 1024 * 1024
LARGE = LARGEST_ORDINARY_BYTES + 1


class Request:
    """A request of `size` bytes that asks for memory as its bytes arrive."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        self.memory, self.size = memory, size
        self.held = 0
        self.waits = False

    def ask(self, more: int) -> bool:
        granted = self.memory.reserve(self, self.size, self.held, more)
        self.held += granted
        self.waits = not granted
        return not self.waits

    def memory_granted(self, granted: int) -> None:
        assert self.waits
        self.held += granted
        self.waits = False

    def end(self) -> None:
        held, self.held = self.held, 0
        self.memory.release(self.size, held)


def test_requests_are_granted_memory_in_the_order_they_ask_even_if_a_later_one_would_fit() -> None:
    memory = RequestMemory(100)
    holder, first, second = Request(memory, 60), Request(memory, 80), Request(memory, 10)
    assert holder.ask(60)
    assert not first.ask(80)
    assert not second.ask(10)
    assert [request.waiter for request in memory.waiting] == [first, second]
    holder.end()
    assert (first.held, second.held, memory.used, memory.contended) == (80, 10, 90, False)


def test_a_request_larger_than_the_limit_is_served_alone() -> None:
    memory = RequestMemory(100)
    holder, large, next_one = Request(memory, 1), Request(memory, 500), Request(memory, 1)
    assert holder.ask(1)
    assert large.ask(90)
    assert not large.ask(200)
    holder.end()
    assert (large.held, memory.used) == (500, 500)
    assert not next_one.ask(1)
    large.end()
    assert (next_one.held, memory.used) == (1, 1)


def test_of_requests_that_wait_for_each_other_the_first_gets_all_that_it_lacks() -> None:
    memory = RequestMemory(100)
    first, second, third = [Request(memory, 80) for _ in range(3)]
    assert all(request.ask(30) for request in (first, second, third))
    assert not first.ask(50)
    assert not second.ask(50)
    assert (first.held, second.held) == (30, 30)
    assert not third.ask(50)  # now nobody goes on
    assert (first.held, second.held, third.held, memory.used) == (80, 30, 30, 140)
    first.end()
    assert (second.held, third.held, memory.used) == (80, 30, 110)
    second.end()
    assert (third.held, memory.used, memory.contended) == (80, 80, False)


def test_large_requests_use_half_of_the_limit_and_do_not_stop_ordinary_ones() -> None:
    memory = RequestMemory(8 * MIB)
    large, second, ordinary = Request(memory, LARGE), Request(memory, LARGE), Request(memory, LARGEST_ORDINARY_BYTES)
    assert large.ask(LARGE)
    assert second.ask(2 * MIB - 1)
    assert not second.ask(2)
    assert ordinary.ask(LARGEST_ORDINARY_BYTES)
    assert Request(memory, 3).ask(3)
    large.end()
    assert second.held == 2 * MIB + 1


def test_ordinary_requests_use_the_whole_limit() -> None:
    memory = RequestMemory(4 * MIB)
    assert [Request(memory, MIB).ask(MIB) for _ in range(5)] == [True] * 4 + [False]


def test_a_request_that_is_withdrawn_gets_nothing_and_does_not_hold_up_the_next() -> None:
    memory = RequestMemory(100)
    holder, gone, next_one = Request(memory, 50), Request(memory, 80), Request(memory, 50)
    assert holder.ask(50)
    assert not gone.ask(80)
    assert not next_one.ask(50)
    memory.withdraw(gone, gone.size)
    assert (gone.held, next_one.held, memory.used, memory.contended) == (0, 50, 100, False)


def test_no_limit() -> None:
    memory = RequestMemory(-1)
    assert all(Request(memory, 1 << 40).ask(1 << 40) for _ in range(3))


@pytest.mark.parametrize(
    ("size", "received", "wanted"),
    [
        (100 * MIB, 0, 16 * KIB),
        (20 * KIB, 0, 16 * KIB),
        (20 * KIB, 16 * KIB, 20 * KIB),
        (100 * MIB, 64 * KIB, 256 * KIB),
        (100 * MIB, 256 * KIB, MIB),
        (100 * MIB, 10 * MIB, 14 * MIB),
        (100 * MIB, 99 * MIB, 100 * MIB),
    ],
)
def test_a_request_asks_for_at_most_four_times_what_arrived(size: int, received: int, wanted: int) -> None:
    assert wanted_bytes(size, received) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_every_request_ends_and_the_limit_is_exceeded_by_one_of_each_kind_at_most(seed: int) -> None:
    choose = random.Random(seed)
    limit = choose.choice([1, MIB, 8 * MIB, 64 * MIB])
    memory = RequestMemory(limit)
    requests = [Request(memory, choose.choice([20 * KIB, MIB, 2 * MIB, 3 * MIB, 50 * MIB])) for _ in range(40)]
    most = limit + LARGEST_ORDINARY_BYTES + 50 * MIB
    left, steps = list(requests), 0
    while left:
        ready = [request for request in left if not request.waits]
        assert ready, "no request can go on"
        request = choose.choice(ready)
        steps += 1
        if request.held == request.size:
            request.end()
            left.remove(request)
        else:
            request.ask(wanted_bytes(request.size, request.held) - request.held)
        assert memory.used == sum(each.held for each in requests) <= most
        if choose.random() < 0.02 and left:
            gone = choose.choice(left)
            left.remove(gone)
            if gone.waits:
                memory.withdraw(gone, gone.size)
            gone.end()
    assert (memory.used, memory.contended) == (0, False)
    assert steps < 2000
