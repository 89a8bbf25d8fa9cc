"""`Proxy`: the faults of `Minibroker` in front of a cluster that runs elsewhere, inside a program or test."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from minibroker.client.cluster import ClusterClient, require
from minibroker.config.types import ConfigError
from minibroker.kernel.addresses import format_address
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.loop_calls import call_in_loop
from minibroker.proxy.options import DEFAULT_HOST, ProxyOptions, proxy_options
from minibroker.server.proxy_service import ProxyService
from minibroker.testing.in_thread import ServiceThread
from minibroker.testing.life_cycle import Embedded, Runner
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    from minibroker.control.client import Caller

__tracebackhide__ = True  # pytest shows the line of the test

_CREATE_MS = 30_000
_CREATE_VERSION = 7


class Proxy(Embedded):
    """A proxy in front of a running cluster, for as long as a ``with`` or ``async with`` block lasts.

    upstream: HOST:PORT[,HOST:PORT…] of some of its brokers.
    command_config: file with the properties of a Kafka client, with which the proxy itself reaches them.
    port: the port of the listener that reaches any broker, 0 for free ports.
    ports: the ports of the brokers' listeners, by node id.
    config: settings of the listeners: TLS and limits.
    record: number of exchanges to keep for `requests`.
    page: show what happens in a browser, at `page_url`.

    `faults` and `requests` are those of `Minibroker`. What reads or changes the state of brokers, such as `clock`,
    `state` and `records`, raises FaultError, because they belong to others. Raises NeverFired as `Minibroker` does.

    Raises ConfigError for invalid options, when constructed; StartError when the upstream cannot be reached.
    """

    _noun = "proxy"

    def __init__(
        self,
        upstream: str,
        *,
        command_config: str | PathLike[str] | None = None,
        host: str = DEFAULT_HOST,
        port: int = 0,
        ports: Mapping[int, int] | None = None,
        config: Mapping[str, Any] | None = None,
        record: int = 0,
        page: bool = False,
    ) -> None:
        try:
            self._options = proxy_options(
                upstream,
                command_config=None if command_config is None else str(command_config),
                host=host,
                port=port,
                ports=ports,
                config=config,
                page=page,
            )
            ProxyService(self._options)  # says what is wrong with the settings
        except ConfigError as error:
            raise error.with_traceback(None) from None
        super().__init__(record)

    def create_topic(self, topic: str, *, partitions: int = 1, replication_factor: int = -1) -> None:
        """Create a topic on the upstream (-1: the default of its brokers). Raises ApiError, BrokerFailed."""
        wanted = m.CreateTopicsRequest.CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=replication_factor
        )
        servers = ",".join(format_address(*address) for address in self._options.upstream)
        with ClusterClient(servers, security=self._options.security) as client:
            request = m.CreateTopicsRequest(topics=[wanted], timeout_ms=_CREATE_MS)
            version = client.version(m.CreateTopicsRequest, _CREATE_VERSION)
            (made,) = client.ask(client.controller(), request, m.CreateTopicsResponse, version).topics
            require(made.error_code, f"topic {topic}", made.error_message)

    def _make_runner(self) -> Runner:
        return _ProxyRunner(self._options)


class _ProxyRunner(ServiceThread):
    def __init__(self, options: ProxyOptions) -> None:
        self.service = ProxyService(options)
        super().__init__(self.service)

    def caller(self) -> Caller:
        return _ProxyCaller(self)


class _ProxyCaller:
    """Runs commands of a proxy in this process; usable from any thread but the proxy's own."""

    def __init__(self, runner: _ProxyRunner) -> None:
        self._runner = runner

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of one command. Raises FaultError, RuntimeError when the proxy does not run."""
        runner = self._runner
        try:
            return call_in_loop(runner.loop, lambda: runner.service.commands.call(name, arguments)).result()
        except (ApiError, FaultError) as error:
            raise error.with_traceback(None) from None
