"""Whatever a request says, well-formed or damaged, it is answered or its connection closed; nothing else escapes."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from calls import Calls
from held_executor import HeldExecutor
from long_batches import batch_of, equal_deltas, many_headers
from memory_cluster import MemoryCluster
from reasons import check_reasons
from samples import sample
from sampling import thinned
from watched_loop import MOST_CALLS

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.table import apis
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import DiskInline
from minibroker.requests.context import CloseConnection
from minibroker_protocol.dsl import Request
from minibroker_protocol.messages import HeartbeatRequest
from minibroker_protocol.messages.produce import ProduceRequest

REQUESTS_PER_SEED = 400
FRAMES = int(os.environ.get("MINIBROKER_FRAMES", "2400"))
LONG = (equal_deltas(300_000), many_headers(1_000_000), batch_of(bytes(32 << 20), 1))


def produce(batch: bytes) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = [ProduceRequest.TopicProduceData(name="t", partition_data=[partition])]
    return ProduceRequest(transactional_id=None, acks=1, timeout_ms=0, topic_data=data)


@pytest.fixture(scope="module", autouse=True)
def coordinators_are_imported() -> None:
    """The first request to one does it, which is no part of that request's work."""
    cluster = MemoryCluster()
    cluster.send(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    cluster.stop()


@pytest.mark.parametrize("seed", thinned(range(-(-FRAMES // REQUESTS_PER_SEED)), 6))
def test_random_requests_are_answered_or_closed(seed: int) -> None:
    random = Random(seed)
    held = HeldExecutor()
    cluster = MemoryCluster(
        topics={"t": 2, "x": 1},
        config={"unstable.api.versions.enable": "true"},
        executor=DiskInline(held),
    )
    table = list(apis().values())
    for _ in range(REQUESTS_PER_SEED):
        api = random.choice(table)
        version = random.randint(api.min_version, api.max_version)
        request = sample(api.request, version, random)
        if random.random() < 0.02:
            api, version, request = apis()[0], 9, produce(random.choice(LONG))
        assert isinstance(request, Request)
        frame = cluster.frame(request, version)
        if random.random() < 0.3:
            for _ in range(random.randint(1, 3)):
                frame[random.randrange(8, len(frame))] = random.randrange(256)
        calls = Calls()
        try:
            cluster.broker.refusals.clear()
            with calls:
                answer: Any = cluster.dispatcher.dispatch(frame, ConnectionInfo())
            assert calls.count < MOST_CALLS, request
            if isinstance(answer, Deferred):
                held.run_all()  # what is computed elsewhere
                cluster.timers.advance(10)
                held.run_all()
                assert answer.done, request
                answer = answer.result()
            response = cluster.decode(api.request, version, answer)
            if response is None:
                assert api.name == "Produce"  # with acks=0
            else:
                check_reasons(cluster.broker, response)
        except CloseConnection:
            pass
    cluster.stop()
