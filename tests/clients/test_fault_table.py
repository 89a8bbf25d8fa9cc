"""Each action on each kind of request has the effect that benchmarks/results/faults.md says, on librdkafka.

All cells run at once, each with a client, a topic, a group and a transactional id of its own: they mostly wait.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
from fault_stories import Cell, Changed, Seen
from fault_table import (
    CHANGES,
    TARGETS,
    WAIT_MS,
    Change,
    Row,
    Target,
    asks_again,
    cells,
    changes,
    gets_an_error,
    may_be_told,
)

from minibroker import Minibroker

pytestmark = pytest.mark.clients

_AT_ONCE = 24
_CLUSTERS = 8
_CONFIG = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
_CELLS = 96
_KEPT = 10_000
_CLOCK_SLACK_MS = 5


@pytest.fixture(scope="module")
def stories() -> dict[tuple[Target, Row], Seen]:
    with Minibroker(config=_CONFIG) as broker, ThreadPoolExecutor(_AT_ONCE) as pool:
        # Those that wait longest first; and no more at a time than the broker keeps exchanges of.
        order = sorted(cells(), key=lambda cell: cell[1].name != "corrupt")
        ended: list[Cell] = []
        by_client: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for first in range(0, len(order), _CELLS):
            broker.control.record(_KEPT)
            ended += pool.map(lambda cell: Cell(broker, *cell).run(), order[first : first + _CELLS])
            exchanges = broker.control.exchanges(_KEPT)
            assert len(exchanges) < _KEPT
            for exchange in exchanges:
                by_client[exchange["client_id"]].append(exchange)
    for story in ended:
        story.seen.others = by_client[story.client]
        story.seen.exchanges = [e for e in story.seen.others if e["api"] == story.target.api]
    return {(story.target, story.row): story.seen for story in ended}


@pytest.mark.parametrize(("target", "row"), cells(), ids=lambda value: getattr(value, "api", None) or value.name)
def test_a_client_sees_the_effect(stories: dict[tuple[Target, Row], Seen], target: Target, row: Row) -> None:
    seen = stories[target, row]
    assert seen.problem == ""
    assert seen.fired >= 1
    first = next(exchange for exchange in seen.exchanges if exchange["fault"])
    after = [e for e in seen.exchanges if e["number"] != first["number"] and e["time_ms"] >= first["time_ms"]]

    assert seen.blocked == bool(row.blocked)
    wanted = gets_an_error(target, row)
    assert seen.errors == ({wanted} if wanted else set())
    if asks_again(target, row):
        assert any(e["outcome"] == "answered" for e in after), after
    elif not target.again:
        assert after == []
    if "error" in row.name:
        code = target.final if row.final else target.passing
        assert first["errors"]
        assert all(error.startswith(code) for error in first["errors"])
    if row.late:
        assert first["took_ms"] >= WAIT_MS - _CLOCK_SLACK_MS
    following = [e for e in seen.others if e["client"] == first["client"] and e["number"] > first["number"]]
    if row.name == "throttle":
        assert first["response"]["throttle_time_ms"] == WAIT_MS
        assert all(e["time_ms"] - first["time_ms"] >= WAIT_MS - _CLOCK_SLACK_MS for e in following)
    if row.name in ("drop reply, close", "truncate", "close", "reset"):
        assert following == []
    _nothing_lost_or_doubled(target, row, seen)


@pytest.fixture(scope="module")
def changed() -> dict[tuple[Target, Change], Changed | Exception]:
    """Every cell's story, or why it could not be told."""
    left = Queue[tuple[Target, Change]]()
    for cell in changes():
        left.put(cell)

    def work() -> dict[tuple[Target, Change], Changed | Exception]:
        done: dict[tuple[Target, Change], Changed | Exception] = {}
        with Minibroker(brokers=3, config=_CONFIG) as broker:
            Changed(broker, TARGETS[0], CHANGES[0]).warm_up()
            with suppress(Empty):
                while True:
                    cell = left.get_nowait()
                    try:
                        done[cell] = Changed(broker, *cell).run()
                    except Exception as error:
                        done[cell] = error
        return done

    with ThreadPoolExecutor(_CLUSTERS) as pool:
        workers = [pool.submit(work) for _ in range(_CLUSTERS)]
        return {cell: story for worker in workers for cell, story in worker.result().items()}


@pytest.mark.parametrize(("target", "change"), changes(), ids=lambda value: getattr(value, "api", None) or value.name)
def test_a_client_gets_over_what_happens_to_a_broker(
    changed: dict[tuple[Target, Change], Changed | Exception], target: Target, change: Change
) -> None:
    story = changed[target, change]
    if isinstance(story, Exception):
        raise story
    seen = story.seen
    assert seen.problem == ""
    assert seen.fired == 1
    assert seen.blocked or not change.blocked
    assert story.moved == (not change.blocked)
    assert seen.errors <= may_be_told(target, change)
    if story.moved and change.name != "move, after":
        assert any(e["outcome"] == "answered" and e["broker"] != story.serving_node for e in seen.exchanges)
    if target.story == "transaction":
        assert seen.values == [b"1", b"2", b"3"]
        # The coordinator that takes over sends the markers once more when it does not know that they were written.
        assert seen.ends in ((1, 2) if target.api == "EndTxn" and story.moved else (1,))
    else:
        assert (seen.values, seen.ends) == ([b"1", b"2"], 0)


def _nothing_lost_or_doubled(target: Target, row: Row, seen: Seen) -> None:
    if target.counted and not gets_an_error(target, row):
        assert seen.count == row.applied
    if target.changes and row.final:
        assert seen.changed == bool(row.applied)
    if target.story == "produce":
        assert seen.values == [b"1"] * row.applied + [b"2"] * (not row.final)
    elif target.story != "transaction":
        assert (seen.values, seen.ends) == ([b"1", b"2"], 0)
    elif not gets_an_error(target, row):
        assert (seen.values, seen.ends) == ([b"1", b"2", b"3"], 1)
    else:
        committed = target.api == "EndTxn" and row.applied > 0
        assert (seen.values, seen.ends) == ([b"1", b"2", *[b"3"] * committed], int(committed))
