"""Transactions that no coordinator will end: what was decided about them, and markers that carry the decision out.

A coordinator drops the marker of a partition without a leader and calls the transaction complete (Kafka:
KRaftMetadataCache.getPartitionLeaderEndpoint). The decision is in `__transaction_state`; a marker with its epochs is
the one that was dropped. A batch that came after its transaction's marker hangs as well, and nothing was decided about
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker.client.topics import EARLIEST
from minibroker.client.transactions import NO_OFFSET, Described, ProducerState, TransactionsClient
from minibroker.coordinators.hashing import partition_for
from minibroker.rules.decisions import COMPLETE, Decision, read_coordinators
from minibroker.rules.moments import CLOCKS_MS
from minibroker.rules.rows import COMMIT, TRANSACTION_STATE, Log, TxnState
from minibroker.rules.scan import coordinator_rows
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import BatchHeader

HANGING_AFTER_MS: Final = 15 * 60_000 + 5 * 60_000
"""transaction.max.timeout.ms, and five minutes in which a coordinator can end it (Kafka's TransactionsCommand)."""
UNDECIDED: Final = "none"
UNKNOWN: Final = "unknown"


class OpenTransaction(NamedTuple):
    """A transaction open on a partition, as its leader sees it, and what its coordinator says.

    `transactional_id` and `state` are empty where no coordinator has the producer id.

    outcome: COMMIT or ABORT, both (COMMIT,ABORT) where several transactions lost their markers here, UNDECIDED where
        nothing was decided about these records, UNKNOWN where no log tells.
    decision: the newest that has no marker here.
    """

    topic: str
    partition: int
    producer: ProducerState
    transactional_id: str = ""
    state: str = ""
    outcome: str = UNKNOWN
    decision: Decision | None = None

    @property
    def start_offset(self) -> int:
        return int(self.producer.current_txn_start_offset)

    @property
    def may_be_committed(self) -> bool:
        """Whether an abort may discard what the coordinator committed."""
        return COMMIT in self.outcome or (self.outcome == UNKNOWN and self.state == "CompleteCommit")


def find_hanging(
    client: TransactionsClient, places: Iterable[tuple[str, int]], *, older_than_ms: int = HANGING_AFTER_MS, now_ms: int
) -> list[OpenTransaction]:
    """Transactions open on one of these partitions that their coordinator has ended, and those of producers that no
    coordinator knows if their last record is `older_than_ms` by the producer's clock.

    Leaders are asked before the coordinator and after it: what is open at both times, and complete for the coordinator
    in between, gets no marker any more.
    """
    suspects = [
        OpenTransaction(name, index, producer)
        for name, index in places
        for producer in client.producers(name, index)
        if producer.current_txn_start_offset != NO_OFFSET
    ]
    states = _coordinators(client, suspects)
    ended = []
    for suspect in suspects:
        state = states.get(suspect.producer.producer_id)
        if state is None:
            if now_ms - suspect.producer.last_timestamp >= older_than_ms:
                ended.append(suspect)
        elif not _will_end(state, suspect):
            ended.append(suspect._replace(transactional_id=state.transactional_id, state=state.transaction_state))
    return [decided(client, suspect) for suspect in ended if _is_open(client, suspect)]


def open_transaction(client: TransactionsClient, topic: str, partition: int, start_offset: int) -> OpenTransaction:
    """The transaction that is open since `start_offset`, with its outcome. Raises ValueError when none is."""
    for producer in client.producers(topic, partition):
        if producer.current_txn_start_offset == start_offset != NO_OFFSET:
            suspect = OpenTransaction(topic, partition, producer)
            state = _coordinators(client, [suspect]).get(producer.producer_id)
            if state is not None:
                suspect = suspect._replace(transactional_id=state.transactional_id, state=state.transaction_state)
            return decided(client, suspect)
    raise ValueError(f"no transaction is open on {topic}-{partition} since offset {start_offset}")


def end(client: TransactionsClient, hanging: OpenTransaction, *, commit: bool) -> None:
    """Write the marker: with the epochs of the coordinator's decision, or those of the producer where there is none."""
    producer, decision = hanging.producer, hanging.decision
    epoch, coordinator_epoch = producer.producer_epoch, max(producer.coordinator_epoch, 0)
    if decision is not None:
        epoch = max(epoch, decision.producer_epoch)
        coordinator_epoch = max(coordinator_epoch, decision.leader_epoch)
    place = hanging.topic, hanging.partition, producer.producer_id
    client.write_marker(*place, epoch, coordinator_epoch, commit=commit)


def _coordinators(client: TransactionsClient, suspects: Iterable[OpenTransaction]) -> dict[int, Described]:
    """The present state of each producer id that a coordinator has."""
    producer_ids = sorted({suspect.producer.producer_id for suspect in suspects})
    if not producer_ids:
        return {}
    states = {}
    for _, listed in client.list_transactions(producer_ids=producer_ids):
        try:
            _, state = client.describe(listed.transactional_id)
        except ApiError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue  # it has expired since
        states[listed.producer_id] = state
    return states


def _will_end(state: Described, suspect: OpenTransaction) -> bool:
    """Whether the coordinator writes a marker for it, now or after the timeout."""
    if state.transaction_state.startswith("Prepare"):
        return True
    own = (state.producer_id, state.producer_epoch) == (suspect.producer.producer_id, suspect.producer.producer_epoch)
    places = {(topic.topic, index) for topic in state.topics for index in topic.partitions}
    return bool(state.transaction_state == "Ongoing" and own and (suspect.topic, suspect.partition) in places)


def _is_open(client: TransactionsClient, suspect: OpenTransaction) -> bool:
    return any(
        (producer.producer_id, producer.current_txn_start_offset)
        == (suspect.producer.producer_id, suspect.start_offset)
        for producer in client.producers(suspect.topic, suspect.partition)
    )


def decided(client: TransactionsClient, suspect: OpenTransaction) -> OpenTransaction:
    """With what its coordinator decided, by the records of `__transaction_state`."""
    if not suspect.transactional_id:
        return suspect
    producer_id, epoch = suspect.producer.producer_id, suspect.producer.producer_epoch
    try:
        states = _history(client, suspect.transactional_id)
    except ApiError:  # no right to read it
        return suspect
    decisions = [
        decision
        for decision in read_coordinators(states, whole=False).decisions
        if decision.producer_id == producer_id and decision.producer_epoch <= epoch + 1
    ]
    here = [decision for decision in decisions if (suspect.topic, suspect.partition) in decision.partitions]
    missing = _without_marker(client, suspect, here)
    if missing is None:
        return suspect
    if missing:
        outcomes = sorted({decision.outcome for decision in missing}, reverse=True)
        return suspect._replace(outcome=",".join(outcomes), decision=missing[-1])
    last = states[-1] if states else None
    if last is None or decisions:
        return suspect._replace(outcome=UNDECIDED if decisions else UNKNOWN)
    # Compaction left only the last record. With an epoch above that of the records it can be about no others.
    if last.state in COMPLETE and (last.producer_id, last.producer_epoch) == (producer_id, epoch + 1):
        decision = Decision(
            *(last.transactional_id, producer_id, last.producer_epoch, COMPLETE[last.state], (), True),
            *(last.leader_epoch, last.start_timestamp, last.update_timestamp, last.update_timestamp, True, NO_OFFSET),
            *(epoch, last.timestamp),
        )
        return suspect._replace(outcome=decision.outcome, decision=decision)
    return suspect


def _history(client: TransactionsClient, transactional_id: str) -> list[TxnState]:
    """The records of an id that compaction left, in the order they were written."""
    partition = partition_for(transactional_id, len(client.leaders([TRANSACTION_STATE])))
    log, start = Log("", TRANSACTION_STATE, partition), client.offset(TRANSACTION_STATE, partition, EARLIEST)
    return [
        row
        for header, data in client.batches(TRANSACTION_STATE, partition, start)
        if not header.is_control
        for row in coordinator_rows(log, header, data)
        if isinstance(row, TxnState) and row.transactional_id == transactional_id
    ]


def _without_marker(
    client: TransactionsClient, suspect: OpenTransaction, decisions: list[Decision]
) -> list[Decision] | None:
    """The last decisions, whose markers the partition does not have; None when they may have been deleted.

    No marker came since the transaction began. Those before it are looked for from the time of each decision on, from
    the newest to the first that has one: no record of that time is below the offset that the leader names for it.
    """
    topic, partition, stop = suspect.topic, suspect.partition, suspect.start_offset
    log_start = client.offset(topic, partition, EARLIEST)
    missing: list[Decision] = []
    last: BatchHeader | None = None
    for decision in reversed(decisions):
        start = client.offset(topic, partition, decision.timestamp - CLOCKS_MS)
        if 0 <= start < stop:
            entries = [
                header
                for header, _ in client.batches(topic, partition, start, stop)
                if header.is_control and header.producer_id == suspect.producer.producer_id
            ]
            last, stop = last or (entries[-1] if entries else None), start
        if last is not None and (last.producer_epoch, last.max_timestamp) >= (
            decision.producer_epoch,
            decision.timestamp,
        ):
            break
        if last is None and 0 < log_start == stop:
            return None
        missing.append(decision)
    return missing[::-1]
