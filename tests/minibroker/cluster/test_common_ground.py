"""How much of its log a follower gives up when its leader's is another: AbstractFetcherThread's cases."""

from __future__ import annotations

from typing import Any

import pytest
from many_brokers import ManyBrokers

from minibroker.kernel.deferred import spawn
from minibroker_protocol.records import Record, build_batch

LATEST, EARLIEST = -1, -2


@pytest.fixture
def brokers() -> Any:
    """Follower 2 has offsets 0 to 3, of which 0 and 1 are committed; all are of epoch 0."""
    many = ManyBrokers(2)
    many.create("t", [[1, 2]])
    for _ in range(2):
        many.produce("t", b"v")
    many.settle(1000)
    follower = many.partition(2, "t")
    for offset in (2, 3):
        record = Record(0, many.clock.now_ms(), None, b"own")
        follower.log.append_as_follower(
            build_batch([record], base_offset=offset, leader_epoch=0), 0, now_ms=many.clock.now_ms()
        )
    assert (follower.high_watermark, follower.log_end_offset) == (2, 4)
    yield many
    many.stop()


@pytest.mark.parametrize(
    ("end", "start", "left"),
    [
        (3, 0, (0, 3)),  # the leader's log is shorter
        (1, 0, (0, 1)),
        (4, 0, (0, 2)),  # the same range, and an epoch that it does not know: what is committed is common
        (9, 4, (0, 2)),
        (9, 5, (5, 5)),  # its log begins after ours ends
    ],
)
def test_logs_of_other_ranges(
    brokers: ManyBrokers, monkeypatch: pytest.MonkeyPatch, end: int, start: int, left: tuple[int, int]
) -> None:
    fetcher = brokers.cluster.brokers[2].replication._fetchers[1]

    async def offset(_: Any, __: Any, timestamp: int) -> int:
        return {LATEST: end, EARLIEST: start}[timestamp]

    monkeypatch.setattr(type(fetcher), "_leader_offset", offset)
    log = brokers.partition(2, "t").log
    spawn(fetcher._find_common_ground(brokers.partition(2, "t"))).result()
    assert (log.log_start_offset, log.log_end_offset) == left


@pytest.mark.parametrize(
    ("epoch", "end", "left"),
    [(-1, -1, 2), (0, -1, 2), (-1, 3, 3), (-1, 9, 4), (0, 3, 3), (0, 9, 4), (7, 1, 1), (7, 9, 4)],
)
def test_logs_of_other_epochs(brokers: ManyBrokers, epoch: int, end: int, left: int) -> None:
    """What the leader said of its last epoch that is not above the follower's."""
    brokers.cluster.brokers[2].replication._fetchers[1]._truncate(brokers.partition(2, "t"), epoch, end)
    assert brokers.partition(2, "t").log_end_offset == left
