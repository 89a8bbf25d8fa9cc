"""`Minibroker`: a broker inside a program or test."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.config.types import ConfigError, configured_address
from minibroker.control.reading import Controlled
from minibroker.server.options import DEFAULT_HOST, Options, make_options
from minibroker.testing import brokers_of_test

if TYPE_CHECKING:
    from minibroker.control.client import Caller, Control
    from minibroker.kernel.refusals import Refusal
    from minibroker.server.setup import Setup
    from minibroker.testing.running_cluster import RunningCluster


__tracebackhide__ = True  # pytest shows the line of the test


class Runner(Protocol):
    """Runs a broker on another thread or in another process; both results arrive on another thread."""

    def start(self) -> Future[str]:
        """Holds the bootstrap servers once the broker serves."""

    def stop(self) -> Future[None]:
        """Done once nothing of the broker is left but threads that are about to end; `join` waits for those."""

    def join(self) -> None: ...

    @property
    def metrics(self) -> str:
        """HOST:PORT of the metrics once the broker serves; "" without."""

    @property
    def page(self) -> str:
        """Address of the live page, with its token, once the broker serves; "" without."""

    def caller(self) -> Caller:
        """Runs commands on the broker."""


class Minibroker(Controlled):
    """A Kafka-protocol broker, or several, for as long as a ``with`` or ``async with`` block lasts.

    brokers: their number. port: of the first broker, 0 for free ports; ports: one for each broker. topics: name →
    partitions, created at start. data_dir: kept, and locked while in use; without it all data is deleted at the end,
    from memory (`ephemeral`) or from a temporary directory. semantics: "kafka" or "kip". transaction_version: 0, 1 or
    2. as_version: the release of Kafka to answer as, such as "3.9". config: settings under Kafka's names. not_yet: tell
    clients to wait and ask again wherever Kafka does (minibroker.not.yet.answers). process: run in a child process,
    which ends whenever this one ends, instead of a thread. record: number of exchanges to keep for `requests`.
    metrics: HOST:PORT of a page for Prometheus (docs/reference/metrics.md), port 0 for a free one. page: show what
    happens in a browser, at `page_url`. setup: a TOML file of topics, users, ACLs, rules and the clock, of ``serve
    --setup``; its rules need not act.

    A ``with`` or ``async with`` block that ends without an error raises NeverFired when a rule that was set in it has
    not acted (`Faults.verify`).

    Raises ConfigError for invalid options, when constructed; StartError when the broker cannot start.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        host: str = DEFAULT_HOST,
        port: int = 0,
        ports: Sequence[int] | None = None,
        topics: Mapping[str, int] | None = None,
        data_dir: str | None = None,
        ephemeral: bool = False,
        semantics: str = "kafka",
        transaction_version: int | None = None,
        as_version: str | None = None,
        config: Mapping[str, Any] | None = None,
        not_yet: bool = False,
        process: bool = False,
        record: int = 0,
        metrics: str | None = None,
        page: bool = False,
        setup: str | PathLike[str] | None = None,
    ) -> None:
        try:
            self._options = make_options(
                host=host,
                brokers=brokers,
                port=port,
                ports=ports,
                data_dir=None if data_dir is None else str(data_dir),
                ephemeral=ephemeral,
                semantics=semantics,
                transaction_version=transaction_version,
                as_version=as_version,
                topics=topics,
                config=config,
                not_yet=not_yet,
                metrics=None if metrics is None else configured_address(metrics, "the address of the metrics"),
                page=page,
                setup=None if setup is None else str(setup),
            )
            _check(self._options)  # at once, not only when started
        except ConfigError as error:
            raise error.with_traceback(None) from None  # without the frames of what found it
        self._process = process
        self._record = record
        self._runner: Runner | None = None
        self._bootstrap_servers = ""
        self._control: Control | None = None

    def __repr__(self) -> str:
        return f"<Minibroker {f'at {self._bootstrap_servers}' if self._bootstrap_servers else 'that is not running'}>"

    @property
    def bootstrap_servers(self) -> str:
        """``HOST:PORT[,HOST:PORT…]`` of a running broker; RuntimeError when it does not run."""
        if not self._bootstrap_servers:
            raise RuntimeError("the broker is not running: use it in a with block, or call start()")
        return self._bootstrap_servers

    @property
    def metrics_url(self) -> str:
        """Where Prometheus scrapes a running broker; RuntimeError without `metrics`, or when it does not run."""
        served = self._runner.metrics if self._runner is not None and self._bootstrap_servers else ""
        if not served:
            raise RuntimeError("no metrics are served: use Minibroker(metrics='127.0.0.1:0') in a with block")
        return f"http://{served}/metrics"

    @property
    def page_url(self) -> str:
        """The live page of a running broker, with the token that lets it act; RuntimeError without `page`, or when it
        does not run."""
        served = self._runner.page if self._runner is not None and self._bootstrap_servers else ""
        if not served:
            raise RuntimeError("there is no page: use Minibroker(page=True) in a with block")
        return served

    @property
    def cluster(self) -> RunningCluster:
        """The brokers, to stop, kill, start, add and remove them and to move leaders. RuntimeError when the broker
        does not run, or runs in a child process."""
        from minibroker.testing.in_thread import ThreadRunner
        from minibroker.testing.running_cluster import RunningCluster

        runner = self._runner
        if not self._bootstrap_servers or not isinstance(runner, ThreadRunner):
            raise RuntimeError("the brokers can be reached only while they run in this process")
        return RunningCluster(runner.loop, runner.service)

    def refusals(self) -> list[Refusal]:
        """The last refused requests of all brokers, oldest first, each with its reason; raises as `cluster`."""
        return self.cluster.refusals()

    @property
    def control(self) -> Control:
        """Faults, clock, state and exchanges. RuntimeError when the broker does not run."""
        if self._control is None:
            from minibroker.control.client import Control

            self.bootstrap_servers  # noqa: B018  (raises while it does not run)
            assert self._runner is not None
            self._control = Control(self._runner.caller())
        return self._control

    # -- from ordinary code --------------------------------------------------------------------------------------------

    def start(self) -> Minibroker:
        """Start the broker; returns once every port is served."""
        from minibroker.server.service import StartError

        try:
            self._started(self._launch().result())
        except StartError as error:
            raise error.with_traceback(None) from None
        return self

    def stop(self) -> None:
        """Stop the broker; returns once no thread, socket, file or temporary directory is left. No effect on a stopped
        one."""
        runner = self._release()
        if runner is not None:
            try:
                runner.stop().result()
            finally:
                runner.join()

    def __enter__(self) -> Minibroker:
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

    async def __aenter__(self) -> Minibroker:
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
            raise RuntimeError("the broker is running already")
        self._runner = self._make_runner()
        # A program that forgets to stop still leaves nothing behind.
        atexit.register(self.stop)
        launched = self._runner.start()
        launched.add_done_callback(self._launched)
        return launched

    def _make_runner(self) -> Runner:
        if self._process:
            from minibroker.testing.in_process import ChildRunner

            return ChildRunner(self._options)
        from minibroker.testing.in_thread import ThreadRunner

        return ThreadRunner(self._options)

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
    def setup(self) -> Setup | None:
        """What the file named by `setup` says."""
        return self._options.setup

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


def _check(options: Options) -> None:
    from minibroker.server.service import Service

    Service(options)
