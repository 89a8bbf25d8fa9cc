"""The states of a transactional id and the legal transitions (Kafka's TransactionState, KIP-98, KIP-890).

Run as a module, it prints the state picture that docs/reference/transaction-states.md holds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from minibroker.coordinators.state_diagram import page
from minibroker.output import write_out
from minibroker_protocol.errors import ApiError, ErrorCode


class TransactionState(IntEnum):
    """Values are the TransactionStatus of the log; `label` is the name on the wire."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7
    """A name of ListTransactions. In Kafka a pending state of a fence, never logged; here a fence is one step."""

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS: Final = {state: "".join(word.title() for word in state.name.split("_")) for state in TransactionState}
BY_LABEL: Final = {label: state for state, label in _LABELS.items()}

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD

PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
COMPLETED: Final = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
EXPIRABLE: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""States in which a transactional id may be forgotten."""


class Transition(NamedTuple):
    """`to` may follow each of `sources`; `cause` says what brings it about."""

    to: TransactionState
    sources: tuple[TransactionState, ...]
    cause: str


TRANSITIONS: Final = (
    Transition(EMPTY, (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT), "InitProducerId"),
    Transition(ONGOING, (ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT), "partitions or offsets added"),
    Transition(PREPARE_COMMIT, (ONGOING,), "EndTxn commit"),
    Transition(PREPARE_ABORT, (ONGOING,), "EndTxn abort, timeout, fence"),
    Transition(PREPARE_ABORT, (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT), "EndTxn v5+ abort of nothing"),
    Transition(COMPLETE_COMMIT, (PREPARE_COMMIT,), "every marker written"),
    Transition(COMPLETE_ABORT, (PREPARE_ABORT,), "every marker written"),
    Transition(DEAD, (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT), "transactional id expired"),
)

_LEGAL: Final = frozenset((source, row.to) for row in TRANSITIONS for source in row.sources)


def is_legal(source: TransactionState, to: TransactionState) -> bool:
    return (source, to) in _LEGAL


def require_legal(transactional_id: str, source: TransactionState, to: TransactionState) -> None:
    """Raises ApiError(UNKNOWN_SERVER_ERROR), which is what Kafka's IllegalStateException becomes on the wire."""
    if (source, to) not in _LEGAL:
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"transactional id {transactional_id} cannot go from {source.label} to {to.label}",
        )


def document() -> str:
    """Contents of docs/reference/transaction-states.md."""
    ways = [("[*]", EMPTY.label, "first InitProducerId")]
    ways += [(source.label, row.to.label, row.cause) for row in TRANSITIONS for source in row.sources]
    ways.append((DEAD.label, "[*]", "tombstone written"))
    return page("States of a transactional id", "minibroker.coordinators.transactions.states", ways)


if __name__ == "__main__":
    write_out(document())
