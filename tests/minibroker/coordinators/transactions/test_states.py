"""The table of legal transitions, and the picture drawn from it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from minibroker.coordinators.transactions import states
from minibroker.coordinators.transactions.states import TransactionState
from minibroker_protocol.errors import ApiError, ErrorCode

DOCS = Path(__file__).parents[4] / "docs" / "reference"

ALLOWED = {
    "Empty": "Empty CompleteCommit CompleteAbort",
    "Ongoing": "Ongoing Empty CompleteCommit CompleteAbort",
    "PrepareCommit": "Ongoing",
    "PrepareAbort": "Ongoing Empty CompleteCommit CompleteAbort",
    "CompleteCommit": "PrepareCommit",
    "CompleteAbort": "PrepareAbort",
    "Dead": "Empty CompleteAbort CompleteCommit",
    "PrepareEpochFence": "",
}
"""State → states it may be entered from, as Kafka's TransactionState has it. A fence, which passes a state in Kafka, is
one step here."""


@pytest.mark.parametrize(("source", "to"), list(product(TransactionState, TransactionState)))
def test_transition(source: TransactionState, to: TransactionState) -> None:
    legal = source.label in ALLOWED[to.label].split()
    assert states.is_legal(source, to) is legal
    if legal:
        states.require_legal("x", source, to)
    else:
        with pytest.raises(ApiError, match=f"x cannot go from {source.label} to {to.label}") as caught:
            states.require_legal("x", source, to)
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_names_and_numbers_are_kafkas() -> None:
    assert [(state.value, state.label) for state in TransactionState] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]
    assert states.BY_LABEL["CompleteAbort"] is TransactionState.COMPLETE_ABORT


def test_the_picture_in_docs_is_the_table() -> None:
    assert (DOCS / "transaction-states.md").read_text(encoding="utf-8") == states.document()
    assert states.document().count(" --> ") == 1 + sum(len(row.sources) for row in states.TRANSITIONS) + 1
