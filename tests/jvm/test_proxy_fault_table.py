"""Each action of a proxy on each kind of request has the effect of benchmarks/results/faults.md on librdkafka in front
of Apache Kafka too."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("confluent_kafka")
from fault_stories import Watched, check, watched
from fault_table import Row, Target, cells
from real_kafka import real_kafka
from upstream_cell import UpstreamCell

from minibroker import Proxy

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

_AT_ONCE = 8
_ANY = next(cell for cell in cells() if cell[0].story == "transaction")
_SETTINGS = "offsets.topic.num.partitions=1\ntransaction.state.log.num.partitions=1\n"


@pytest.fixture(scope="module")
def stories() -> Watched:
    with real_kafka(_SETTINGS) as upstream, Proxy(upstream) as proxy:
        first = UpstreamCell(proxy, upstream, *_ANY).run()  # its answers tell that the coordinators' topics are new
        assert first.seen.problem == ""
        return watched(proxy, partial(UpstreamCell, proxy, upstream), _AT_ONCE)


@pytest.mark.parametrize(("target", "row"), cells(), ids=lambda value: getattr(value, "api", None) or value.name)
def test_a_client_of_kafka_sees_the_effect(stories: Watched, target: Target, row: Row) -> None:
    check(target, row, stories[target, row])
