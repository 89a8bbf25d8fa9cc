"""How long a script holds a request for others that come in the meantime."""

from __future__ import annotations

import time
from collections.abc import Sequence

from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.scripts import Step


class Wait:
    """It ends once enough requests succeeded, as the step says. Those that only fail would keep the request for ever,
    and be held against the client: where one is refused or gets no answer, the wait ends `patience` seconds later all
    the same.

    earlier: the exchanges before the request was held.
    """

    def __init__(self, step: Step, earlier: Sequence[Exchange], patience: float) -> None:
        self._api = step.until
        self._wanted = step.times + (_succeeded(earlier, step.until) if step.since_held else 0)
        self._seen, self._patience = len(earlier), patience
        self._deadline: float | None = None

    def is_over(self, exchanges: Sequence[Exchange]) -> bool:
        """exchanges: all until now."""
        if self._deadline is None and any(_failed(exchange, self._api) for exchange in exchanges[self._seen :]):
            self._deadline = time.monotonic() + self._patience
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        return is_late or _succeeded(exchanges, self._api) >= self._wanted


def _succeeded(exchanges: Sequence[Exchange], api: str) -> int:
    return sum(exchange["api"] == api and _is_success(exchange) for exchange in exchanges)


def _failed(exchange: Exchange, api: str) -> bool:
    return exchange["api"] == api and not _is_success(exchange)


def _is_success(exchange: Exchange) -> bool:
    return exchange["outcome"] == "answered" and not exchange["errors"]
