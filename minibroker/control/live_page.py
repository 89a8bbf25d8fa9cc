"""The live page of a cluster: its files, what has been recorded, and what the cluster does now.

Viewing it needs no token. Its buttons call the control API, which needs one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from minibroker.control.exchange_commands import ExchangeCommands
from minibroker.control.live_state import Row
from minibroker.trace.paced import PacedRecorder
from minibroker.trace.recorder import Recorded, Recorder
from minibroker.trace.view import MODULES, frame, page_style

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

KEPT: Final = 1000
SHOWN_PER_SECOND: Final = 150
UNSEEN_PER_SECOND: Final = 20
"""Exchanges that are recorded a second, once more than KEPT came faster: with a page open, and with none."""
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FILES: Final = (*MODULES, "hands.js", "start.js", "live.js")
MOST_STREAMS: Final = 16
"""Pages open at once; one with the token takes the place of the oldest without."""
_LOOK_SECONDS: Final = 0.2
_BEAT_SECONDS: Final = 1.0
_REST: Final = 80
"""A stream rests this many times as long as its last update had the processor, on its own and the cluster's thread."""
_LONGEST_REST_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 30.0
_CHUNK: Final = 200

InLoop = Callable[[Callable[[], Any]], Future[Any]]
"""Calls something on the cluster's thread."""


class _Metered:
    """Calls on the cluster's thread; `seconds`: the processor time of them."""

    def __init__(self, in_loop: InLoop) -> None:
        self._in_loop = in_loop
        self.seconds = 0.0

    def __call__(self, work: Callable[[], Any]) -> Future[Any]:
        def metered() -> Any:
            began = time.thread_time()
            try:
                return work()
            finally:
                self.seconds += time.thread_time() - began

        return self._in_loop(metered)


