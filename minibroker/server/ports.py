"""The port of each broker, open while that broker serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minibroker.server.edge import Edge
from minibroker.server.listener_security import OPEN, ListenerSecurity
from minibroker.server.listeners import ListenError, hold, listen_all

if TYPE_CHECKING:
    from minibroker.requests.dispatch import Dispatcher


# uvloop closes a socket in a later turn; a port that is free by then is held at the first try.
_HOLD_TRIES = 100
_HOLD_PAUSE_SECONDS = 0.01


class BrokerPorts:
    """`BrokerHooks` of a cluster behind one `Edge`; a broker that comes back has the port it had before, which stays
    reserved while it is down.

    listeners: bound sockets by node id, which belong to this object from now on.
    more: the further sockets of brokers with several listeners.
    securities: port → its security.
    security: the security of every other port.
    """

    def __init__(
        self,
        edge: Edge,
        host: str,
        backlog: int,
        listeners: dict[int, socket.socket],
        more: Mapping[int, Sequence[socket.socket]] | None = None,
        securities: Mapping[int, ListenerSecurity] | None = None,
        security: ListenerSecurity = OPEN,
    ) -> None:
        self._securities = securities or {}
        self._security = security
        self._edge = edge
        self._host = host
        self._backlog = backlog
        self._listeners = listeners
        self._hosts = {node_id: listener.getsockname()[0] for node_id, listener in listeners.items()}
        self._more = {node_id: list(sockets) for node_id, sockets in (more or {}).items()}
        self._more_addresses = {
            node_id: [listener.getsockname()[:2] for listener in sockets] for node_id, sockets in self._more.items()
        }
        self._ports = {node_id: listener.getsockname()[1] for node_id, listener in listeners.items()}
        self._serving: dict[int, tuple[Dispatcher, asyncio.Task[None]]] = {}
        self._closed = False

    def reserve(self, node_id: int) -> socket.socket:
        """A free port for a broker to be. Raises ListenError."""
        listener = listen_all(self._host, [0], self._backlog)[0]
        self._listeners[node_id] = listener
        self._ports[node_id] = listener.getsockname()[1]
        return listener

    def started(self, node_id: int, dispatcher: Dispatcher) -> None:
        """Raises ListenError when another process has taken the port."""
        listener = self._listeners.pop(node_id, None)
        if listener is None:
            listener = listen_all(self._hosts.get(node_id, self._host), [self._ports[node_id]], self._backlog)[0]
        others = self._more.pop(node_id, None)
        if others is None:
            others = [
                listen_all(host, [port], self._backlog)[0] for host, port in self._more_addresses.get(node_id, ())
            ]
        for held in (listener, *others):
            held.listen(self._backlog)
        # Clients can connect from here on: the system queues them until the loop accepts.
        task = self._edge.loop.create_task(self._listen([listener, *others], dispatcher))
        self._serving[node_id] = (dispatcher, task)

    async def _listen(self, listeners: Sequence[socket.socket], dispatcher: Dispatcher) -> None:
        for listener in listeners:
            security = self._securities.get(listener.getsockname()[1], self._security)
            await self._edge.listen(listener, dispatcher.dispatch, security)

    def stopped(self, node_id: int) -> None:
        dispatcher, task = self._serving.pop(node_id)
        if task.done():
            self._let_go(node_id, dispatcher)
        else:  # stopped in the turn in which it was started: the loop accepts first, then lets go
            task.add_done_callback(lambda _: self._let_go(node_id, dispatcher))

    def removed(self, node_id: int) -> None:
        """The broker does not come back: others may have its ports."""
        del self._ports[node_id]
        for listener in [self._listeners.pop(node_id, None), *self._more.pop(node_id, ())]:
            if listener is not None:
                listener.close()

    def _let_go(self, node_id: int, dispatcher: Dispatcher) -> None:
        self._edge.unlisten(dispatcher.dispatch)
        self._hold(node_id, _HOLD_TRIES)

    def _hold(self, node_id: int, tries: int) -> None:
        """Have the broker's ports again as soon as they are free, without listening: clients are refused there."""
        if self._closed or node_id in self._serving or node_id in self._listeners or node_id not in self._ports:
            return
        addresses = [(self._hosts.get(node_id, self._host), self._ports[node_id])]
        held: list[socket.socket] = []
        try:
            for host, port in [*addresses, *self._more_addresses.get(node_id, ())]:
                held.append(hold(host, port))
        except ListenError:
            for holder in held:
                holder.close()
            if tries:
                self._edge.loop.call_later(_HOLD_PAUSE_SECONDS, self._hold, node_id, tries - 1)
            return
        self._listeners[node_id], *others = held
        if others:
            self._more[node_id] = others

    async def opened(self) -> None:
        """Returns once every port of a started broker is served."""
        await asyncio.gather(*(task for _, task in self._serving.values()))

    async def settled(self) -> None:
        """Returns once no port is about to be opened, which takes a turn or two after a broker was started again."""
        tasks = [task for _, task in self._serving.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Close listeners that no broker took."""
        self._closed = True
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for listeners in self._more.values():
            for listener in listeners:
                listener.close()
        self._more.clear()
