"""A broker, or a proxy, whose event loop has a thread of its own in the caller's process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from minibroker.kernel.addresses import format_address
from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.kernel.logs import get_logger
from minibroker.server.options import Options
from minibroker.server.service import Service

if TYPE_CHECKING:
    from minibroker.config.settings import Settings
    from minibroker.control.client import Caller
    from minibroker.control.server import ControlServer

log = get_logger(__name__)


class Runnable(Protocol):
    """A `Service` or a `ProxyService`."""

    settings: Settings
    bootstrap_servers: str
    control: ControlServer | None

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class ServiceThread:
    """Runs one service on a loop of its own; made for one start and one stop."""

    def __init__(self, service: Runnable) -> None:
        self._service = service
        self.loop = new_event_loop(uvloop=service.settings.get_boolean("minibroker.uvloop"))
        self._thread = threading.Thread(target=self._run, name="minibroker", daemon=True)
        self._launched: Future[str] = Future()
        self._stopped: Future[None] = Future()
        self._stopping: asyncio.Event | None = None

    def start(self) -> Future[str]:
        self._thread.start()
        return self._launched

    def stop(self) -> Future[None]:
        if self._stopping is not None:
            self.loop.call_soon_threadsafe(self._stopping.set)
        return self._stopped

    def join(self) -> None:
        self._thread.join()

    @property
    def page(self) -> str:
        control = self._service.control
        return f"{control.page_url}#token={control.token}" if control is not None and control.page is not None else ""

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self.loop.run_until_complete(self._serve())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        except BaseException as failure:  # handed to the waiting caller
            error = failure
        finally:
            self.loop.close()
        if not self._launched.done():
            assert error is not None
            self._launched.set_exception(error)
            self._stopped.set_result(None)
        elif error is not None:
            self._stopped.set_exception(error)
        else:
            self._stopped.set_result(None)

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        await self._service.start()
        try:
            self._launched.set_result(self._service.bootstrap_servers)
            await self._stopping.wait()
        finally:
            await self._service.stop()


class ThreadRunner(ServiceThread):
    """Runs minibroker's own cluster, where `ServiceThread` may also run a proxy."""

    def __init__(self, options: Options) -> None:
        self.service = Service(options)
        super().__init__(self.service)

    def caller(self) -> Caller:
        from minibroker.testing.running_cluster import LocalCaller

        return LocalCaller(self.loop, self.service)

    @property
    def metrics(self) -> str:
        served = self.service.metrics
        return "" if served is None else format_address(*served.address)
