"""`Minibroker`: a broker inside a program or test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from minibroker.config.types import ConfigError, configured_address
from minibroker.server.options import DEFAULT_HOST, Options, make_options
from minibroker.testing.life_cycle import Embedded, Runner

if TYPE_CHECKING:
    from minibroker.kernel.refusals import Refusal
    from minibroker.server.setup import Setup
    from minibroker.testing.running_cluster import RunningCluster


__tracebackhide__ = True  # pytest shows the line of the test


class Minibroker(Embedded):
    """A Kafka-protocol broker, or several, for as long as a ``with`` or ``async with`` block lasts.

    brokers: their number.
    port: the port of the first broker, 0 for free ports.
    ports: one for each broker.
    topics: name → partitions, created at start.
    data_dir: kept, and locked while in use; without it all data is deleted at the end, from memory (`ephemeral`) or
        from a temporary directory.
    semantics: "kafka" or "kip".
    transaction_version: 0, 1 or 2.
    as_version: the release of Kafka to answer as, such as "3.9".
    config: settings under Kafka's names.
    not_yet: tell clients to wait and ask again wherever Kafka does (minibroker.not.yet.answers).
    process: run in a child process, which ends whenever this one ends, instead of a thread.
    record: number of exchanges to keep for `requests`.
    metrics: HOST:PORT of a page for Prometheus (docs/reference/metrics.md), port 0 for a free one.
    page: show what happens in a browser, at `page_url`.
    setup: a TOML file of topics, users, ACLs, rules and the clock, of ``serve --setup``; its rules need not act.

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
            raise error.with_traceback(None) from None  # without the frames of the check
        self._process = process
        super().__init__(record)

    @property
    def metrics_url(self) -> str:
        """Where Prometheus scrapes a running broker; RuntimeError without `metrics`, or when it does not run."""
        served = getattr(self._runner, "metrics", "") if self._bootstrap_servers else ""
        if not served:
            raise RuntimeError("no metrics are served: use Minibroker(metrics='127.0.0.1:0') in a with block")
        return f"http://{served}/metrics"

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

    def _make_runner(self) -> Runner:
        if self._process:
            from minibroker.testing.in_process import ChildRunner

            return ChildRunner(self._options)
        from minibroker.testing.in_thread import ThreadRunner

        return ThreadRunner(self._options)

    @property
    def setup(self) -> Setup | None:
        """What the file named by `setup` says."""
        return self._options.setup


def _check(options: Options) -> None:
    from minibroker.server.service import Service

    Service(options)
