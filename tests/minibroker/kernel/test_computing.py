"""In which order long work is done, and what of it is dropped. Work is counted in steps, and never timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from minibroker.kernel import computing as module
from minibroker.kernel.computing import Abandoned, Computing, ComputingEnded

STEPS = 16 * 1024
"""Between two reports."""
SHORT, MIDDLE, LONG, ENDLESS = 2 * STEPS, 8 * STEPS, 64 * STEPS, 300 * STEPS
SLICE = 2 * STEPS
PATIENCE = 60


class Client:
    """`wanted` of the work that a client asked for."""

    def __init__(self) -> None:
        self.gone = False

    def __call__(self) -> bool:
        return not self.gone


class Bench:
    """The thread, held by a first work until `go`, and a record of what was computed: (name, steps) in order."""

    def __init__(self) -> None:
        self.computing = Computing()
        self.done: list[str] = []
        self.steps: dict[str, int] = {}
        self.total_at: dict[str, int] = {}  # steps of all works at the end of each
        self._may_go = threading.Event()
        self._first = self.computing.submit(lambda _: self._may_go.wait(PATIENCE))

    def work(self, name: str, steps: int, *, at: dict[int, Callable[[], object]] | None = None) -> Callable[[Any], str]:
        """So many steps; `at` some of them a function is called, once."""
        calls = dict(at or {})

        def run(pace: Any) -> str:
            for step in range(STEPS, steps + 1, STEPS):
                self.steps[name] = self.steps.get(name, 0) + STEPS
                if step in calls:
                    calls.pop(step)()
                pace(STEPS)
            self.done.append(name)
            self.total_at[name] = sum(self.steps.values())
            return name

        return run

    def submit(self, name: str, steps: int, wanted: Client | None = None, **more: Any) -> Future[Any]:
        at = more.pop("at", None)
        return self.computing.submit(self.work(name, steps, at=at), wanted, **more)

    def go(self, *waited: Future[Any]) -> None:
        self._may_go.set()
        for future in (self._first, *waited):
            future.exception(PATIENCE)

    def close(self) -> None:
        self._may_go.set()
        self.computing.close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "sleep", lambda _: None)
    bench = Bench()
    yield bench
    bench.close()


def test_work_of_clients_that_are_gone_is_dropped_before_its_first_step(bench: Bench) -> None:
    gone = Client()
    dropped = [bench.submit(f"gone {number}", LONG, gone, walk=True) for number in range(100)]
    metadata = bench.submit("metadata", SHORT, Client())
    batch = bench.submit("batch", MIDDLE, Client(), walk=True)
    gone.gone = True
    bench.go(*dropped, metadata, batch)
    assert {type(future.exception()) for future in dropped} == {Abandoned}
    assert (bench.done, bench.steps) == (["metadata", "batch"], {"metadata": SHORT, "batch": MIDDLE})


def test_work_under_way_ends_at_its_next_report_once_its_client_is_gone(bench: Bench) -> None:
    client = Client()
    client_leaves = {10 * STEPS: lambda: setattr(client, "gone", True)}
    work = bench.submit("work", ENDLESS, client, walk=True, at=client_leaves)
    bench.go(work)
    assert type(work.exception()) is Abandoned
    assert bench.steps["work"] == 10 * STEPS


def test_kept_work_of_a_client_that_is_gone_is_done_after_all_other(bench: Bench) -> None:
    gone = Client()
    gone.gone = True
    kept = [bench.submit(f"kept {number}", LONG, gone, walk=True, keep=True) for number in range(3)]
    rest = [bench.submit("long", LONG, Client(), walk=True), bench.submit("short", SHORT)]
    bench.go(*kept, *rest)
    assert bench.done == ["short", "long", "kept 0", "kept 1", "kept 2"]
    assert [future.result() for future in kept] == ["kept 0", "kept 1", "kept 2"]


def test_short_work_waits_for_a_slice_of_long_work_at_most(bench: Bench) -> None:
    """However many connections have long work, and although they wait for it."""
    arrived = begun = 0
    short: list[Future[Any]] = []

    def arrive() -> None:
        nonlocal arrived
        arrived = sum(bench.steps.values())
        short.append(bench.submit("short", SHORT, Client(), at={STEPS: begin}))

    def begin() -> None:
        nonlocal begun
        begun = sum(bench.steps.values())

    crowd = [bench.submit("crowd", ENDLESS, Client(), walk=True, at={50 * STEPS: arrive})]
    crowd += [bench.submit(f"crowd {number}", ENDLESS, Client(), walk=True) for number in range(20)]
    bench.go(crowd[0])
    assert short[0].result(PATIENCE) == bench.done[0] == "short"
    assert 0 < begun - arrived <= SLICE + STEPS


def test_a_long_batch_is_checked_before_those_that_are_much_longer(bench: Bench) -> None:
    crowd = [bench.submit(f"crowd {number}", ENDLESS, Client(), walk=True) for number in range(5)]
    batch = bench.submit("batch", MIDDLE, Client(), walk=True)
    bench.go(batch)
    assert bench.done[0] == "batch"
    assert bench.total_at["batch"] <= MIDDLE + 5 * (MIDDLE + SLICE) + 6 * SLICE
    bench.go(*crowd)
    assert [future.result() for future in crowd] == [f"crowd {number}" for number in range(5)]


def test_work_alone_is_never_begun_again_whatever_it_takes(bench: Bench) -> None:
    work = bench.submit("work", ENDLESS, Client(), walk=True)
    bench.go(work)
    assert bench.steps["work"] == ENDLESS


def test_at_most_one_work_of_each_level_is_under_way(bench: Bench) -> None:
    most = 0

    def look() -> None:
        nonlocal most
        under_way = [work.level for work in bench.computing._under_way]
        assert under_way == sorted(set(under_way), reverse=True)
        most = max(most, len(under_way))

    every = dict.fromkeys(range(STEPS, ENDLESS, 2 * STEPS), look)
    works = [bench.submit(f"work {number}", ENDLESS, Client(), walk=True, at=every) for number in range(8)]
    works += [bench.submit(f"short {number}", SHORT, Client(), at=every) for number in range(8)]
    bench.go(*works)
    assert len(bench.done) == 16
    assert 2 <= most <= 4


def test_long_work_goes_on_although_short_work_never_ends(bench: Bench) -> None:
    over = threading.Event()
    count = 0

    def again(pace: Any) -> None:
        nonlocal count
        count += 1
        pace(STEPS)
        if not over.is_set():
            bench.computing.submit(again)

    for _ in range(3):
        bench.computing.submit(again)
    works = [bench.submit(f"work {number}", ENDLESS, Client(), walk=True) for number in range(2)]
    bench.go(*works)
    over.set()
    assert sorted(bench.done) == ["work 0", "work 1"]
    assert count > 10


def test_an_error_of_a_work_is_its_own(bench: Bench) -> None:
    def fail(pace: Any) -> None:
        pace(STEPS)
        raise ZeroDivisionError

    long = bench.submit("long", ENDLESS, walk=True)
    wrong = bench.computing.submit(fail)
    bench.go(long, wrong)
    assert type(wrong.exception()) is ZeroDivisionError
    assert long.result() == "long"


def test_a_close_ends_what_is_under_way_and_what_waits(bench: Bench) -> None:
    closing = {SHORT: lambda: setattr(bench.computing, "ended", True)}
    under_way = bench.submit("under way", ENDLESS, walk=True, at=closing)
    waiting = bench.submit("waiting", LONG, walk=True)
    bench.go(under_way, waiting)
    later = bench.submit("later", SHORT)
    assert [type(future.exception()) for future in (under_way, waiting, later)] == [ComputingEnded] * 3
    assert (bench.done, bench.steps) == ([], {"under way": SHORT})
