"""Results that arrive later, and coroutines that wait for them, without an event loop.

Handlers and coordinators must run the same way under asyncio and inside a simulation, so nothing here knows a loop: a
`Deferred` calls back when it is resolved, and `spawn` drives an ``async def`` function from one `Deferred` to the next.
A coroutine that never has to wait runs to its end inside `spawn`, at the cost of a function call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")


class Deferred(Generic[T]):
    """A value or an exception that is delivered exactly once.

    done: whether it was; only to be read.
    """

    __slots__ = ("_callbacks", "_error", "_value", "done")

    _value: T
    _error: BaseException | None
    _callbacks: list[Callable[[Deferred[T]], None]] | None

    def __init__(self) -> None:
        self.done = False
        self._error = self._callbacks = None

    def resolve(self, value: T) -> None:
        """Deliver `value`; a second delivery is a bug of the caller."""
        if self.done:
            raise RuntimeError("already resolved")
        self._value = value
        self.done = True
        if self._callbacks is not None:
            self._run_callbacks()

    def fail(self, error: BaseException) -> None:
        """Deliver an exception instead of a value."""
        if self.done:
            raise RuntimeError("already resolved")
        self._error = error
        self.done = True
        self._run_callbacks()

    def take(self, other: Deferred[T]) -> None:
        """Resolve or fail with the outcome of `other`, which is done: a callback for `then`."""
        if other._error is not None:
            self.fail(other._error)
        else:
            self.resolve(other.result())

    def result(self) -> T:
        """The value; raises what was delivered with `fail`, or RuntimeError when nothing was delivered yet."""
        if self._error is not None:
            raise self._error
        if not self.done:
            raise RuntimeError("not resolved yet")
        return self._value

    def then(self, callback: Callable[[Deferred[T]], None]) -> None:
        """Call `callback(self)` once the value is there, at once when it already is."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)

    def __await__(self) -> Generator[Deferred[T], None, T]:
        if not self.done:
            yield self
        return self.result()


def resolved(value: T) -> Deferred[T]:
    """A Deferred that already holds `value`."""
    deferred: Deferred[T] = Deferred.__new__(Deferred)
    deferred.done = True
    deferred._error = deferred._callbacks = None
    deferred._value = value
    return deferred


DONE: Final[Deferred[None]] = resolved(None)


def failed(error: BaseException) -> Deferred[Any]:
    """A Deferred that already holds an exception."""
    deferred: Deferred[Any] = Deferred()
    deferred.fail(error)
    return deferred


def spawn(coroutine: Coroutine[Deferred[Any], None, T]) -> Deferred[T]:
    """Run `coroutine` up to its first unresolved Deferred; the result stands for its end."""
    outcome: Deferred[T] = Deferred()
    _advance(coroutine, outcome)
    return outcome


def started(coroutine: Coroutine[Deferred[Any], None, T]) -> T | Deferred[T]:
    """`spawn` for a coroutine that seldom waits: its value, at once, if it did not. Raises what it raises before it
    waits."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    outcome: Deferred[T] = Deferred()
    awaited.then(lambda _: _advance(coroutine, outcome))
    return outcome


def _advance(coroutine: Coroutine[Deferred[Any], None, T], outcome: Deferred[T]) -> None:
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        outcome.resolve(cast("T", stop.value))
    except Exception as error:  # delivered to the coroutine's waiters
        outcome.fail(error)
    else:
        # The awaited value is read by Deferred.__await__ itself, so the callback only wakes the coroutine.
        awaited.then(lambda _: _advance(coroutine, outcome))


def mapped(source: Deferred[T], change: Callable[[T], U]) -> Deferred[U]:
    """`change(value)` once the value is there; fails as `source` or `change` does."""
    outcome: Deferred[U] = Deferred()

    def done(_: Deferred[T]) -> None:
        try:
            value = change(source.result())
        except Exception as error:
            outcome.fail(error)
        else:  # what its callbacks raise is theirs
            outcome.resolve(value)

    source.then(done)
    return outcome


def after(source: Deferred[Any], act: Callable[[], U | Deferred[U]]) -> Deferred[U]:
    """What `act` makes once `source` is done, with a value or a failure; if that is a Deferred, its result.

    Fails with what `act` raises.
    """
    outcome: Deferred[U] = Deferred()

    def done(_: Deferred[Any]) -> None:
        try:
            made = act()
        except Exception as error:
            outcome.fail(error)
            return
        if isinstance(made, Deferred):
            made.then(outcome.take)
        else:  # what its callbacks raise is theirs
            outcome.resolve(made)

    source.then(done)
    return outcome


def when_all_done(deferreds: Iterable[Deferred[Any]]) -> Deferred[None]:
    """Resolved once every one is done, whether with a value or a failure."""
    waiting = list(deferreds)
    done: Deferred[None] = Deferred()
    unresolved = len(waiting)
    if unresolved == 0:
        done.resolve(None)

    def one_done(_: Deferred[Any]) -> None:
        nonlocal unresolved
        unresolved -= 1
        if unresolved == 0:
            done.resolve(None)

    for deferred in waiting:
        deferred.then(one_done)
    return done


def gather(deferreds: Iterable[Deferred[T]]) -> Deferred[list[T]]:
    """All values in order; the first failure fails the whole once every one is done."""
    waiting = list(deferreds)
    return mapped(when_all_done(waiting), lambda _: [deferred.result() for deferred in waiting])
