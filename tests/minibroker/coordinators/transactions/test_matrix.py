"""Error per state × request × version, as recorded from a live Kafka 4.3.1; one test per row of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from transaction_coordinator import ID, CoordinatorDouble, refusal

from minibroker.coordinators.transactions.refusals import wire_code
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import TransactionState
from minibroker.releases.semantics import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, KAFKA
from minibroker_protocol.errors import ApiError, ErrorCode

OK = ErrorCode.NONE
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
INVALID = ErrorCode.INVALID_TXN_STATE
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE

OTHER_PRODUCER = 99_999

# -- how each state is reached -----------------------------------------------------------------------------------------


@dataclass
class Case:
    """A coordinator in some state. producer: the current one; last: the one with the last epoch, None without one."""

    coordinator: CoordinatorDouble
    producer: tuple[int, int]
    last: tuple[int, int] | None


def _started(version: int, *, hold_markers: bool = False) -> tuple[CoordinatorDouble, tuple[int, int]]:
    """An id at epoch 1 with last epoch 0, so that every kind of epoch can be asked for."""
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=version), hold_markers=hold_markers)
    first = coordinator.init()
    return coordinator, coordinator.init(first)


def _empty(version: int) -> Case:
    coordinator, producer = _started(version)
    return Case(coordinator, producer, (producer[0], 0))


def _ongoing(version: int) -> Case:
    coordinator, producer = _started(version)
    coordinator.add(producer)
    return Case(coordinator, producer, (producer[0], 0))


def _ended(version: int, *, commit: bool, hold: bool, end_version: int) -> Case:
    coordinator, producer = _started(version, hold_markers=hold)
    coordinator.add(producer)
    coordinator.end(producer, commit=commit, version=end_version)
    current = (producer[0], coordinator.entry.epoch)
    return Case(coordinator, current, (producer[0], current[1] - 1))


STATES: dict[str, tuple[TransactionState, Callable[[int], Case]]] = {
    "Empty": (TransactionState.EMPTY, _empty),
    "Ongoing": (TransactionState.ONGOING, _ongoing),
    "PrepareCommit": (
        TransactionState.PREPARE_COMMIT,
        lambda v: _ended(v, commit=True, hold=True, end_version=0),
    ),
    "PrepareAbort": (
        TransactionState.PREPARE_ABORT,
        lambda v: _ended(v, commit=False, hold=True, end_version=0),
    ),
    "PrepareCommit-v5": (
        TransactionState.PREPARE_COMMIT,
        lambda v: _ended(v, commit=True, hold=True, end_version=2),
    ),
    "PrepareAbort-v5": (
        TransactionState.PREPARE_ABORT,
        lambda v: _ended(v, commit=False, hold=True, end_version=2),
    ),
    "CompleteCommit": (
        TransactionState.COMPLETE_COMMIT,
        lambda v: _ended(v, commit=True, hold=False, end_version=0),
    ),
    "CompleteAbort": (
        TransactionState.COMPLETE_ABORT,
        lambda v: _ended(v, commit=False, hold=False, end_version=0),
    ),
    "CompleteCommit-v5": (
        TransactionState.COMPLETE_COMMIT,
        lambda v: _ended(v, commit=True, hold=False, end_version=2),
    ),
    "CompleteAbort-v5": (
        TransactionState.COMPLETE_ABORT,
        lambda v: _ended(v, commit=False, hold=False, end_version=2),
    ),
}

# -- who asks ----------------------------------------------------------------------------------------------------------

WHO: dict[str, Callable[[Case], tuple[int, int] | None]] = {
    "none": lambda case: None,
    "current": lambda case: case.producer,
    "last": lambda case: case.last,
    "higher": lambda case: (case.producer[0], case.producer[1] + 7),
    "other-id": lambda case: (OTHER_PRODUCER, case.producer[1]),
}

# -- what is asked -----------------------------------------------------------------------------------------------------

IN_TRANSACTION = ("t", 0)
NOT_IN_TRANSACTION = ("u", 0)

REQUESTS: dict[str, Callable[[CoordinatorDouble, tuple[int, int]], object]] = {
    "add": lambda c, p: c.add(p, [IN_TRANSACTION]),
    "add-v4": lambda c, p: c.add(p, [NOT_IN_TRANSACTION], version=2),
    "commit": lambda c, p: c.end(p, commit=True),
    "abort": lambda c, p: c.end(p, commit=False),
    "commit-v5": lambda c, p: c.end(p, commit=True, version=2),
    "abort-v5": lambda c, p: c.end(p, commit=False, version=2),
}

PREPARE = ("PrepareCommit", "PrepareAbort", "PrepareCommit-v5", "PrepareAbort-v5")
COMMITTED = ("CompleteCommit", "CompleteCommit-v5")
ABORTED = ("CompleteAbort", "CompleteAbort-v5")
COMPLETE = COMMITTED + ABORTED

# request → states → {who: code}. Every state × who of a request is listed exactly once (see test_the_table_is_whole).
Row = tuple[tuple[str, ...], dict[str, ErrorCode]]

_JOIN: list[Row] = [
    (("Empty", "Ongoing", *COMPLETE), {"current": OK, "last": FENCED, "higher": FENCED, "other-id": MAPPING}),
    (PREPARE, {"current": BUSY, "last": BUSY, "higher": BUSY, "other-id": BUSY}),
]

_STALE = {"last": FENCED, "higher": FENCED, "other-id": MAPPING}
# An epoch one behind is the retry of EndTxn v5 in Complete*, whatever ended the transaction.
_LATER = {"higher": FENCED, "other-id": MAPPING}

TABLE: dict[str, list[Row]] = {
    "add": _JOIN,
    "add-v4": _JOIN,
    "commit": [
        (("Empty", *ABORTED), {"current": INVALID, **_STALE}),
        (("Ongoing", *COMMITTED), {"current": OK, **_STALE}),
        (PREPARE, {"current": BUSY, **_STALE}),
    ],
    "abort": [
        (("Empty", *COMMITTED), {"current": INVALID, **_STALE}),
        (("Ongoing", *ABORTED), {"current": OK, **_STALE}),
        (PREPARE, {"current": BUSY, **_STALE}),
    ],
    "commit-v5": [
        (("Empty",), {"current": INVALID, **_STALE}),
        (("Ongoing",), {"current": OK, **_STALE}),
        (PREPARE, {"current": BUSY, "last": BUSY, "higher": BUSY, "other-id": BUSY}),
        (COMMITTED, {"current": INVALID, "last": OK, **_LATER}),
        (ABORTED, {"current": INVALID, "last": INVALID, **_LATER}),
    ],
    "abort-v5": [
        (("Empty", "Ongoing"), {"current": OK, **_STALE}),
        (PREPARE, {"current": BUSY, "last": BUSY, "higher": BUSY, "other-id": BUSY}),
        (COMMITTED, {"current": OK, "last": INVALID, **_LATER}),
        (ABORTED, {"current": OK, "last": OK, **_LATER}),
    ],
}


OF_VERSION_2 = ("add-v4", "commit-v5", "abort-v5")


def _reachable(state: str, version: int) -> bool:
    """EndTxn v5 ends nothing with transaction.version 0."""
    return version > 0 or not state.endswith("-v5")


def _cells(request: str, state: str) -> Iterator[tuple[str, int, ErrorCode]]:
    for who, code in next(answers for states, answers in TABLE[request] if state in states).items():
        for version in (0, 1, 2):
            if not _reachable(state, version):
                continue
            # What such a client brings about cannot be logged: the differential test saw Kafka refuse it.
            unloggable = version == 0 and request in OF_VERSION_2 and who == "current" and code is OK
            yield who, version, ErrorCode.UNSUPPORTED_VERSION if unloggable else code


@pytest.mark.parametrize("request_name", TABLE)
@pytest.mark.parametrize("state", STATES)
def test_row(request_name: str, state: str) -> None:
    expected_state, reach = STATES[state]
    cells = list(_cells(request_name, state))
    answers = []
    for who, version, _ in cells:
        case = reach(version)
        coordinator = case.coordinator
        assert coordinator.metadata.state is expected_state
        before = (coordinator.metadata, len(coordinator.log))
        producer = WHO[who](case)
        assert producer is not None
        code = refusal(lambda: REQUESTS[request_name](coordinator, producer))  # noqa: B023
        answers.append((who, version, code))
        if code is not OK:
            assert (coordinator.metadata, len(coordinator.log)) == before, f"{who}: a refusal changed something"
    assert answers == cells


def test_the_table_is_whole() -> None:
    for request, rows in TABLE.items():
        seen = [(state, who) for states, answers in rows for state in states for who in answers]
        assert len(seen) == len(set(seen)), f"{request} lists a cell twice"
        assert set(seen) == {(state, who) for state in STATES for who in WHO if who != "none"}, request


# -- verify only -------------------------------------------------------------------------------------------------------

VERIFY: list[tuple[tuple[str, ...], str, ErrorCode, ErrorCode]] = [
    # states, who, partition of the transaction, any other partition
    (("Empty", *COMPLETE), "current", ABORTABLE, ABORTABLE),
    (("Ongoing",), "current", OK, ABORTABLE),
    (PREPARE, "current", BUSY, BUSY),
    (tuple(STATES), "last", FENCED, FENCED),
    (tuple(STATES), "higher", FENCED, FENCED),
    (tuple(STATES), "other-id", MAPPING, MAPPING),
]


@pytest.mark.parametrize(
    ("state", "who", "inside", "outside"),
    [
        pytest.param(state, who, inside, outside, id=f"{state}-{who}")
        for states, who, inside, outside in VERIFY
        for state in states
    ],
)
def test_verify_only(state: str, who: str, inside: ErrorCode, outside: ErrorCode) -> None:
    case = STATES[state][1](2)
    producer = WHO[who](case)
    assert producer is not None
    try:
        codes = case.coordinator.verify(producer, [IN_TRANSACTION, NOT_IN_TRANSACTION])
    except ApiError as error:
        codes = dict.fromkeys([IN_TRANSACTION, NOT_IN_TRANSACTION], error.code)
    assert codes == {IN_TRANSACTION: inside, NOT_IN_TRANSACTION: outside}


# -- InitProducerId ----------------------------------------------------------------------------------------------------

BUMP, SAME, FENCE, ABORT_FIRST, WAIT = "epoch + 1", "same epoch", "refused", "aborted first", "wait"

INIT: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("Empty",), {"none": BUMP, "current": BUMP, "last": SAME, "higher": FENCE, "other-id": FENCE}),
    (
        ("Ongoing",),
        {"none": ABORT_FIRST, "current": ABORT_FIRST, "last": ABORT_FIRST, "higher": ABORT_FIRST, "other-id": FENCE},
    ),
    (PREPARE, {"none": WAIT, "current": WAIT, "last": WAIT, "higher": WAIT, "other-id": WAIT}),
    (
        ("CompleteCommit-v5", "CompleteAbort-v5", "CompleteCommit", "CompleteAbort"),
        {"none": BUMP, "current": BUMP, "last": SAME, "higher": FENCE, "other-id": FENCE},
    ),
]


@pytest.mark.parametrize(
    ("state", "who", "wanted", "version"),
    [
        pytest.param(state, who, wanted, version, id=f"{state}-{who}-tv{version}")
        for states, answers in INIT
        for state in states
        for who, wanted in answers.items()
        for version in (0, 1, 2)
        if _reachable(state, version)
    ],
)
def test_init_producer_id(state: str, who: str, wanted: str, version: int) -> None:
    case = STATES[state][1](version)
    coordinator = case.coordinator
    producer_id, epoch = case.producer
    before = coordinator.metadata
    if wanted in (BUMP, SAME):
        answer = coordinator.init(WHO[who](case))
        assert answer == (producer_id, epoch + 1 if wanted is BUMP else epoch)
        assert coordinator.metadata.state is TransactionState.EMPTY
        assert coordinator.metadata.last_producer_epoch == {"none": -1, "current": epoch, "last": epoch - 1}[who]
        return
    code = refusal(lambda: coordinator.init(WHO[who](case)))
    assert code is (FENCED if wanted is FENCE else BUSY)
    if wanted is ABORT_FIRST:
        assert coordinator.metadata.state is TransactionState.COMPLETE_ABORT
        assert coordinator.metadata.producer == (producer_id, epoch + 1)
        assert coordinator.metadata.last_producer_epoch == (epoch if version == 2 else -1)
    else:
        assert coordinator.metadata == before


def test_init_table_is_whole() -> None:
    assert {(s, w) for states, answers in INIT for s in states for w in answers} == {
        (state, who) for state in STATES for who in WHO
    }


def test_unknown_id() -> None:
    coordinator = CoordinatorDouble()
    assert refusal(lambda: coordinator.add((1, 0))) is MAPPING
    assert refusal(lambda: coordinator.verify((1, 0))) is MAPPING
    assert refusal(lambda: coordinator.end((1, 0), commit=True)) is MAPPING
    assert refusal(lambda: coordinator.end((1, 0), commit=True, version=2)) is MAPPING
    assert coordinator.init((1, 5)) == (1000, 0)


# -- on the wire -------------------------------------------------------------------------------------------------------

FENCED_ON_THE_WIRE = [
    (INIT_PRODUCER_ID, range(4), range(4, 7)),
    (ADD_PARTITIONS_TO_TXN, range(2), range(2, 6)),
    (ADD_OFFSETS_TO_TXN, range(2), range(2, 5)),
    (END_TXN, range(2), range(2, 6)),
]


@pytest.mark.parametrize(
    ("api_key", "version", "code"),
    [(key, v, EPOCH) for key, old, _ in FENCED_ON_THE_WIRE for v in old]
    + [(key, v, FENCED) for key, _, new in FENCED_ON_THE_WIRE for v in new],
)
def test_fenced_by_version(api_key: int, version: int, code: ErrorCode) -> None:
    case = _empty(2)
    with pytest.raises(ApiError) as caught:
        case.coordinator.add((case.producer[0], 0))
    assert wire_code(caught.value, KAFKA, api_key, version) == code


def test_every_refusal_names_what_was_expected_and_what_came() -> None:
    case = _empty(2)
    with pytest.raises(ApiError) as caught:
        case.coordinator.add((case.producer[0], 0))
    text = str(caught.value)
    assert ID in text
    assert f"producer id {case.producer[0]} epoch 0" in text
    assert f"epoch {case.producer[1]} (last epoch 0)" in text
