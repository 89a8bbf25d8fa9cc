"""Samples as the page that Prometheus scrapes, over HTTP: ``/metrics``, and ``/metrics/ID`` of one broker of several.

Served from threads of its own.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from minibroker.kernel.http_limits import BoundedHead, LimitedServer, of_family
from minibroker.kernel.logs import get_logger
from minibroker.metrics.names import Sample, prometheus_name

log = get_logger(__name__)

PATH = "/metrics"
_SOCKET_SECONDS = 30.0

Rows = dict[int, list[Sample]]
"""Samples by broker."""


class MetricsServer:
    """Serves the samples of `rows` on `address` until `close`.

    brokers: how many the cluster has now; each of several has a label ``broker`` on the page of all.

    Raises OSError for the address.
    """

    def __init__(
        self,
        address: tuple[str, int],
        rows: Callable[[], Rows],
        brokers: Callable[[], int] = lambda: 1,
        *,
        max_connections: int | None = None,
    ) -> None:
        server_type = of_family(LimitedServer, address, purpose="metrics", max_connections=max_connections)
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


def _handler(rows: Callable[[], Rows], brokers: Callable[[], int]) -> type[http.server.BaseHTTPRequestHandler]:
    from prometheus_client import CollectorRegistry, MetricsHandler

    class Handler(MetricsHandler):  # type: ignore[misc]
        timeout = _SOCKET_SECONDS
        sys_version = ""

        def setup(self) -> None:
            super().setup()
            self.rfile: Any = BoundedHead(self.rfile)

        def do_GET(self) -> None:
            self.server.connection_limit.serves(self.connection)
            path = self.path.partition("?")[0].rstrip("/")
            if path != PATH and not path.startswith(f"{PATH}/"):
                self.send_error(404, f"metrics are at {PATH}, those of one broker at {PATH}/ID")
                return
            named = path.removeprefix(PATH).removeprefix("/")
            try:
                samples_by_node = rows()
            except Exception as error:
                log.debug("a scrape found nothing", exc_info=True)
                self.send_error(503, f"the brokers cannot be read: {type(error).__name__}")
                return
            if named:
                samples_by_node = {
                    node_id: samples for node_id, samples in samples_by_node.items() if str(node_id) == named
                }
            if not samples_by_node:
                self.send_error(503, f"broker {named} does not run" if named else "no broker runs")
                return
            self.registry = CollectorRegistry(auto_describe=False)
            self.registry.register(_Collector(samples_by_node, labelled=not named and brokers() > 1))
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

    metrics: dict[str, Any] = {}
    for (bean, _, value), labels in samples:
        name = prometheus_name(bean)
        metric = metrics.get(name)
        if metric is None:
            metric = metrics[name] = Metric(name, f"{bean.domain}:type={bean.type},name={bean.name}", bean.kind)
        suffix = "" if "quantile" in labels else _SUFFIXES[bean.kind]
        metric.add_sample(name + suffix, dict(labels), value)
    return iter(metrics.values())


_SUFFIXES = {"gauge": "", "counter": "_total", "summary": "_count"}
