from __future__ import annotations

from minibroker.server.memory import RequestMemory


class Asker:
    def __init__(self) -> None:
        self.granted = 0

    def memory_granted(self) -> None:
        self.granted += 1


def test_whoever_asked_first_is_served_first_even_if_a_later_one_would_fit() -> None:
    memory, first, second = RequestMemory(100), Asker(), Asker()
    assert memory.reserve(Asker(), 60)
    assert not memory.reserve(first, 80)
    assert not memory.reserve(second, 10)
    memory.release(60)
    assert (first.granted, second.granted, memory.used) == (1, 1, 90)


def test_what_is_larger_than_the_limit_is_let_in_alone() -> None:
    memory, large = RequestMemory(100), Asker()
    assert memory.reserve(Asker(), 1)
    assert not memory.reserve(large, 500)
    memory.release(1)
    assert (large.granted, memory.used) == (1, 500)
    assert not memory.reserve(Asker(), 1)


def test_who_withdraws_is_not_granted_anything_and_holds_up_nobody() -> None:
    memory, gone, next_one = RequestMemory(100), Asker(), Asker()
    assert memory.reserve(Asker(), 50)
    assert not memory.reserve(gone, 80)
    assert not memory.reserve(next_one, 50)
    memory.withdraw(gone)
    assert (gone.granted, next_one.granted, memory.used, memory.contended) == (0, 1, 100, False)


def test_no_limit() -> None:
    memory = RequestMemory(-1)
    assert all(memory.reserve(Asker(), 1 << 40) for _ in range(3))
