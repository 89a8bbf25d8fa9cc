"""What a transaction's decisions leave to do: a pending transition before the append, effects after it."""

from __future__ import annotations

from dataclasses import dataclass

from minibroker.coordinators.result import Effect, Pending
from minibroker.coordinators.transactions.states import TransactionState


@dataclass(slots=True, frozen=True)
class PendingTransition(Pending):
    """The append that moves an id to `state` is in flight: other requests meet CONCURRENT_TRANSACTIONS.

    fence_epoch: the epoch to fence with from now on, even if the append is refused (below transaction.version 2).
    """

    transactional_id: str
    state: TransactionState
    fence_epoch: int | None = None


@dataclass(slots=True, frozen=True)
class SendMarkers(Effect):
    """Write a marker to every partition of the prepared transaction."""

    transactional_id: str


@dataclass(slots=True, frozen=True)
class Complete(Effect):
    """Every partition has its marker: log that the transaction is over."""

    transactional_id: str
