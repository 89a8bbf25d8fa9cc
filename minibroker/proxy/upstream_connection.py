"""One connection to a broker of the upstream: frames of requests out, those of answers in, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, cast

from minibroker.kernel.addresses import Address, format_address
from minibroker.kernel.deferred import Deferred, failed, resolved
from minibroker.kernel.spare_buffers import SpareBuffers
from minibroker.kernel.words import reason
from minibroker.requests.context import CloseConnection
from minibroker_protocol.fields import Buffer
from minibroker_protocol.frames import foreign_protocol

if TYPE_CHECKING:
    import ssl

_CONNECT_SECONDS: Final = 10.0
_UNREAD_SECONDS: Final = 30.0
"""How long a client's last bytes wait for the upstream to read them."""
_LARGE_FRAME_BYTES: Final = 16 * 1024
"""A frame of this size and up is received into a buffer of its own."""
_READ_BYTES: Final = 512 * 1024
_JOIN_BYTES: Final = 32 * 1024
_LARGEST_FRAME_BYTES: Final = 1 << 30
_WRITE_HIGH_BYTES: Final = 256 * 1024
SCRATCH_BYTES: Final = 64 * 1024

_size_at = Struct(">i").unpack_from
_pack_size = Struct(">i").pack


class UpstreamConnection(asyncio.BufferedProtocol):
    """Made for one connection of a client, so that order, fetch sessions and acks=0 are the broker's.

    scratch: where small frames are received, shared by all connections of a loop.
    spare: buffers for large ones. An answer may be a view of one, which serves again once no view of it is left.
    ended: called once, with the reason; with "" where `close` or `abort` ended it.
    gone: called once, when no socket of it is left, which can be later.
    """

    def __init__(
        self, scratch: memoryview, spare: SpareBuffers, ended: Callable[[str], None], gone: Callable[[], None]
    ) -> None:
        self._scratch = scratch
        self._spare = spare
        self._on_end = ended
        self._on_gone = gone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._was_made = False
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[Buffer] = []
        self._answers: deque[Deferred[Buffer]] = deque()
        self._drained: list[Deferred[Buffer]] = []  # of requests without an answer
        self._paused = False
        self._rest = bytearray()  # received, not a whole frame yet
        self._frame: bytearray | None = None  # a large frame on its way in
        self._size = 0
        self._filled = 0
        self._why_ended = ""
        self.address: Address | None = None

    def connect(
        self, loop: asyncio.AbstractEventLoop, addresses: Sequence[Address], tls: ssl.SSLContext | None
    ) -> asyncio.Task[None]:
        """Connect to the first of the addresses that accepts a connection; requests that came before are sent then."""
        self._loop = loop
        self._connecting = loop.create_task(self._connect(loop, addresses, tls))
        self._connecting.add_done_callback(self._tried)
        return self._connecting

    def _tried(self, _: asyncio.Task[None]) -> None:
        if not self._was_made:
            self._on_gone()

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, addresses: Sequence[Address], tls: ssl.SSLContext | None
    ) -> None:
        why = "the upstream has no address"
        for address in addresses:
            try:
                made = loop.create_connection(lambda: self, *address, ssl=tls)
                await asyncio.wait_for(made, _CONNECT_SECONDS)
            except (OSError, ValueError) as error:  # ValueError: a name that no resolver takes
                said = reason(error) or f"no answer within {_CONNECT_SECONDS:g} s"
                why = f"{format_address(*address)} of the upstream cannot be reached: {said}"
                continue
            self.address = address
            return
        self._end(why)

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, frame: Buffer, *, answered: bool = True) -> Deferred[Buffer]:
        """Send a request, and give the frame of its answer; an empty one, once the bytes have room on their way, where
        no answer follows (acks=0). Fails with CloseConnection."""
        if self._why_ended:
            return failed(CloseConnection(self._why_ended))
        if self._transport is None or not answered:
            frame = bytes(frame)  # its buffer may serve another request before it has left
        self._write(frame)
        outcome: Deferred[Buffer] = Deferred()
        if answered:
            self._answers.append(outcome)
        elif self._transport is None or self._paused:
            self._drained.append(outcome)
        else:
            return resolved(b"")
        return outcome

    def _write(self, frame: Buffer) -> None:
        size = _pack_size(len(frame))
        if self._transport is None:
            self._unsent += [size, frame]
        elif len(frame) <= _JOIN_BYTES:
            self._transport.write(size + frame)
        else:
            self._transport.writelines([size, frame])

    def close(self) -> None:
        """The client is gone: close once everything written has left, or the upstream has read nothing for long."""
        if self._loop is not None and (self._transport is not None or self._unsent):
            self._timer = self._loop.call_later(_UNREAD_SECONDS, self.abort)
        if self._transport is not None:
            self._transport.close()
        elif self._connecting is not None and not self._unsent:
            self._connecting.cancel()
        self._end("the client is gone", heard=False)

    def abort(self) -> None:
        """Close now."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end("the proxy stops", heard=False)

    # -- asyncio's calls -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._was_made = True
        self._transport = made = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        unsent, self._unsent = self._unsent, []
        if unsent:
            made.writelines(unsent)
        if self._why_ended:
            made.close()
        elif not self._paused:
            self.resume_writing()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        drained, self._drained = self._drained, []
        for outcome in drained:
            outcome.resolve(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return self._scratch
        return memoryview(frame)[self._filled : min(self._size, self._filled + _READ_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        frame = self._frame
        if frame is not None:
            self._filled += nbytes
            if self._filled == self._size:
                self._frame = None
                self._deliver(memoryview(frame)[: self._size])
                self._spare.give_back(frame)
            return
        if not self._rest:
            used = self._parse(self._scratch[:nbytes])
            if used < nbytes:
                self._rest += self._scratch[used:nbytes]
            return
        received, self._rest = self._rest + self._scratch[:nbytes], bytearray()
        self._rest = received[self._parse(memoryview(received)) :]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._on_gone()
        self._end("the upstream closed the connection" if exc is None else f"the upstream: {reason(exc)}")

    # -- answers -------------------------------------------------------------------------------------------------------

    def _parse(self, data: memoryview) -> int:
        """Deliver the whole frames in `data`; how many bytes were taken."""
        position, end = 0, len(data)
        while end - position >= 4 and not self._why_ended:
            size: int = _size_at(data, position)[0]
            if not 0 <= size <= _LARGEST_FRAME_BYTES:
                self._break(f"the upstream sent a frame of size {size}{foreign_protocol(size)}")
                return end
            after = position + 4 + size
            if after > end:
                if size < _LARGE_FRAME_BYTES:
                    break
                self._frame = frame = self._spare.take(size) or bytearray(size)
                self._size = size
                self._filled = end - position - 4
                frame[: self._filled] = data[position + 4 : end]
                return end
            frame_here = bytearray(data[position + 4 : after])
            position = after
            self._deliver(frame_here)
        return position if not self._why_ended else end

    def _deliver(self, frame: Buffer) -> None:
        if self._why_ended:
            return
        if not self._answers:
            self._break("the upstream sent an answer that no request asked for")
            return
        self._answers.popleft().resolve(frame)

    def _break(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def _end(self, why: str, *, heard: bool = True) -> None:
        if self._why_ended:
            return
        self._why_ended = why
        waiting = [*self._answers, *self._drained]
        self._answers.clear()
        self._drained.clear()
        for outcome in waiting:
            outcome.fail(CloseConnection(why))
        self._on_end(why if heard else "")
