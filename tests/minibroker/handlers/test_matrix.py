"""Every cell of state × request × version on the wire, at each transaction.version and under both semantics.

The expected codes are written down here from what a live Kafka 4.3.1 answered and from the texts of KIP-360 and
KIP-588, independently of the code. One test is one request in one version; its cells are each state and each kind of
producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from sampling import thinned
from seed_client import produce_request

from minibroker.coordinators.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionState,
)
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.releases.semantics import PRESETS
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

OK = ErrorCode.NONE
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
INVALID = ErrorCode.INVALID_TXN_STATE
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
RETRY = ErrorCode.NOT_ENOUGH_REPLICAS
UNLOGGABLE = ErrorCode.UNSUPPORTED_VERSION

Producer = tuple[int, int]
IN_IT, NOT_IN_IT = 0, 1
"""Partitions of topic t: a running transaction has the first."""

BROKERS = [("kafka", 0), ("kafka", 1), ("kafka", 2), ("kip", 1), ("kip", 2)]
DEFAULT = ("kafka", 2)


# -- how each state is reached -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """of_version_2: reached by EndTxn v5, which transaction.version 0 cannot log."""

    name: str
    state: TransactionState
    of_version_2: bool = False
    timed_out: bool = False

    @property
    def prepared(self) -> bool:
        return self.state in (PREPARE_COMMIT, PREPARE_ABORT)

    @property
    def committed(self) -> bool:
        return self.state is COMPLETE_COMMIT

    @property
    def aborted(self) -> bool:
        return self.state is COMPLETE_ABORT


ENDED = (PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)
STATES = [
    State("Empty", EMPTY),
    State("Ongoing", ONGOING),
    *(State(state.label, state) for state in ENDED),
    *(State(f"{state.label} v5", state, of_version_2=True) for state in ENDED),
    State("timed out", COMPLETE_ABORT, timed_out=True),
    State("timing out", PREPARE_ABORT, timed_out=True),
]
WHO = ("none", "current", "last", "higher", "other id")


class Wire:
    """One broker, and a fresh transactional id for every cell."""

    def __init__(self, semantics: str, level: int) -> None:
        self.cluster = MemoryCluster(
            {
                "unstable.api.versions.enable": "true",
                # Whenever the clock moves, each of them is looked at.
                "offsets.topic.num.partitions": "2",
                "transaction.state.log.num.partitions": "2",
            },
            semantics=PRESETS[semantics],
            topics={"t": 2},
            transaction_version=level,
        )
        self.cluster.broker.create_topics([TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC]).result()
        self.effects = self.cluster.broker.coordinators.transactions.effects
        self.used = 0

    def reach(self, state: State) -> tuple[str, Producer]:
        """(transactional id, current producer); the epoch before the current one is the last one."""
        self.used += 1
        name = f"id{self.used}"
        timeout_ms = 1 if state.timed_out else 60_000
        first = self._init(name, (-1, -1), timeout_ms)
        held = self._init(name, first, timeout_ms)
        if state.state is not EMPTY:
            assert self.add(name, held, 3, IN_IT) == OK
        if state.timed_out:
            if state.prepared:
                self.effects.hold()
            self.cluster.clock.advance(10_001)
        elif state.state in ENDED:
            if state.prepared:
                self.effects.hold()
            commit = state.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
            assert self.end(name, held, 5 if state.of_version_2 else 4, commit=commit) == OK
        entry = self.cluster.broker.coordinators.transactions.describe(name)
        assert entry.metadata.state is state.state
        return name, (held[0], entry.epoch)

    def _init(self, name: str, producer: Producer, timeout_ms: int) -> Producer:
        request = m.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        answer = self.cluster.call(request, m.InitProducerIdResponse, 4)
        assert answer.error_code == OK
        return answer.producer_id, answer.producer_epoch

    # -- requests, each to its code ----------------------------------------------------------------------------------

    def init(self, name: str, producer: Producer, version: int) -> int:
        request = m.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        return self.cluster.call(request, m.InitProducerIdResponse, version).error_code

    def add(self, name: str, producer: Producer, version: int, partition: int = NOT_IN_IT) -> int:
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[partition])
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[topic],
        )
        answer = self.cluster.call(request, m.AddPartitionsToTxnResponse, version)
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def batched(self, name: str, producer: Producer, version: int) -> int:
        return self._batched(name, producer, version, NOT_IN_IT, verify_only=False)

    def verify(self, name: str, producer: Producer, version: int) -> int:
        """The partition that is in the transaction, if there is one; any other one beside it is never in it."""
        other = self._batched(name, producer, version, NOT_IN_IT, verify_only=True)
        code = self._batched(name, producer, version, IN_IT, verify_only=True)
        assert other == (ABORTABLE if code == OK else code)
        return code

    def _batched(self, name: str, producer: Producer, version: int, partition: int, *, verify_only: bool) -> int:
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[partition])
        transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=verify_only,
            topics=[topic],
        )
        request = m.AddPartitionsToTxnRequest(transactions=[transaction])
        answer = self.cluster.call(request, m.AddPartitionsToTxnResponse, version)
        if answer.error_code:
            return answer.error_code
        return answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code

    def add_offsets(self, name: str, producer: Producer, version: int) -> int:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id="g"
        )
        return self.cluster.call(request, m.AddOffsetsToTxnResponse, version).error_code

    def commit(self, name: str, producer: Producer, version: int) -> int:
        return self.end(name, producer, version, commit=True)

    def abort(self, name: str, producer: Producer, version: int) -> int:
        return self.end(name, producer, version, commit=False)

    def end(self, name: str, producer: Producer, version: int, *, commit: bool) -> int:
        request = m.EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return self.cluster.call(request, m.EndTxnResponse, version).error_code

    def produce(self, name: str, producer: Producer, version: int) -> int:
        request = produce_request(producer, 0, 1, NOT_IN_IT, True, self.cluster.clock.now_ms())
        request.transactional_id = name
        if version >= 13:
            request.topic_data[0].topic_id = self.cluster.broker.image.topics["t"].topic_id
        answer = self.cluster.send(request, version)
        for _ in range(20):  # from version 12 on the leader tries again while the last transaction completes
            if answer.done:
                break
            self.cluster.timers.advance(20)
        return int(answer.result().responses[0].partition_responses[0].error_code)

    def commit_offset(self, name: str, producer: Producer, version: int) -> int:
        partition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        request = m.TxnOffsetCommitRequest(
            transactional_id=name,
            group_id="g",
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name="t", topic_id=self.cluster.broker.image.topics["t"].topic_id, partitions=[partition]
                )
            ],
        )
        answer = self.cluster.call(request, m.TxnOffsetCommitResponse, version)
        return answer.topics[0].partitions[0].error_code


# -- what is expected --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    semantics: str
    level: int
    state: State
    who: str
    version: int

    @property
    def kip(self) -> bool:
        return self.semantics == "kip"

    @property
    def old_epoch_of_a_timeout(self) -> bool:
        return self.state.timed_out and self.who == "last"

    def fenced(self, since: int) -> int:
        """PRODUCER_FENCED for request versions that know it."""
        return FENCED if self.version >= since else EPOCH

    def logged(self, code: int) -> int:
        """`code`, for what a client of transaction.version 2 brings about; version 0 of the record cannot carry it."""
        return UNLOGGABLE if self.level == 0 else code


def init(cell: Cell) -> int:
    if cell.state.prepared:
        return BUSY
    if cell.who == "other id":
        return cell.fenced(4)
    if cell.state.state is ONGOING:  # aborted first; kip looks at the epoch before
        if cell.kip and cell.who == "last":
            return OK
        return cell.fenced(4) if cell.kip and cell.who == "higher" else BUSY
    if cell.who == "higher":
        return cell.fenced(4)
    if cell.old_epoch_of_a_timeout and not cell.kip and cell.level < 2:
        return cell.fenced(4)
    return OK


def add(cell: Cell) -> int:
    timed_out = MAPPING if cell.version < 2 else UNKNOWN
    return _join(cell, timed_out)


def add_offsets(cell: Cell) -> int:
    return _join(cell, UNKNOWN)


def _join(cell: Cell, timed_out: int) -> int:
    if cell.kip and cell.old_epoch_of_a_timeout:
        return timed_out
    if cell.state.prepared:
        return BUSY
    if cell.who == "other id":
        return MAPPING
    return OK if cell.who == "current" else cell.fenced(2)


def batched(cell: Cell) -> int:
    code = _join(cell, UNKNOWN)
    return cell.logged(code) if code == OK else code


def verify(cell: Cell) -> int:
    if cell.who == "other id":
        return MAPPING
    if cell.kip and cell.old_epoch_of_a_timeout:
        return UNKNOWN
    if cell.who != "current":
        return FENCED
    if cell.state.prepared:
        return BUSY
    return OK if cell.state.state is ONGOING else ABORTABLE


def commit(cell: Cell) -> int:
    return _end(cell, is_commit=True)


def abort(cell: Cell) -> int:
    return _end(cell, is_commit=False)


def _end(cell: Cell, *, is_commit: bool) -> int:
    if cell.version >= 5:
        return _end_and_bump(cell, is_commit)
    if cell.who == "other id":
        return MAPPING
    if cell.kip and cell.old_epoch_of_a_timeout:
        if cell.version < 2:
            return MAPPING
        if not is_commit:
            return OK
        return MAPPING if cell.version < 4 else ABORTABLE
    if cell.who != "current":
        return cell.fenced(2)
    if cell.state.prepared:
        return BUSY
    if cell.state.state is ONGOING:
        return OK
    return OK if (cell.state.committed if is_commit else cell.state.aborted) else INVALID


def _end_and_bump(cell: Cell, is_commit: bool) -> int:
    if cell.kip and cell.old_epoch_of_a_timeout:
        return ABORTABLE if is_commit else OK
    if cell.state.prepared:
        return BUSY
    if cell.who == "other id":
        return MAPPING
    complete = cell.state.committed or cell.state.aborted
    if cell.who == "last" and complete:  # a retry
        return OK if (cell.state.committed if is_commit else cell.state.aborted) else INVALID
    if cell.who != "current":
        return FENCED
    if is_commit and cell.state.state is not ONGOING:
        return INVALID
    return cell.logged(OK)


def produce(cell: Cell) -> int:
    """To a partition that is not in the transaction."""
    if cell.version >= 12:
        if cell.kip and cell.old_epoch_of_a_timeout:
            return EPOCH
        if cell.state.prepared:
            return BUSY  # after 100 ms
        code = _outside(cell, OK)
        return cell.logged(OK) if code == OK else code
    if cell.state.prepared and cell.who == "current":
        return RETRY
    if cell.kip and cell.old_epoch_of_a_timeout and cell.version < 11:
        return MAPPING
    return _outside(cell, ABORTABLE if cell.version == 11 else INVALID)


def commit_offset(cell: Cell) -> int:
    """For a group that is not in the transaction."""
    if cell.kip and cell.old_epoch_of_a_timeout:
        return UNKNOWN if cell.version < 4 else ABORTABLE
    if cell.version >= 5:
        if cell.state.prepared:
            return BUSY
        code = _outside(cell, OK)
        return cell.logged(OK) if code == OK else code
    if cell.state.prepared and cell.who == "current":
        return BUSY
    return _outside(cell, ABORTABLE if cell.version == 4 else INVALID)


def _outside(cell: Cell, current: int) -> int:
    if cell.who == "other id":
        return MAPPING
    return current if cell.who == "current" else EPOCH


EXPECTED = {
    "init": (init, range(7)),
    "add": (add, range(4)),
    "batched": (batched, range(4, 6)),
    "verify": (verify, range(4, 6)),
    "add_offsets": (add_offsets, range(5)),
    "commit": (commit, range(6)),
    "abort": (abort, range(6)),
    "produce": (produce, range(3, 14)),
    "commit_offset": (commit_offset, range(7)),
}


# -- the cells ---------------------------------------------------------------------------------------------------------


@cache
def wire(semantics: str, level: int, request: str = "markers") -> Wire:
    """One for each kind of request: whenever the clock moves, each of its transactional ids is looked at."""
    return Wire(semantics, level)


def cells(request: str, version: int, semantics: str, level: int) -> Iterator[Cell]:
    for state in STATES:
        if state.of_version_2 and level == 0:
            continue
        for who in WHO:
            if who == "none" and request != "init":
                continue
            if who != "none" and request == "init" and version < 3:
                continue  # such a request has no producer id and epoch
            yield Cell(semantics, level, state, who, version)


def chosen() -> list[Any]:
    """A sample of the versions at the broker that is started by default, and a smaller one at each of the others. The
    first and the last version of every request are among them."""
    requests = [(name, version) for name, (_, versions) in EXPECTED.items() for version in versions]
    ends = [(name, end) for name, (_, versions) in EXPECTED.items() for end in (versions[0], versions[-1])]
    between = [request for request in requests if request not in ends]
    others = [(*broker, *one) for broker in BROKERS if broker != DEFAULT for one in requests]
    return [
        *((*DEFAULT, *one) for one in dict.fromkeys(ends)),
        *thinned([(*DEFAULT, *one) for one in between], 3),
        *thinned(others, 9),
    ]


@pytest.mark.parametrize("case", chosen(), ids=lambda case: "-".join(map(str, case)))
def test_every_cell(case: tuple[str, int, str, int]) -> None:
    semantics, level, request_name, version = case
    client = wire(semantics, level, request_name)
    wrong = []
    seen = 0
    for cell in cells(request_name, version, semantics, level):
        seen += 1
        name, (producer_id, epoch) = client.reach(cell.state)
        producer = {
            "none": (-1, -1),
            "current": (producer_id, epoch),
            "last": (producer_id, epoch - 1),
            "higher": (producer_id, epoch + 7),
            "other id": (99_999, epoch),
        }[cell.who]
        code = getattr(client, request_name)(name, producer, version)
        if cell.state.prepared:
            client.effects.release()
        expected = EXPECTED[request_name][0](cell)
        if code != expected:
            wrong.append(f"{cell.state.name}, {cell.who}: {ErrorCode(code).name}, not {ErrorCode(expected).name}")
    assert wrong == []
    states = len(STATES) if level else len([state for state in STATES if not state.of_version_2])
    assert seen == states * (1 if request_name == "init" and version < 3 else 5 if request_name == "init" else 4)


def test_every_version_of_every_request_is_here() -> None:
    wanted = {
        m.InitProducerIdRequest: ("init",),
        m.AddPartitionsToTxnRequest: ("add", "batched"),
        m.AddOffsetsToTxnRequest: ("add_offsets",),
        m.EndTxnRequest: ("commit",),
        m.TxnOffsetCommitRequest: ("commit_offset",),
    }
    for request, names in wanted.items():
        low, high = request.__versions__
        assert sorted(v for name in names for v in EXPECTED[name][1]) == list(range(low, high + 1))
    assert list(EXPECTED["abort"][1]) == list(EXPECTED["commit"][1])
    assert EXPECTED["produce"][1][-1] == m.ProduceRequest.__versions__[1]


# -- WriteTxnMarkers ---------------------------------------------------------------------------------------------------

STALE_COORDINATOR = ErrorCode.TRANSACTION_COORDINATOR_FENCED

# What the partition has of the producer (epoch 5, coordinator epoch 3) → epoch of the marker → code by the transaction
# version that version 2 of the request carries; version 1 counts as 0 (KIP-1228).
MARKERS = {
    "nothing": {4: {0: OK, 1: OK, 2: OK}, 5: {0: OK, 1: OK, 2: OK}, 6: {0: OK, 1: OK, 2: OK}},
    "ended": {4: {0: EPOCH, 1: EPOCH, 2: EPOCH}, 5: {0: OK, 1: OK, 2: OK}, 6: {0: OK, 1: OK, 2: OK}},
    "open": {4: {0: EPOCH, 1: EPOCH, 2: EPOCH}, 5: {0: OK, 1: OK, 2: EPOCH}, 6: {0: OK, 1: OK, 2: OK}},
}


@pytest.mark.parametrize("coordinator_epoch", [2, 3, 4])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", list(MARKERS))
@pytest.mark.parametrize(("semantics", "level"), [("kafka", 2), ("kip", 1)])
def test_markers(semantics: str, level: int, state: str, version: int, coordinator_epoch: int) -> None:
    client = wire(semantics, level)
    for epoch, by_version in MARKERS[state].items():
        for transaction_version, code in by_version.items():
            if version == 1 and transaction_version:
                continue  # version 1 has no such field
            client.used += 1
            producer_id = 500_000 + client.used
            if state != "nothing":
                assert _marker(client, producer_id, 5, 3, version=1) == OK
            if state == "open":
                _open(client, producer_id)
            answer = _marker(client, producer_id, epoch, coordinator_epoch, transaction_version, version)
            stale = state != "nothing" and coordinator_epoch < 3
            assert answer == (code if code != OK or not stale else STALE_COORDINATOR), (epoch, transaction_version)


def _open(client: Wire, producer_id: int) -> None:
    """A transaction at epoch 5, as a leader that asks nobody would have let it begin."""
    from minibroker_storage.origin import Origin

    batch = produce_request((producer_id, 5), 0, 1, NOT_IN_IT, True, client.cluster.clock.now_ms())
    records = batch.topic_data[0].partition_data[0].records
    partition = client.cluster.broker.partition("t", NOT_IN_IT)
    guard = partition.log.producers.start_verification(producer_id, 5, 0, False, client.cluster.clock.now_ms())
    partition.append(memoryview(bytearray(records)), origin=Origin.CLIENT, guard=guard, api_version=11)  # type: ignore[arg-type]


def _marker(
    client: Wire,
    producer_id: int,
    epoch: int,
    coordinator_epoch: int,
    transaction_version: int = 0,
    version: int = 2,
) -> int:
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[NOT_IN_IT])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    answer = client.cluster.call(m.WriteTxnMarkersRequest(markers=[marker]), m.WriteTxnMarkersResponse, version)
    return answer.markers[0].topics[0].partitions[0].error_code
