"""A running proxy: its listeners, its connections to the upstream, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import BrokerFailed, NoResponse
from minibroker.config.settings import Settings
from minibroker.kernel.addresses import Address, format_address
from minibroker.kernel.asyncio_runtime import LoopTimers, wall_ms
from minibroker.kernel.logs import get_logger
from minibroker.kernel.threads import ThreadExecutor
from minibroker.kernel.words import reason
from minibroker.proxy.asked_node import AskedNode, WallClock
from minibroker.proxy.endpoints import NodeKey
from minibroker.proxy.options import ProxyOptions, listener_settings
from minibroker.proxy.proxy_dispatcher import ProxyDispatcher
from minibroker.proxy.upstream_connection import SCRATCH_BYTES, UpstreamConnection
from minibroker.proxy.upstream_nodes import UpstreamNodes
from minibroker.requests.chain import Place
from minibroker.requests.context import CloseConnection
from minibroker.security.protocols import SecurityProtocol
from minibroker.server.edge import Edge, Limits
from minibroker.server.file_descriptors import connection_limit, too_few_handles
from minibroker.server.listener_security import OPEN, ListenerSecurity
from minibroker.server.listeners import ListenError, listen_all, local_address
from minibroker.server.service import StartError
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    import ssl

    from minibroker.control.proxy_commands import ProxyCommands
    from minibroker.control.server import ControlServer
    from minibroker.trace.tap import RequestTap
    from minibroker.trace.trace_file import TraceFile

log = get_logger(__name__)

_ASK_SECONDS: Final = 10.0
_CLIENT_ID: Final = "minibroker-proxy"


class ProxyService:
    """Starts and stops the proxy that `options` describe, on the running event loop.

    Raises ConfigError at once for settings of its listeners that are wrong.
    """

    def __init__(self, options: ProxyOptions) -> None:
        self.options = options
        self.settings = listener_settings(options.config)
        self._security = _listener_security(self.settings)
        self.bootstrap_servers = ""
        self.control: ControlServer | None = None
        self._commands: ProxyCommands | None = None
        self._record: TraceFile | None = None
        self._tap: RequestTap | None = None
        self._tls: ssl.SSLContext | None = None
        self._client_id = f"{_CLIENT_ID}-{secrets.token_hex(8)}"
        self._circle = False
        self._edge: Edge | None = None
        self._executor: ThreadExecutor | None = None
        self._timers: LoopTimers | None = None
        self._next_port = options.port
        self._listening: list[asyncio.Task[None]] = []
        self._connections: set[UpstreamConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.nodes = UpstreamNodes(options.upstream, self._open)
        self.dispatchers: list[ProxyDispatcher] = []

    async def start(self) -> None:
        """Listen, and ask the upstream for its brokers. Raises StartError and leaves nothing behind."""
        if problem := too_few_handles():
            raise StartError(problem)
        loop = asyncio.get_running_loop()
        self._executor = ThreadExecutor(loop)
        self._timers = LoopTimers(loop)
        self._edge = Edge(
            loop,
            self._limits(),
            refusals=(CloseConnection,),
        )
        try:
            if self.options.security.tls:
                self._tls = self.options.security.context()
            bootstrap = self._listen(None)
            await asyncio.gather(*self._listening)
            brokers = self._executor.aside(self._ask)
            done = asyncio.Event()
            brokers.then(lambda _: done.set())
            await done.wait()
            for node_id, address in sorted(brokers.result().items()):
                self.nodes.port_of(NodeKey(node_id), address)
            await asyncio.gather(*self._listening)
            self.bootstrap_servers = format_address(*bootstrap)
            if self.options.record is not None:
                self._start_record(self.options.record)
            if self.options.control is not None:
                from minibroker.control.proxy_commands import PROXY_COMMANDS
                from minibroker.server.control_side import serve_control

                self.control = serve_control(
                    loop, self.commands, lambda: PROXY_COMMANDS, self.options.control, self.options
                )
        except (BrokerFailed, ApiError) as error:
            await self.stop()
            raise StartError(f"the upstream: {self._in_words(error)}") from None
        except ListenError as error:
            await self.stop()
            raise StartError(str(error)) from None
        except BaseException:
            await self.stop()
            raise

    def _limits(self) -> Limits:
        limits = Limits.of(self.settings)
        if "connections.max.idle.ms" not in self.options.config:  # then the upstream decides
            limits = limits._replace(connections_max_idle_ms=0)
        # Each connection has one of its own to the upstream.
        return limits._replace(max_connections=min(limits.max_connections, connection_limit((1 << 31) - 1, []) // 2))

    @property
    def commands(self) -> ProxyCommands:
        """Faults and exchanges. RuntimeError when the proxy does not run."""
        if self._commands is None:
            from minibroker.control.proxy_commands import ProxyCommands

            if not self.bootstrap_servers or self._timers is None:
                raise RuntimeError("the proxy is not running")
            self._commands = ProxyCommands(self.nodes, self.bootstrap_servers, self._timers, self._set_tap)
        return self._commands

    def _set_tap(self, tap: RequestTap | None) -> None:
        self._tap = tap
        for dispatcher in self.dispatchers:
            dispatcher.link(Place.FAULTS_AND_TRACE, tap, self._concerned)

    def _concerned(self, api: str) -> bool:
        return self._commands is not None and self._commands.concerned(api)

    def _start_record(self, path: str) -> None:
        from minibroker.trace.trace_file import TraceFile

        try:
            self._record = TraceFile(path, contents=self.options.record_contents)
        except OSError as error:
            raise StartError(f"--record: {reason(error)}") from None
        self.commands.listen(self._record.add)

    def _ask(self) -> dict[int, Address]:
        """The brokers by node id. On a thread of its own."""
        servers = ",".join(format_address(*address) for address in self.options.upstream)
        with ClusterClient(servers, timeout=_ASK_SECONDS, security=self.options.security) as client:
            client.client_id = self._client_id
            return dict(client.brokers())

    def _in_words(self, error: Exception) -> str:
        if self._circle:
            return "it leads back to this proxy"
        if isinstance(error, NoResponse):
            return f"{error}; is it a broker of Kafka?"
        return f"{error} (--command-config)" if str(error).endswith("?") else str(error)

    def _gone_in_a_circle(self) -> None:
        self._circle = True

    async def stop(self) -> None:
        """Close every listener and every connection."""
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        if self.control is not None:
            self.control.close()
            self.control = None
        if self._edge is not None:
            await asyncio.gather(*self._listening, return_exceptions=True)
            await self._edge.stop_accepting()
            await self._edge.close()
            self._edge = None
        for connection in list(self._connections):
            connection.abort()
        for connecting in self._connecting:  # also of clients that have gone since
            connecting.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        if self._record is not None:
            self._record.close()
            self._record = None
        if self._timers is not None:
            self._timers.close()
        if self._executor is not None:
            self._executor.close()
            self._executor = None
            await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_default_executor()  # of the names of hosts

    # -- listeners -----------------------------------------------------------------------------------------------------

    def _open(self, key: NodeKey) -> int:
        return self._listen(key)[1]

    def _listen(self, key: NodeKey | None) -> Address:
        """A listener for a node, None: for any broker. Clients can connect at once: the system queues them."""
        assert self._edge is not None
        assert self._timers is not None
        assert self._executor is not None
        listener = self._bound(key)
        address = local_address(listener)
        # A TLS client that asked for a host name (SNI) gets that name.
        host = self.options.advertised_host or ("" if self._security.tls is not None else listener.getsockname()[0])
        node = AskedNode(key, self.nodes, host, self._timers, self._executor, WallClock(wall_ms), self.settings)
        dispatcher = ProxyDispatcher(node, self._connect, self._client_id, self._gone_in_a_circle)
        dispatcher.link(Place.FAULTS_AND_TRACE, self._tap, self._concerned)
        self.dispatchers.append(dispatcher)
        listening = self._edge.listen(listener, dispatcher.dispatch, self._security)
        self._listening.append(self._edge.loop.create_task(listening))
        if key is not None:
            log.info("node %d of the upstream is at %s here", key.node_id, format_address(*address))
        return address

    def _bound(self, key: NodeKey | None) -> socket.socket:
        """On its own port if it has one, else on the next one, or on a free one if that is taken and not required."""
        own = self.options.ports.get(key.node_id) if key is not None and not key.listener else None
        if own is not None:
            return listen_all(self.options.host, [own])[0]
        others = {*self.options.ports.values(), self.options.control[1] if self.options.control else 0} - {0}
        while key is not None and self._next_port in others:
            self._next_port += 1
        port = self._next_port
        if port:
            self._next_port = port + 1 if port < 65535 else 0
        try:
            return listen_all(self.options.host, [port])[0]
        except ListenError:
            if key is None or not port:
                raise
            return listen_all(self.options.host, [0])[0]

    # -- the upstream --------------------------------------------------------------------------------------------------

    def _connect(self, node: AskedNode, lost: Callable[[str], None]) -> UpstreamConnection:
        assert self._edge is not None
        edge = self._edge

        def ended(why: str) -> None:
            if why:
                edge.connection_log.say("a connection through node %d ends: %s", node.node_id, why)
                lost(why)

        connection = UpstreamConnection(self._scratch, edge.spare, ended, lambda: self._connections.discard(connection))
        self._connections.add(connection)
        connecting = connection.connect(edge.loop, self.nodes.candidates(node.key), self._tls)
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        return connection


def _listener_security(settings: Settings) -> ListenerSecurity:
    """TLS ends here; what SASL says goes on to the upstream."""
    protocol = SecurityProtocol[settings.get_string("minibroker.security.protocol")]
    if not protocol.tls:
        return OPEN
    from minibroker.security.tls import server_context

    return ListenerSecurity(server_context(settings))
