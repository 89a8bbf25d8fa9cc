"""A whole running cluster: sockets, data directories, brokers, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from minibroker.cluster.cluster import Cluster
from minibroker.config.keys import SEMANTICS_PREFIX
from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError
from minibroker.kernel.addresses import format_address
from minibroker.kernel.asyncio_runtime import LoopTimers
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.deferred import spawn
from minibroker.kernel.executor import DiskInline
from minibroker.kernel.extras import hint, missing
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.logs import get_logger
from minibroker.kernel.threads import ThreadExecutor
from minibroker.kernel.turns import Lane, in_turns
from minibroker.metadata.broker_spec import BrokerSpec
from minibroker.releases.chain import RELEASES
from minibroker.releases.semantics import PRESETS, mixed
from minibroker.requests.context import CloseConnection
from minibroker.security.create_authorizer import create_authorizer
from minibroker.security.protocols import SecurityProtocol
from minibroker.server.broker_disks import BrokerDisk, BrokerDisks
from minibroker.server.connection_log import ConnectionLog
from minibroker.server.edge import Edge, Limits
from minibroker.server.file_descriptors import Exhaustion, connection_limit, too_few_handles
from minibroker.server.listener_config import (
    ListenerConfig,
    advertised_by_port,
    listener_configs,
    name_in_container,
    told_outside,
)
from minibroker.server.listener_security import ListenerSecurity, listener_securities
from minibroker.server.listeners import ListenError, listen_all, local_address, why_not
from minibroker.server.options import Options
from minibroker.server.ports import BrokerPorts
from minibroker.server.temporary_directory import remove_abandoned
from minibroker.server.watchdog import LoopWatchdog
from minibroker_protocol.errors import ApiError
from minibroker_storage.directory import DirectoryLocked, WrongDirectory
from minibroker_storage.disk import StorageError
from minibroker_storage.file_errors import MalformedFile

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.cluster.hooks import Meter
    from minibroker.control.commands import Commands
    from minibroker.control.server import ControlServer
    from minibroker.kernel.transport import Network
    from minibroker.metrics.server import MetricsServer
    from minibroker.releases.semantics import Semantics
    from minibroker.security.credentials import ScramCredentials

log = get_logger(__name__)

# After the first clients have been served: they should not wait for the leftovers of others.
_CLEAN_UP_SECONDS = 0.1
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE = ("0.0.0.0", "::", "")


class StartError(Exception):
    """The broker could not start; the text is one line that says what is in the way."""


class Service:
    """Starts and stops the cluster that `options` describe, on the running event loop.

    Raises ConfigError at once for wrong options.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.settings = _settings(options)
        self.semantics = _semantics(options, self.settings)
        self._declared = listener_configs(self.settings, len(options.ports))
        create_authorizer(self.settings)  # says what is wrong with it
        self.cluster: Cluster | None = None
        self._declared_securities, self._security = _securities(self._declared, self.settings, self._scram_credentials)
        if options.metrics is not None and missing(["prometheus_client"]):
            raise ConfigError(hint("--metrics", "prometheus_client"))
        self.options = options = _with_data_dir(options, self.settings)
        self.bootstrap_servers = ""
        self.outside_servers = ""
        self._listeners: list[socket.socket] = []
        self._more_listeners: list[socket.socket] = []
        self._places: BrokerDisks | None = None
        self._edge: Edge | None = None
        self._ports: BrokerPorts | None = None
        self._executor: ThreadExecutor | None = None
        self._timers: LoopTimers | None = None
        self._exhaustion: Exhaustion | None = None
        self._watchdog: LoopWatchdog | None = None
        self._commands: Commands | None = None
        self.control: ControlServer | None = None
        self.metrics: MetricsServer | None = None

    @property
    def commands(self) -> Commands:
        """Faults, clock, state and exchanges of the running cluster. RuntimeError when it does not run."""
        if self._commands is None:
            from minibroker.control.commands import Commands

            if self.cluster is None or self._timers is None:
                raise RuntimeError("the broker is not running")
            self._commands = Commands(self.cluster, self._timers)
        return self._commands

    async def start(self) -> None:
        """Bind every port, take up the data, serve. Raises StartError or ConfigError and leaves nothing behind."""
        if problem := too_few_handles():
            raise StartError(problem)
        for name in self.settings.ignored:
            log.info("%s is a setting of Kafka that has no effect here", name)
        securities = self._declared_securities or [self._security]
        if self.settings.get("minibroker.sasl.users") and all(listener.mechanisms is None for listener in securities):
            log.warning("minibroker.sasl.users has no effect: set minibroker.security.protocol, or that of a listener")
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_report)
        try:
            self._bind()
            self._make_certificate()  # not over that of a broker that has the port
            self._executor = ThreadExecutor(loop)
            with self._guarded():
                self._places = BrokerDisks(self.options, self.settings)
                self.cluster = self._build(loop)
                self.cluster.start()
                if self.options.setup is not None:
                    from minibroker.kernel.loop_calls import call_in_loop
                    from minibroker.server.setup import apply

                    begun = spawn(apply(self.options.setup, self.cluster, self.commands.call))
                    await asyncio.wrap_future(call_in_loop(loop, lambda: begun))
            await self._serve(loop, self.cluster)
            if self.options.control is not None:
                from minibroker.control.commands import all_commands
                from minibroker.server.control_side import serve_control

                self.control = serve_control(loop, self.commands, all_commands, self.options.control, self.options)
            if self.options.metrics is not None:
                self._start_metrics(loop, self.options.metrics, self.cluster)
        except ListenError as error:
            await self.stop()
            raise StartError(str(error)) from None
        except BaseException:
            await self.stop()
            raise
        if self.options.data_dir is None:
            loop.call_later(_CLEAN_UP_SECONDS, self._clean_up_after_others)

    def _scram_credentials(self) -> ScramCredentials:
        return self.cluster.image.scram_credentials if self.cluster is not None else {}

    def _make_certificate(self) -> None:
        """Where none was given; at the start, because it writes a file."""
        contexts = [
            security.tls for security in (self._security, *self._declared_securities) if security.tls is not None
        ]
        if not contexts:
            return
        from minibroker.security.tls import make_certificate, makes_certificate

        if makes_certificate(self.settings):
            advertised = [listener.advertised[0] for listener in self._declared if listener.advertised is not None]
            hosts = [*_OWN_NAMES, socket.gethostname(), self.options.host, *advertised]
            make_certificate(contexts[0], self.settings, [host for host in hosts if host not in _EVERYWHERE])

    def _bind(self) -> None:
        backlog = self.settings.get_int("socket.listen.backlog.size")
        if not self._declared:
            self._listeners = listen_all(self.options.host, self.options.ports, backlog)
            return
        for declared in self._declared:
            bound = listen_all(declared.host, [declared.port], backlog)
            (self._more_listeners if self._listeners else self._listeners).extend(bound)

    def _start_metrics(self, loop: asyncio.AbstractEventLoop, address: tuple[str, int], cluster: Cluster) -> None:
        from minibroker.metrics.page import in_loop, read
        from minibroker.metrics.server import MetricsServer

        timers = self._timers
        assert timers is not None
        try:
            rows = in_loop(loop, lambda: in_turns(Lane(timers), read(cluster)))
            self.metrics = MetricsServer(address, rows, lambda: len(cluster.nodes))
        except OSError as error:
            raise StartError(f"the metrics: {why_not(error, *address)}") from None

    def _clean_up_after_others(self) -> None:
        if self._executor is not None:
            self._executor.submit(remove_abandoned)

    def _build(self, loop: asyncio.AbstractEventLoop) -> Cluster:
        assert self._places is not None
        assert self._executor is not None
        self._timers = timers = LoopTimers(loop)
        nodes = [
            self._node(place, listener) for place, listener in zip(self._places.brokers, self._listeners, strict=True)
        ]
        return Cluster(
            self.settings,
            self.semantics,
            nodes=nodes,
            journal_disk=self._places.journal_disk,
            clock=BrokerClock(timers),
            timers=timers,
            executor=DiskInline(self._executor) if self._places.in_memory else self._executor,
            random=Random(),
            transaction_version=_transaction_version(self.options),
            topics=self.options.topics,
            holder=str(os.getpid()),
            network=self._network(loop, timers),
            make_node=self._make_node,
            make_meter=None if self.options.metrics is None else _meter,
        )

    def _network(self, loop: asyncio.AbstractEventLoop, timers: LoopTimers) -> Network | None:
        """What connects the brokers; None for the one inside the process."""
        if not self.settings.get_boolean("minibroker.inter.broker.sockets"):
            return None
        import secrets

        from minibroker.cluster.socket_network import SocketNetwork

        return SocketNetwork(
            loop,
            timers,
            self.settings.get_int("request.timeout.ms"),
            secret=secrets.token_bytes(32),
            random_bytes=secrets.token_bytes,
            refused=ConnectionLog(loop).say,
        )

    def _node(self, place: BrokerDisk, listener: socket.socket) -> BrokerSpec:
        return BrokerSpec(
            node_id=place.node_id,
            # A TLS client that asked for a host name (SNI) gets that name.
            host="" if self._security.tls is not None else _advertised_host(listener),
            port=listener.getsockname()[1],
            disk=place.disk,
            log_dir=place.log_dir,
            rack=self.settings.get("broker.rack"),  # type: ignore[arg-type]
            volume_bytes=place.volume_bytes,
            listeners=advertised_by_port(self._declared, [*self._listeners, *self._more_listeners]),
            name_for=name_in_container(),
        )

    def _make_node(self, node_id: int) -> BrokerSpec:
        """A broker that joins the running cluster: a place of its own and a free port."""
        assert self._places is not None
        assert self._ports is not None
        listener = self._ports.reserve(node_id)
        place = self._places.add(node_id)
        if self._exhaustion is not None:
            self._exhaustion.watch(place.disk)
        return self._node(place, listener)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn errors of the data directory into StartError."""
        try:
            yield
        except StorageError as error:
            where = self.options.data_dir or "a temporary one"
            inside = f" ({error.filename})" if error.filename else ""
            raise StartError(f"the data directory, {where}, cannot be used: {error.strerror}{inside}") from error
        except (DirectoryLocked, WrongDirectory, MalformedFile, ApiError, FaultError) as error:
            raise StartError(str(error)) from error

    async def _serve(self, loop: asyncio.AbstractEventLoop, cluster: Cluster) -> None:
        assert self._places is not None
        settings = self.settings
        disks = [place.disk for place in self._places.brokers]
        limits = Limits.of(settings)
        limits = limits._replace(max_connections=connection_limit(limits.max_connections, disks))
        self._edge = Edge(loop, limits, refusals=(CloseConnection,))
        self._exhaustion = Exhaustion(loop, self._edge, disks)
        self.bootstrap_servers = ",".join(format_address(*local_address(listener)) for listener in self._listeners)
        everywhere = [*self._listeners, *self._more_listeners]
        outside = told_outside(self._declared, everywhere, socket.gethostname())
        self.outside_servers = ",".join(format_address(*address) for address in outside)
        listeners = {node.node_id: listener for node, listener in zip(cluster.nodes, self._listeners, strict=True)}
        more = {cluster.nodes[0].node_id: self._more_listeners} if self._more_listeners else {}
        bound = zip(self._declared_securities, everywhere, strict=False)
        securities = {listener.getsockname()[1]: security for security, listener in bound}
        self._listeners, self._more_listeners = [], []
        self._ports = BrokerPorts(
            self._edge, self.options.host, limits.backlog, listeners, more, securities, self._security
        )
        for node_id in sorted(cluster.brokers):
            self._ports.started(node_id, cluster.dispatcher(node_id))
        await self._ports.opened()
        cluster.set_hooks(self._ports)
        max_lag_ms = settings.get_int("minibroker.loop.lag.max.ms")
        if max_lag_ms:
            self._watchdog = LoopWatchdog(loop, max_lag_ms)
            self._watchdog.start()

    async def stop(self) -> None:
        """Stop accepting, answer what is applied, close the logs, and remove what was temporary."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._exhaustion is not None:
            self._exhaustion.close()
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        if self.cluster is not None:
            for node_id in self.cluster.paused_brokers:  # otherwise it could not shut down
                self.cluster.resume_broker(node_id)
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None
        if self._ports is not None:
            await self._ports.settled()
        if self._edge is not None:
            await self._edge.stop_accepting()
            await self._edge.drain(self.settings.get_int("minibroker.shutdown.timeout.ms") / 1000)
            await self._edge.close()
            self._edge = None
        if self._ports is not None:
            self._ports.close()
        for listener in [*self._listeners, *self._more_listeners]:
            listener.close()
        self._listeners, self._more_listeners = [], []
        if self._timers is not None:
            self._timers.close()
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            with _logged("closing the brokers"):
                cluster.stop(keep=self.options.data_dir is not None)
        if self._executor is not None:
            self._executor.close()
            self._executor = None
            # Deferreds of the threads' last work are resolved by callbacks that are already queued.
            await asyncio.sleep(0)
        if self._places is not None:
            self._places.close()
            self._places = None


