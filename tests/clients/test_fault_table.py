"""Each action on each kind of request has the effect that benchmarks/results/faults.md says, on librdkafka.

All cells run at once, each with a client, a topic, a group and a transactional id of its own: they mostly wait.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, Queue

import pytest

pytest.importorskip("confluent_kafka")
from fault_stories import Cell, Changed, Seen, check, watched
from fault_table import (
    CHANGES,
    TARGETS,
    Change,
    Row,
    Target,
    cells,
    changes,
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


@pytest.fixture(scope="module")
def stories() -> dict[tuple[Target, Row], Seen]:
    with Minibroker(config=_CONFIG) as broker:
        return watched(broker, partial(Cell, broker), _AT_ONCE)


@pytest.mark.parametrize(("target", "row"), cells(), ids=lambda value: getattr(value, "api", None) or value.name)
def test_a_client_sees_the_effect(stories: dict[tuple[Target, Row], Seen], target: Target, row: Row) -> None:
    check(target, row, stories[target, row])


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
