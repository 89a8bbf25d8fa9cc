"""Whatever a request says, well-formed or damaged, it is answered or its connection closed; nothing else escapes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from reasons import check_reasons
from samples import sample

from minibroker.handlers.context import ConnectionInfo
from minibroker.handlers.dispatch import CloseConnection
from minibroker.handlers.table import apis
from minibroker.runtime.deferred import Deferred
from minibroker_protocol.dsl import Request

REQUESTS_PER_SEED = 400


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_are_answered_or_closed(seed: int) -> None:
    random = Random(seed)
    cluster = MemoryCluster(topics={"t": 2, "x": 1}, config={"unstable.api.versions.enable": "true"})
    table = list(apis().values())
    for _ in range(REQUESTS_PER_SEED):
        api = random.choice(table)
        version = random.randint(api.min_version, api.max_version)
        request = sample(api.request, version, random)
        assert isinstance(request, Request)
        frame = cluster.frame(request, version)
        if random.random() < 0.3:
            for _ in range(random.randint(1, 3)):
                frame[random.randrange(8, len(frame))] = random.randrange(256)
        try:
            cluster.broker.refusals.clear()
            answer: Any = cluster.dispatcher.dispatch(frame, ConnectionInfo())
            if isinstance(answer, Deferred):
                cluster.timers.advance(10)
                answer = answer.result() if answer.done else None
            response = cluster.decode(api.request, version, answer)
            if response is not None:
                check_reasons(cluster.broker, response)
        except CloseConnection:
            pass
    cluster.stop()
