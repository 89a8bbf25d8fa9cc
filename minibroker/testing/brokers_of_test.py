"""Which brokers a test uses, for the pytest plugin: those that its fixtures lend, and those that it runs itself.

`Minibroker` says here when it has started and when it is about to stop; imports nothing of a broker.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from minibroker.control.client import Control, Fault, Faults
    from minibroker.testing.hang_report import HangWatch


class EmbeddedBroker(Protocol):
    """The part of `Minibroker` that is used here."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def records_exchanges(self) -> bool: ...

    @property
    def control(self) -> Control: ...

    @property
    def faults(self) -> Faults: ...


RUNNING: Final[list[EmbeddedBroker]] = []
"""Brokers of this process that run and belong to no fixture of the plugin, the oldest first."""
_KEPT: Final = 2000
__tracebackhide__ = True  # pytest shows the line of the test
_tests: Final[list[BrokersOfTest]] = []


class BrokersOfTest:
    """The brokers of one test, from its set-up to its last tear-down.

    watch: runs while there is one.
    """

    def __init__(self, watch: HangWatch | None = None) -> None:
        self._lent: list[EmbeddedBroker] = []
        self._watch = watch
        self._seen = {id(broker): _last_number(broker) for broker in RUNNING}
        self._stopped: list[tuple[str, list[dict[str, Any]]]] = []
        self._set_before: set[Fault] = set()

    def __enter__(self) -> BrokersOfTest:
        _tests.append(self)
        self.changed()
        return self

    def __exit__(self, *_: object) -> None:
        _tests.remove(self)
        self._lent.clear()
        self.changed()

    def lend(self, broker: EmbeddedBroker) -> None:
        """Add a broker that a fixture of the plugin gives the test."""
        self._lent.append(broker)
        self.changed()

    def waits(self) -> list[tuple[str, list[str]]]:
        """Bootstrap servers of each broker, and what it waits for."""
        lines = []
        for broker in (*self._lent, *RUNNING):
            with suppress(Exception):  # it stops now, or was killed
                lines.append((broker.bootstrap_servers, broker.control.waits()))
        return lines

    def begin_call(self) -> None:
        """The test function is about to run: rules that are set already belong to its fixtures."""
        self._set_before = {fault for broker in RUNNING for fault in broker.faults.expected}

    def verify(self) -> None:
        """Remove the rules of this test. Raises NeverFired when one of them has not acted, for the first of them."""
        never: list[AssertionError] = []
        for broker in [*self._lent, *RUNNING]:
            rules = [fault for fault in broker.faults.expected if broker in self._lent or fault not in self._set_before]
            try:
                broker.faults.verify(None if broker in self._lent else rules)
            except AssertionError as error:
                never.append(error)
        if never:
            raise never[0]

    def exchanges(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Bootstrap servers and this test's exchanges of each broker that records them."""
        exchanges = [(broker.bootstrap_servers, broker.control.exchanges(_KEPT)) for broker in self._lent]
        own = [(broker.bootstrap_servers, self._own(broker)) for broker in RUNNING if broker.records_exchanges]
        return exchanges + [(servers, kept) for servers, kept in (*self._stopped, *own) if kept]

    def changed(self) -> None:
        """Start or pause the watch: the test has brokers now, or has none any more."""
        if self._watch is None:
            return
        if self in _tests and (self._lent or RUNNING):
            self._watch.start()
        else:
            self._watch.pause()

    def stopping(self, broker: EmbeddedBroker) -> None:
        """Keep the exchanges of a broker that is about to stop."""
        self._stopped.append((broker.bootstrap_servers, self._own(broker)))

    def _own(self, broker: EmbeddedBroker) -> list[dict[str, Any]]:
        return broker.control.exchanges(_KEPT, after=self._seen.get(id(broker), 0))


def _last_number(broker: EmbeddedBroker) -> int:
    with suppress(Exception):  # a child process that was killed
        if broker.records_exchanges:
            return max((int(exchange["number"]) for exchange in broker.control.exchanges(1)), default=0)
    return 0


def started(broker: EmbeddedBroker) -> None:
    """It serves."""
    RUNNING.append(broker)
    for test in _tests:
        test.changed()


def stopping(broker: EmbeddedBroker) -> None:
    """To be called when a broker is about to stop, or has failed to start."""
    if broker in RUNNING:
        RUNNING.remove(broker)
        for test in _tests:
            with suppress(Exception):  # a child process that was killed
                if broker.records_exchanges:
                    test.stopping(broker)
            test.changed()


def pooled(broker: EmbeddedBroker) -> None:
    """To be called when a fixture of the plugin keeps the broker, to lend it to tests."""
    RUNNING.remove(broker)
    for test in _tests:
        test.changed()
