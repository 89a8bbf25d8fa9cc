"""What runs inside a program or test for as long as a block lasts: its start, its end, its commands."""

from __future__ import annotations

import asyncio
import atexit
from abc import abstractmethod
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from minibroker.control.reading import Controlled
from minibroker.testing import brokers_of_test

if TYPE_CHECKING:
    from minibroker.control.client import Caller, Control

__tracebackhide__ = True  # pytest shows the line of the test


class Runner(Protocol):
    """Runs a broker or a proxy on another thread or in another process; both results arrive on another thread."""

    def start(self) -> Future[str]:
        """Holds the bootstrap servers once it serves."""

    def stop(self) -> Future[None]:
        """Done once everything is released; threads may still be about to end, and `join` waits for those."""

    def join(self) -> None: ...

    @property
    def page(self) -> str:
        """Address of the live page, with its token, once it serves; "" without."""

    def caller(self) -> Caller:
        """Runs commands on it."""


class Embedded(Controlled):
    """A broker or a proxy; the subclass makes its runner.

    record: number of exchanges to keep for `requests`.
    """

    _noun: ClassVar[str] = "broker"

    def __init__(self, record: int) -> None:
        self._record = record
        self._runner: Runner | None = None
        self._bootstrap_servers = ""
        self._control: Control | None = None

    def __repr__(self) -> str:
        running = f"at {self._bootstrap_servers}" if self._bootstrap_servers else "that is not running"
        return f"<{type(self).__name__} {running}>"

    @abstractmethod
    def _make_runner(self) -> Runner: ...

    @property
    def bootstrap_servers(self) -> str:
        """``HOST:PORT[,HOST:PORT…]`` of the running broker; RuntimeError when it does not run."""
        if not self._bootstrap_servers:
            raise RuntimeError(f"the {self._noun} is not running: use it in a with block, or call start()")
        return self._bootstrap_servers

    @property
    def page_url(self) -> str:
        """The live page, with the token that lets it act; RuntimeError without `page`, or when nothing runs."""
        served = self._runner.page if self._runner is not None and self._bootstrap_servers else ""
        if not served:
            raise RuntimeError(f"there is no page: use {type(self).__name__}(page=True) in a with block")
        return served

    @property
    def control(self) -> Control:
        """Faults, clock, state and exchanges. RuntimeError when it does not run."""
        if self._control is None:
            from minibroker.control.client import Control

            self.bootstrap_servers  # noqa: B018  (raises while it does not run)
            assert self._runner is not None
            self._control = Control(self._runner.caller())
        return self._control

    # -- from ordinary code --------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it; returns once every port is served."""
        from minibroker.server.service import StartError

        try:
            self._started(self._launch().result())
        except StartError as error:
            raise error.with_traceback(None) from None
        return self

    def stop(self) -> None:
        """Stop it; returns once no thread, socket, file or temporary directory is left. No effect when stopped."""
        runner = self._release()
        if runner is not None:
            try:
                runner.stop().result()
            finally:
                runner.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._has_rules:
                self.faults.verify()
        finally:
            self.stop()

    # -- from coroutines -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        from minibroker.server.service import StartError

        try:
            self._started(await asyncio.wrap_future(self._launch()))
        except StartError as error:
            raise error.with_traceback(None) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._has_rules:
                await asyncio.to_thread(self.faults.verify)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        runner = self._release()
        if runner is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(runner.stop()))
            finally:
                runner.join()

    # -- both ----------------------------------------------------------------------------------------------------------

    def _launch(self) -> Future[str]:
        if self._runner is not None:
            raise RuntimeError(f"the {self._noun} is running already")
        self._runner = self._make_runner()
        # A program that forgets to stop still leaves nothing behind.
        atexit.register(self.stop)
        launched = self._runner.start()
        launched.add_done_callback(self._launched)
        return launched

    def _launched(self, launched: Future[str]) -> None:
        # On the runner's thread. A start that failed has nothing to stop; the next one begins anew.
        if launched.cancelled() or launched.exception() is not None:
            self._release()

    def _started(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        if self._record:
            self.control.record(self._record)
        brokers_of_test.started(self)

    @property
    def records_exchanges(self) -> bool:
        """Whether it keeps exchanges for `requests` because of `record`."""
        return self._record > 0

    @property
    def _has_rules(self) -> bool:
        return self._control is not None and bool(self._control.faults.expected)

    def _release(self) -> Runner | None:
        brokers_of_test.stopping(self)
        runner, self._runner = self._runner, None
        self._bootstrap_servers = ""
        self._control = None
        atexit.unregister(self.stop)
        return runner