def _securities(
    declared: Sequence[ListenerConfig], settings: Settings, credentials: Callable[[], ScramCredentials]
) -> tuple[list[ListenerSecurity], ListenerSecurity]:
    """The security of each declared listener, and that of every other port.

    credentials: those of the metadata.

    Raises ConfigError.
    """
    protocol = SecurityProtocol[settings.get_string("minibroker.security.protocol")]
    listeners = [(listener.name, listener.protocol) for listener in declared]
    *for_listeners, other = listener_securities(settings, [*listeners, (protocol.name, protocol)], credentials)
    return for_listeners, other


def _meter(broker: Broker) -> Meter:
    from minibroker.metrics.meter import RequestMeter

    return RequestMeter(broker, lambda: time.monotonic() * 1000)


def _with_data_dir(options: Options, settings: Settings) -> Options:
    """log.dirs, or log.dir, where no directory was given and none is excluded."""
    directories = settings.get_list("log.dirs") or settings.get_list("log.dir")
    if not directories or options.data_dir is not None or options.ephemeral:
        return options
    if len(directories) > 1:
        raise ConfigError(f"log.dirs names one directory here, not {','.join(directories)!r}")
    return replace(options, data_dir=directories[0])


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no handler caught."""
    log.error("%s", context.get("message", "error in the event loop"), exc_info=context.get("exception"))


@contextlib.contextmanager
def _logged(doing: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("%s failed", doing)


def _settings(options: Options) -> Settings:
    settings = Settings(options.config)
    if options.as_version is None:
        return settings

    release = RELEASES.get(options.as_version)
    if release is None:
        raise ConfigError(f"version {options.as_version!r} is not one of {', '.join(RELEASES)}")
    if options.semantics != "kafka":
        raise ConfigError(f"no release of Kafka has the semantics {options.semantics}: leave one of the two out")
    level, highest = options.transaction_version, release.semantics.transaction_version
    if level is not None and level > highest:
        raise ConfigError(f"Kafka {release.name} has no transaction.version above {highest}, not {level}")
    return settings.with_defaults(release.settings)


def _transaction_version(options: Options) -> int | None:
    """A release has its own level even where the data directory was made with another."""
    if options.as_version is None or options.transaction_version is not None:
        return options.transaction_version

    return RELEASES[options.as_version].semantics.transaction_version


def _semantics(options: Options, settings: Settings) -> Semantics:
    preset = PRESETS.get(options.semantics)
    if options.as_version is not None:
        preset = RELEASES[options.as_version].semantics
    if preset is None:
        raise ConfigError(f"semantics {options.semantics!r} is not one of {', '.join(sorted(PRESETS))}")
    try:
        semantics = mixed(preset, lambda name: settings.get(f"{SEMANTICS_PREFIX}{name}"))
    except ValueError as error:
        raise ConfigError(f"{SEMANTICS_PREFIX}timed_out_codes: {error}") from None
    level = options.transaction_version
    problems = semantics.problems(semantics.transaction_version if level is None else level)
    if problems:
        raise ConfigError(f"semantics {options.semantics}: {problems[0]}")
    return semantics


def _advertised_host(listener: socket.socket) -> str:
    """The bound address; "" for a wildcard, which makes Metadata name the address each client came to."""
    host: str = listener.getsockname()[0]
    return "" if host in ("0.0.0.0", "::") else host
