"""What an operator asks about transactions, over a blocking connection: list, describe, abort, find hanging ones.

DescribeTransactions, ListTransactions, DescribeProducers and WriteTxnMarkers (KIP-664) work with any Kafka broker;
DescribeTransactionState (KIP-360) only with this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeVar

from minibroker.client.connection import Address, BrokerFailed, Connection, parse_address
from minibroker.client.security import PLAINTEXT, Security
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.registry import registry

R = TypeVar("R", bound=Response)

CLIENT_ID: Final = "minibroker-transactions"
DEFAULT_TIMEOUT: Final = 30.0
NO_OFFSET: Final = -1
TRANSACTION_KEY: Final = 1
HANGING_AFTER_MS: Final = 15 * 60_000 + 5 * 60_000
"""transaction.max.timeout.ms, and five minutes in which a coordinator can end it (Kafka's TransactionsCommand)."""

DescribedState = m.DescribeTransactionStateResponse.TransactionState
Described = m.DescribeTransactionsResponse.TransactionState
Listed = m.ListTransactionsResponse.TransactionState
Producer = m.DescribeProducersResponse.ProducerState


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction open on a partition, as its leader sees it."""

    topic: str
    partition: int
    producer: Producer


class TransactionsClient:
    """Connects to `bootstrap` (HOST:PORT[,HOST:PORT…]) when first asked, and to whichever broker each question is for.

    Raises BrokerFailed when no broker answers, ApiError with the broker's code when one refuses.
    """

    def __init__(self, bootstrap: str, *, timeout: float = DEFAULT_TIMEOUT, security: Security = PLAINTEXT) -> None:
        self._security = security
        self._bootstrap = [parse_address(text.strip()) for text in bootstrap.split(",")]
        self._timeout = timeout
        self._connections: dict[Address, Connection] = {}
        self._correlation_id = 0

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> TransactionsClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- questions ---------------------------------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[tuple[int, Listed]]:
        """(node id of the coordinator, transaction) of all coordinators."""
        version = 2 if pattern is not None else 1 if longer_than_ms >= 0 else 0
        request = m.ListTransactionsRequest(
            state_filters=[*states],
            producer_id_filters=[*producer_ids],
            duration_filter=longer_than_ms if version >= 1 else -1,
            transactional_id_pattern=pattern,
        )
        found = []
        for node_id, address in self._brokers().items():
            answer = self._call(address, request, m.ListTransactionsResponse, version)
            _require(answer.error_code, f"broker {node_id} does not list transactions")
            if answer.unknown_state_filters:
                raise ValueError(f"no transaction state is called {', '.join(answer.unknown_state_filters)}")
            found += [(node_id, listed) for listed in answer.transaction_states]
        return found

    def describe(self, transactional_id: str) -> tuple[int, Described]:
        """(node id of the coordinator, state) of one id."""
        node_id, address = self._coordinator(transactional_id)
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = self._call(address, request, m.DescribeTransactionsResponse, 0).transaction_states
        _require(state.error_code, f"transactional id {transactional_id}")
        return node_id, state

    def describe_state(self, transactional_ids: Iterable[str]) -> dict[str, DescribedState]:
        """DescribeTransactionState (KIP-360), one request a coordinator. Errors are in each answer."""
        by_coordinator: dict[Address, list[str]] = {}
        for transactional_id in transactional_ids:
            by_coordinator.setdefault(self._coordinator(transactional_id)[1], []).append(transactional_id)
        states: dict[str, DescribedState] = {}
        for address, ids in by_coordinator.items():
            request = m.DescribeTransactionStateRequest(transactional_ids=ids)
            answer = self._call(address, request, m.DescribeTransactionStateResponse, 0)
            states.update(zip(ids, answer.transaction_states, strict=True))
        return states

    def producers(self, topic: str, partition: int) -> list[Producer]:
        """What the leader of a partition knows of its producers."""
        request = m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])]
        )
        answer = self._call(self._leader(topic, partition), request, m.DescribeProducersResponse, 0)
        one = answer.topics[0].partitions[0]
        _require(one.error_code, f"{topic}-{partition}", one.error_message)
        return one.active_producers

    def fence(self, transactional_id: str) -> tuple[int, int]:
        """Abort what runs under an id by taking it over (Admin.fenceProducers); the new producer id and epoch."""
        request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1)
        for _ in range(100):
            _, address = self._coordinator(transactional_id)
            answer = self._call(address, request, m.InitProducerIdResponse, 4)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            _pause()
        _require(answer.error_code, f"transactional id {transactional_id}")
        return answer.producer_id, answer.producer_epoch

    def abort(self, topic: str, partition: int, start_offset: int) -> Producer:
        """Write an abort marker for the transaction that is open since `start_offset`, which its coordinator has lost
        (Admin.abortTransaction). Raises ValueError when none is."""
        found = [p for p in self.producers(topic, partition) if p.current_txn_start_offset == start_offset]
        if not found:
            raise ValueError(f"no transaction is open on {topic}-{partition} since offset {start_offset}")
        producer = found[0]
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )
        request = m.WriteTxnMarkersRequest(markers=[marker])
        answer = self._call(self._leader(topic, partition), request, m.WriteTxnMarkersResponse, 1)
        code = answer.markers[0].topics[0].partitions[0].error_code
        _require(code, f"the marker for {topic}-{partition}")
        return producer

    def find_hanging(
        self, *, topic: str | None = None, older_than_ms: int = HANGING_AFTER_MS, now_ms: int
    ) -> list[OpenTransaction]:
        """Transactions open on a partition for longer than any coordinator allows, that no coordinator knows of."""
        suspects = [
            OpenTransaction(name, index, producer)
            for name, index in self._partitions(topic)
            for producer in self.producers(name, index)
            if producer.current_txn_start_offset != NO_OFFSET and now_ms - producer.last_timestamp >= older_than_ms
        ]
        if not suspects:
            return []
        known = self._partitions_in_transactions({suspect.producer.producer_id for suspect in suspects})
        return [s for s in suspects if (s.producer.producer_id, s.topic, s.partition) not in known]

    def _partitions_in_transactions(self, producer_ids: set[int]) -> set[tuple[int, str, int]]:
        known = set()
        for _, listed in self.list_transactions(producer_ids=sorted(producer_ids)):
            _, state = self.describe(listed.transactional_id)
            for topic in state.topics:
                known |= {(state.producer_id, topic.topic, index) for index in topic.partitions}
        return known

    # -- brokers to ask ----------------------------------------------------------------------------------------------

    def _metadata(self, topics: list[str] | None) -> m.MetadataResponse:
        named = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=named, allow_auto_topic_creation=False)
        return self._anywhere(request, m.MetadataResponse, 8)

    def _brokers(self) -> dict[int, Address]:
        return {broker.node_id: (broker.host, broker.port) for broker in self._metadata([]).brokers}

    def _partitions(self, topic: str | None) -> Iterator[tuple[str, int]]:
        for found in self._metadata(None if topic is None else [topic]).topics:
            _require(found.error_code, f"topic {found.name}")
            for partition in found.partitions:
                yield found.name or "", partition.partition_index

    def _leader(self, topic: str, partition: int) -> Address:
        metadata = self._metadata([topic])
        _require(metadata.topics[0].error_code, f"topic {topic}")
        leaders = {p.partition_index: p.leader_id for p in metadata.topics[0].partitions}
        brokers = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
        leader = leaders.get(partition)
        if leader is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        if leader not in brokers:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader now")
        return brokers[leader]

    def _coordinator(self, transactional_id: str) -> tuple[int, Address]:
        request = m.FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION_KEY)
        for _ in range(50):  # its topic may just be in the making
            answer = self._anywhere(request, m.FindCoordinatorResponse, 2)
            if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                break
            _pause()
        _require(answer.error_code, f"the coordinator of {transactional_id}", answer.error_message)
        return answer.node_id, (answer.host, answer.port)

    def _anywhere(self, request: Request, response: type[R], version: int) -> R:
        failed: BrokerFailed | None = None
        for address in self._bootstrap:
            try:
                return self._call(address, request, response, version)
            except BrokerFailed as error:
                failed = error
                self._drop(address)
        assert failed is not None
        raise failed

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _call(self, address: Address, request: Request, response: type[R], version: int) -> R:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._security.connect(address, self._timeout)
        key = request.__api_key__
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=CLIENT_ID,
        )
        flexible = version >= first_flexible_version(key)
        connection.send_frame(header.encode(2 if flexible else 1) + request.encode(version))
        frame = connection.receive(self._timeout)
        if int.from_bytes(frame[:4], "big", signed=True) != self._correlation_id:
            raise BrokerFailed("the answer belongs to another request")
        tagged = flexible and key != m.ApiVersionsRequest.__api_key__  # whose answer a client of any version must read
        answer = registry()[key][1].decode(frame, version, 5 if tagged else 4)
        assert isinstance(answer, response)
        return answer


def _require(code: int, subject: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        error = ErrorCode(code)
        raise ApiError(error, f"{subject}: {message or error.name}")


def _pause() -> None:
    import time

    time.sleep(0.05)
