"""What tests read without a client: records, committed offsets, transactions, requests."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from minibroker.control.command_group import Suggesting, held_loop, in_thread, public_names
from minibroker_protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from minibroker.control.client import Clock, Control, Faults, State
    from minibroker.faults.names import ApiName, TransactionStateName

__tracebackhide__ = True  # pytest shows the line of the test

Isolation = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic.

    timestamp_ms: as stored, -1 for none.
    producer_id: -1 for a producer without.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str | bytes, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    transactional: bool


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id and its last transaction.

    state: as Kafka names it: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort and so on.
    started_ms: broker clock, None when it never began one.
    partitions: those of a transaction that has not ended; while it ends, those that lack their marker.
    """

    transactional_id: str
    state: TransactionStateName
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that a client sent, and what became of it.

    client: ``HOST:PORT``.
    outcome: ``answered``, ``waiting``, ``no answer``, or why the connection was closed.
    errors: Kafka's names of the errors in the answer, with their places.
    reasons: why.
    fault: number of the rule that acted, 0 for none.
    request, response: the fields, under the names of Kafka's protocol in snake case.
    """

    api: str
    version: int
    client_id: str | None
    client: str
    broker: int
    time_ms: int
    took_ms: float
    outcome: str
    errors: tuple[str, ...]
    reasons: tuple[str, ...]
    fault: int
    request: Mapping[str, Any]
    response: Mapping[str, Any] | None


class Controlled(Suggesting):
    """A test broker, in this process or elsewhere: its three groups of commands, and its records, offsets and
    transactions for assertions. Each method also exists for coroutines, as ``…_async``.

    Those that wait raise TimeoutError, which says what there is, after `timeout` seconds of real time.
    """

    _OTHER_NAMES = {
        "messages": "records",
        "exchanges": "requests",
        "port": "bootstrap_servers",
        "close": "stop",
        "delete_topic": "reset(topics=True)",
    }

    @property
    def control(self) -> Control:
        """Faults, clock, state and exchanges. RuntimeError when the broker does not run."""
        raise NotImplementedError

    @property
    def faults(self) -> Faults:
        """Rules that make the broker answer late, wrongly, twice or not at all."""
        return self.control.faults

    @property
    def clock(self) -> Clock:
        """The broker clock, to freeze and to advance."""
        return self.control.clock

    @property
    def state(self) -> State:
        """Operations on what the broker knows: producer state, logs, epochs, markers, brokers."""
        return self.control.state

    def _meant(self) -> Mapping[str, str]:
        # Only for an error text: most tests set no rule, and do without these modules.
        from minibroker.control.client import Clock, Faults, State

        groups = {"state": State, "faults": Faults, "clock": Clock}
        places = {name: f"{group}.{name}" for group, kind in groups.items() for name in public_names(kind)}
        return places | self._OTHER_NAMES

    def records(
        self, topic: str, partition: int | None = None, *, isolation: Isolation = "read_uncommitted"
    ) -> list[Record]:
        """What a consumer with this isolation reads of a topic, or of one partition, from its start to its end.

        In the order of partitions, then of offsets. Raises ApiError(UNKNOWN_TOPIC_OR_PARTITION).
        """
        rows = self.control._ask("read.records", topic=topic, partition=partition, isolation=isolation)
        return [_record(record) for record in rows]

    def wait_for_records(
        self,
        topic: str,
        count: int = 1,
        partition: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        timeout: float = 10.0,
    ) -> list[Record]:
        """`records`, once there are at least `count` of them; the topic need not exist yet."""
        arguments = {"topic": topic, "count": count, "partition": partition, "isolation": isolation}
        return [_record(record) for record in self._waited("read.wait_for_records", timeout, arguments)]

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Committed offsets of a group by topic and partition; not those of a transaction that has not ended."""
        return _offsets(self.control._ask("read.committed", group=group))

    def wait_for_committed(
        self, group: str, topic: str, offset: int, partition: int = 0, *, timeout: float = 10.0
    ) -> dict[tuple[str, int], int]:
        """`committed`, once the group has committed `offset` or a later one of the partition; the group need not exist
        yet."""
        arguments = {"group": group, "topic": topic, "partition": partition, "offset": offset}
        return _offsets(self._waited("read.wait_for_committed", timeout, arguments))

    def transactions(self, transactional_id: str | None = None) -> list[Transaction]:
        """Transactional ids, all or those that match (``*`` and ``?``), with the state of their last transaction."""
        return [
            _transaction(entry) for entry in self.control._ask("read.transactions", transactional_id=transactional_id)
        ]

    def wait_for_transaction(
        self, transactional_id: str, state: TransactionStateName, *, timeout: float = 10.0
    ) -> Transaction:
        """The transactional id with its last transaction, once that is in `state`, such as ``"CompleteCommit"``.
        Raises FaultError for an unknown state."""
        arguments = {"transactional_id": transactional_id, "state": state}
        return _transaction(self._waited("read.wait_for_transaction", timeout, arguments))

    def hang_transaction(self, topic: str, partition: int = 0, *, transactional_id: str = "hanging") -> int:
        """`state.hang_transaction`: leave a transaction open that no coordinator will end; returns its offset."""
        return self.state.hang_transaction(topic, partition, transactional_id=transactional_id)

    def waits(self) -> list[str]:
        """What the cluster waits for, in lines for a person: unanswered requests (while exchanges are recorded), open
        transactions, rules that hold, members of groups. Empty when it waits for nothing."""
        return self.control.waits()

    def reset(self, *, topics: bool = False) -> None:
        """Begin anew: remove all rules, undo lasting faults, let the clock run (it never goes back), forget recorded
        exchanges and refusals. topics: delete every topic but the internal ones, too."""
        self.control.reset(topics=topics)

    def requests(self, api: ApiName | None = None, *, client_id: str | None = None) -> list[Exchange]:
        """Recorded exchanges with clients, of one API (``"EndTxn"``), of client ids that match; the oldest first.

        The fixtures of pytest record; elsewhere ``Minibroker(record=1000)`` does. Raises FaultError when nothing is
        recorded, and for an API that there is not.
        """
        return [_exchange(entry) for entry in self.control._ask("read.requests", api=api, client_id=client_id)]

    def _waited(self, command: str, timeout: float, arguments: Mapping[str, Any]) -> Any:
        held = held_loop(command.partition(".")[2], depth=4)
        try:
            return self.control._ask(command, **arguments, timeout_ms=round(timeout * 1000))
        except ApiError as error:
            if error.code != ErrorCode.REQUEST_TIMED_OUT:
                raise
            raise TimeoutError(error.message + held) from None

    records_async = in_thread(records)
    wait_for_records_async = in_thread(wait_for_records)
    committed_async = in_thread(committed)
    wait_for_committed_async = in_thread(wait_for_committed)
    transactions_async = in_thread(transactions)
    wait_for_transaction_async = in_thread(wait_for_transaction)
    hang_transaction_async = in_thread(hang_transaction)
    waits_async = in_thread(waits)
    reset_async = in_thread(reset)
    requests_async = in_thread(requests)


def _record(row: Mapping[str, Any]) -> Record:
    headers = tuple((_name(name), _bytes(value)) for name, value in row["headers"])
    return Record(**{**row, "key": _bytes(row["key"]), "value": _bytes(row["value"]), "headers": headers})


def _offsets(committed: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    return {(entry["topic"], entry["partition"]): entry["offset"] for entry in committed}


def _transaction(entry: Mapping[str, Any]) -> Transaction:
    return Transaction(**{**entry, "partitions": tuple(map(tuple, entry["partitions"]))})


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def _name(value: Any) -> str | bytes:
    return value if isinstance(value, str) else base64.b64decode(value["base64"])


def _exchange(row: Mapping[str, Any]) -> Exchange:
    kept = {name: row[name] for name in Exchange.__slots__}
    return Exchange(**{**kept, "errors": tuple(row["errors"]), "reasons": tuple(row["reasons"])})
