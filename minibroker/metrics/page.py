"""A broker's page for Prometheus. It is read on the cluster's thread, so that nothing changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from minibroker.kernel.loop_calls import call_in_loop
from minibroker.kernel.turns import STEP
from minibroker.metrics import gauges
from minibroker.metrics.meter import RequestMeter
from minibroker.metrics.server import Rows

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.kernel.deferred import Deferred

_READ_SECONDS = 10.0
_SAMPLES_A_STEP = 2


def in_loop(loop: asyncio.AbstractEventLoop, read_rows: Callable[[], Rows | Deferred[Rows]]) -> Callable[[], Rows]:
    """`read_rows` for other threads: calls it on the event loop's thread."""

    def rows() -> Rows:
        read: Rows = call_in_loop(loop, read_rows).result(_READ_SECONDS)
        return read

    return rows


async def read(cluster: Cluster) -> Rows:
    """The samples of each broker that runs and is not paused. For `in_turns`, on the loop's thread."""
    rows: Rows = {}
    for node_id, broker in tuple(cluster.brokers.items()):
        if node_id in cluster.paused_brokers:
            continue
        meter = cluster.meters.get(node_id)
        samples = rows[node_id] = list(meter.samples()) if isinstance(meter, RequestMeter) else []
        for sample in gauges.samples(cluster, broker):
            samples.append(sample)
            if not len(samples) % _SAMPLES_A_STEP:
                await STEP
    return rows
