"""The page that Prometheus scrapes, over HTTP: ``/metrics``, and ``/metrics/ID`` of one broker of several.

Served from threads of its own; what it shows is read where the cluster runs, so that nothing changes meanwhile.
"""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from minibroker.kernel.logs import get_logger
from minibroker.kernel.loop_calls import call_in_loop
from minibroker.kernel.turns import STEP
from minibroker.metrics import gauges
from minibroker.metrics.meter import RequestMeter
from minibroker.metrics.names import Sample, prometheus_name

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.kernel.deferred import Deferred

log = get_logger(__name__)

PATH = "/metrics"
_READ_SECONDS = 10.0
_SOCKET_SECONDS = 30.0

Rows = dict[int, list[Sample]]
"""Samples by broker."""


_SAMPLES_A_STEP = 2


async def read(cluster: Cluster) -> Rows:
    """Everything that is known of each broker that runs and is not paused. For `in_turns`, on the loop's thread."""
    found: Rows = {}
    for node_id, broker in tuple(cluster.brokers.items()):
        if node_id in cluster.paused_brokers:
            continue
        meter = cluster.meters.get(node_id)
        samples = found[node_id] = list(meter.samples()) if isinstance(meter, RequestMeter) else []
        for sample in gauges.samples(cluster, broker):
            samples.append(sample)
            if not len(samples) % _SAMPLES_A_STEP:
                await STEP
    return found


class MetricsServer:
    """Serves what `read_rows` finds on `address`, until `close`. `brokers`: how many the cluster has now; each of
    several has a label ``broker`` on the page of all. Raises OSError for the address."""

    def __init__(
        self,
        address: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
        read_rows: Callable[[], Rows | Deferred[Rows]],
        brokers: Callable[[], int],
    ) -> None:
        def rows() -> Rows:
            found: Rows = call_in_loop(loop, read_rows).result(_READ_SECONDS)
            return found

        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        server_type = type("_Server", (_Server,), {"address_family": family})
        self._server = server_type(address, _handler(rows, brokers))
        self.address: tuple[str, int] = self._server.server_address[:2]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="minibroker-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accept nothing more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape by %s broke off", client_address, exc_info=True)


def _handler(rows: Callable[[], Rows], brokers: Callable[[], int]) -> type[http.server.BaseHTTPRequestHandler]:
    from prometheus_client import CollectorRegistry, MetricsHandler

    class Handler(MetricsHandler):  # type: ignore[misc]
        timeout = _SOCKET_SECONDS
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].rstrip("/")
            if path != PATH and not path.startswith(f"{PATH}/"):
                self.send_error(404, f"metrics are at {PATH}, those of one broker at {PATH}/ID")
                return
            named = path.removeprefix(PATH).removeprefix("/")
            try:
                found = rows()
            except Exception as error:
                log.debug("a scrape found nothing", exc_info=True)
                self.send_error(503, f"the brokers cannot be read: {type(error).__name__}")
                return
            if named:
                found = {node_id: samples for node_id, samples in found.items() if str(node_id) == named}
            if not found:
                self.send_error(503, f"broker {named} does not run" if named else "no broker runs")
                return
            self.registry = CollectorRegistry(auto_describe=False)
            self.registry.register(_Collector(found, labelled=not named and brokers() > 1))
            super().do_GET()

    return Handler


class _Collector:
    """What prometheus_client asks for the metrics."""

    def __init__(self, rows: Rows, *, labelled: bool) -> None:
        self._rows = rows
        self._labelled = labelled

    def collect(self) -> Iterator[Any]:
        return families(
            (sample, {"broker": str(node_id), **sample.labels} if self._labelled else sample.labels)
            for node_id, samples in self._rows.items()
            for sample in samples
        )


def families(samples: Iterable[tuple[Sample, Any]]) -> Iterator[Any]:
    """Samples with their labels → metrics of prometheus_client, each with all that has its name."""
    from prometheus_client.metrics_core import Metric

    found: dict[str, Any] = {}
    for (bean, _, value), labels in samples:
        name = prometheus_name(bean)
        metric = found.get(name)
        if metric is None:
            metric = found[name] = Metric(name, f"{bean.domain}:type={bean.type},name={bean.name}", bean.kind)
        suffix = "" if "quantile" in labels else _SUFFIXES[bean.kind]
        metric.add_sample(name + suffix, dict(labels), value)
    return iter(found.values())


_SUFFIXES = {"gauge": "", "counter": "_total", "summary": "_count"}
