"""A proxy on a loop of its own thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minibroker.proxy.options import proxy_options
from minibroker.server.proxy_service import ProxyService
from minibroker.testing.in_thread import ServiceThread


@contextmanager
def running_proxy(upstream: str, **options: Any) -> Iterator[ProxyService]:
    """Of `proxy_options`. Raises StartError."""
    service = ProxyService(proxy_options(upstream, **options))
    thread = ServiceThread(service)
    thread.start().result()
    try:
        yield service
    finally:
        thread.stop().result()
        thread.join()
