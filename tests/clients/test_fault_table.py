"""Each action on each kind of request has the effect that docs/fault-table.md says, on a client of librdkafka.

All cells run at once, each with a client, a topic, a group and a transactional id of its own: they mostly wait.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
from fault_stories import Seen, Story
from fault_table import WAIT_MS, Row, Target, asks_again, cells, told

from minibroker import Minibroker

pytestmark = pytest.mark.clients

_AT_ONCE = 24
_CELLS = 96
_KEPT = 10_000
_CLOCK_SLACK_MS = 5


@pytest.fixture(scope="module")
def stories() -> dict[tuple[Target, Row], Seen]:
    config = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with Minibroker(config=config) as broker, ThreadPoolExecutor(_AT_ONCE) as pool:
        # Those that wait longest first; and no more at a time than the broker keeps exchanges of.
        order = sorted(cells(), key=lambda cell: cell[1].name != "corrupt")
        ended: list[Story] = []
        by_client: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for first in range(0, len(order), _CELLS):
            broker.control.record(_KEPT)
            ended += pool.map(lambda cell: Story(broker, *cell).run(), order[first : first + _CELLS])
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
    wanted = told(target, row)
    assert seen.told == ({wanted} if wanted else set())
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


def _nothing_lost_or_doubled(target: Target, row: Row, seen: Seen) -> None:
    if target.counted and not told(target, row):
        assert seen.count == row.applied
    if target.changes and row.final:
        assert seen.changed == bool(row.applied)
    if target.story == "produce":
        assert seen.values == [b"1"] * row.applied + [b"2"] * (not row.final)
    elif target.story != "transaction":
        assert (seen.values, seen.ends) == ([b"1", b"2"], 0)
    elif not told(target, row):
        assert (seen.values, seen.ends) == ([b"1", b"2", b"3"], 1)
    else:
        committed = target.api == "EndTxn" and row.applied > 0
        assert (seen.values, seen.ends) == ([b"1", b"2", *[b"3"] * committed], int(committed))
