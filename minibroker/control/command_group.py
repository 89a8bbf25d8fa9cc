"""The base of the command groups."""

from __future__ import annotations

import asyncio
import functools
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec, Protocol, TypeVar

from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import counted, near, reason
from minibroker_protocol.errors import ApiError

__tracebackhide__ = True  # pytest shows the line of the test


P = ParamSpec("P")
R = TypeVar("R")


class Caller(Protocol):
    """Runs a command on the broker and returns its result. Raises FaultError for an invalid command."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any: ...


_COROUTINE: Final = CO_COROUTINE | CO_ASYNC_GENERATOR
_OF_A_LOOP: Final = ("asyncio.events", "asyncio.runners")  # uvloop has no frame of its own
_OF_THE_COMMAND: Final = (FaultError, ApiError)


class Suggesting:
    """Says which name is meant where an attribute is mistyped."""

    _OTHER_NAMES: ClassVar[Mapping[str, str]] = {}
    """What users call a thing that has another name, or another place, here."""

    # A type checker would take any name for an attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            own = name.startswith("_") or hasattr(type(self), name)
            close = "" if own else near(name, public_names(self), self._meant())
            # Without `name` and `obj` Python has no suggestion of its own to add.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{close}")

    def _meant(self) -> Mapping[str, str]:
        return self._OTHER_NAMES


def public_names(thing: object) -> list[str]:
    """The attributes of an object that users may use."""
    return [name for name in dir(thing) if not name.startswith("_")]


class CommandGroup(Suggesting):
    """Commands of one caller. Raises FaultError for invalid arguments, ApiError for what the cluster refuses; both
    without the broker's traceback."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def _state(self) -> str:
        """What `repr` says of the broker."""
        known = self._ask("cluster.describe")
        stopped = len(known["all_brokers"]) - len(known["brokers"])
        running = f"{counted(len(known['brokers']), 'broker')} running" + (f", {stopped} stopped" if stopped else "")
        return f"{running}, {counted(len(known['topics']), 'topic')}"

    def __repr__(self) -> str:
        # An error message or a debugger asks for it, perhaps of a broker that has stopped.
        try:
            return f"<{type(self).__name__}: {self._state()}>"
        except Exception as error:
            return f"<{type(self).__name__}: not known, {reason(error)}>"

    def _ask(self, name: str, /, **arguments: Any) -> Any:
        try:
            return self._caller.call(name, arguments)
        except _OF_THE_COMMAND as error:
            raise error.with_traceback(None) from None


def held_loop(method: str, *, depth: int) -> str:
    """Warn that a wait blocks the event loop that runs in this thread, and return what a timeout adds to its text;
    empty where no loop runs. depth: frames from here to the caller's line."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    if not _called_by_a_loop():
        return ""
    text = f"{method} blocks the event loop of this thread, and every coroutine in it: use `await {method}_async(…)`"
    warnings.warn(text, RuntimeWarning, stacklevel=depth)
    return f"; {text}"


def _called_by_a_loop() -> bool:
    """Whether the caller is a coroutine or a callback of the running loop: a greenlet that has interrupted the loop, as
    Playwright's sync API does, runs in its thread and not in it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_flags & _COROUTINE or frame.f_globals.get("__name__") in _OF_A_LOOP:
            return True
        frame = frame.f_back
    return False


def in_thread(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same method for coroutines; it does not block the event loop."""

    @functools.wraps(method)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, *args, **kwargs)

    twin.__doc__ = f"`{method.__name__}` without holding the event loop up."
    return twin