class _Places:
    """The streams that are open. A visitor without the token must not keep out the owner of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[threading.Event, bool] = {}  # the oldest first; whether it has the token
        self._closed = False

    def take(self, *, owner: bool) -> threading.Event | None:
        """Take one of the places for streams: an event that is set when the stream must end. None when all places are
        taken."""
        place = threading.Event()
        with self._lock:
            if len(self._open) >= self._most:
                visitors = (event for event, has_token in self._open.items() if not has_token)
                oldest = next(visitors, None) if owner else None
                if oldest is None:
                    return None
                del self._open[oldest]
                oldest.set()
            self._open[place] = owner
            if self._closed:
                place.set()
        return place

    def give_back(self, place: threading.Event) -> None:
        with self._lock:
            self._open.pop(place, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for place in self._open:
                place.set()


class LivePage:
    """Records exchanges for the page from now on, of a busy broker some. `in_loop`: see above; the rest runs on the
    callers' threads."""

    def __init__(self, commands: ExchangeCommands, in_loop: InLoop) -> None:
        self._commands = commands
        self._in_loop = in_loop
        self._places = _Places(MOST_STREAMS)
        self._rows = commands.rows()
        self._due = 0.0
        self._open = 0  # streams; changed on the cluster's thread only
        self._recorder = PacedRecorder(KEPT, UNSEEN_PER_SECOND, commands.timers, commands.tap.monotonic_ms)
        commands.set_recorder(self._recorder)

    def close(self) -> None:
        """End every stream."""
        self._places.close()

    def file(self, name: str) -> tuple[str, bytes] | None:
        """Content type and content of a file that the page loads; None for an unknown name."""
        if name == "":
            return "text/html; charset=utf-8", frame("minibroker", "live.js").encode()
        if name == "trace.jsonl":
            _, recorded, _ = self._look(self._in_loop, None, 0)
            return "application/jsonl; charset=utf-8", b"".join(_line(exchange) for exchange in recorded)
        if name == "page.css":
            return _TYPES["css"], page_style().encode()
        if name not in _FILES:
            return None
        source: Traversable = resources.files("minibroker.trace") / "page"
        return _TYPES[name.rpartition(".")[2]], (source / name).read_bytes()

    def events(self, *, owner: bool) -> Generator[bytes] | None:
        """Server-sent events, without end; None when MOST_STREAMS are open already. owner: it has shown the token.

        ``begin``: discard everything shown before; ``exchanges``: a list of finished ones, in the order of their
        numbers; ``rows``: see `live_state.Row`; ``state`` when it changes, and each second.
        """
        place = self._places.take(owner=owner)
        if place is None:
            return None
        stream = self._follow(place)
        next(stream)  # from here on closing it gives the place back
        return stream

    def _follow(self, place: threading.Event) -> Generator[bytes]:
        try:
            yield b""
            before = self._in_loop(lambda: self._opened(1)).result(_ANSWER_SECONDS)
            in_loop = _Metered(self._in_loop)
            seen: Recorder | None = None
            after, version, sent, due = 0, 0, "", 0.0
            missed = False
            yield _event("begin", {})
            while not place.is_set():
                began, in_loop.seconds = time.thread_time(), 0.0
                recorder, recorded, state = self._look(in_loop, seen, after)
                if recorder is not seen:
                    if seen is not None:
                        yield _event("begin", {})
                        before = recorder.left_out if recorder is not None else 0
                    seen, after, version, missed = recorder, 0, 0, False
                for start in range(0, len(recorded), _CHUNK):
                    yield _event("exchanges", [exchange.to_json() for exchange in recorded[start : start + _CHUNK]])
                if recorded:  # the recorder keeps some only, and more may have ended since the last look
                    missed |= 0 < after < recorded[-1].number - len(recorded)
                    after = recorded[-1].number
                state["missed"] = missed = missed or (recorder is not None and recorder.left_out > before)
                changed = in_loop(lambda: self._read_rows(version)).result(_ANSWER_SECONDS)  # noqa: B023
                if changed is None:  # the reader is slow, and rows that it shows were removed in the meantime
                    yield _event("begin", {})
                    after, version = 0, 0
                    continue
                version, rows = changed
                for start in range(0, len(rows), _CHUNK):
                    yield _event("rows", rows[start : start + _CHUNK])
                lasting = json.dumps({**state, "clock": state["clock"]["frozen"]})
                if lasting != sent or time.monotonic() >= due:
                    sent, due = lasting, time.monotonic() + _BEAT_SECONDS
                    yield _event("state", state)
                rest = _REST * (time.thread_time() - began + in_loop.seconds)
                place.wait(min(max(_LOOK_SECONDS, rest), _LONGEST_REST_SECONDS))
        finally:
            with suppress(RuntimeError):  # the loop is closed
                self._in_loop(lambda: self._opened(-1))
            self._places.give_back(place)

    def _opened(self, streams: int) -> int:
        """Count a stream; how often exchanges were left out before it, of those that are recorded for the page."""
        self._open += streams
        self._recorder.pace(SHOWN_PER_SECOND if self._open else UNSEEN_PER_SECOND)
        return self._recorder.left_out

    def _look(
        self, in_loop: InLoop, seen: Recorder | None, after: int
    ) -> tuple[Recorder | None, list[Recorded], dict[str, Any]]:
        """What is new since `after`, or everything if another recorder took over. Takes little time of the cluster's
        thread: the JSON is made on the caller's."""

        def look() -> tuple[Recorder | None, list[Recorded], list[Recorded], dict[str, Any]]:
            recorder = self._commands.tap.recorder
            kept = () if recorder is None else tuple(recorder.last)
            since = after if recorder is seen else 0
            waiting = [exchange for exchange in kept if exchange.outcome == "waiting" and exchange.fault]
            return recorder, [exchange for exchange in kept if exchange.number > since], waiting, self._state()

        recorder, recorded, waiting, state = in_loop(look).result(_ANSWER_SECONDS)
        recorded.sort(key=lambda exchange: exchange.number)
        return recorder, recorded, {**state, "waiting": [exchange.to_json() for exchange in waiting]}

    def _read_rows(self, version: int) -> tuple[int, list[Row]] | None:
        """All streams share what is read, so that many of them cost no more than one."""
        if time.monotonic() >= self._due:
            self._rows.look()
            self._due = time.monotonic() + _LOOK_SECONDS / 2
        return self._rows.since(version)

    def _state(self) -> dict[str, Any]:
        call = self._commands.call
        return {
            "recording": self._commands.tap.recorder is not None,
            "rules": [{**rule, "hits": []} for rule in call("fault.list", {})],
            **self._commands.overview(),
        }


def _line(recorded: Recorded) -> bytes:
    return json.dumps(recorded.to_json()).encode() + b"\n"


def _event(name: str, data: Any) -> bytes:
    # JSON has no line ends in it, which would end the event.
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
