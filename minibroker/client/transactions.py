"""Transaction requests of an operator over a blocking connection: list, describe, abort, find hanging ones.

DescribeTransactions, ListTransactions, DescribeProducers and WriteTxnMarkers (KIP-664) work with any Kafka broker;
DescribeTransactionState (KIP-360) only with this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from minibroker.client.cluster import require
from minibroker.client.connection import Address
from minibroker.client.transactional import TRANSACTION_KEY, TransactionalClient
from minibroker_protocol import messages as m

NO_OFFSET: Final = -1
HANGING_AFTER_MS: Final = 15 * 60_000 + 5 * 60_000
"""transaction.max.timeout.ms, and five minutes in which a coordinator can end it (Kafka's TransactionsCommand)."""

DescribedState = m.DescribeTransactionStateResponse.TransactionState
Described = m.DescribeTransactionsResponse.TransactionState
Listed = m.ListTransactionsResponse.TransactionState
ProducerState = m.DescribeProducersResponse.ProducerState


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction open on a partition, as its leader sees it."""

    topic: str
    partition: int
    producer: ProducerState


class TransactionsClient(TransactionalClient):
    """What an operator asks of a cluster. Raises BrokerFailed when no broker answers, ApiError when one refuses."""

    client_id = "minibroker-transactions"
    patience = 5.0
    old_end_txn = 3  # brokers before 3.8 know no other

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
        for node_id, address in self.brokers().items():
            answer = self.ask(address, request, m.ListTransactionsResponse, version)
            require(answer.error_code, f"broker {node_id} does not list transactions")
            if answer.unknown_state_filters:
                raise ValueError(f"no transaction state is called {', '.join(answer.unknown_state_filters)}")
            found += [(node_id, listed) for listed in answer.transaction_states]
        return found

    def describe(self, transactional_id: str) -> tuple[int, Described]:
        """(node id of the coordinator, state) of one id."""
        node_id, address = self.coordinator(transactional_id, TRANSACTION_KEY)
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = self.ask(address, request, m.DescribeTransactionsResponse, 0).transaction_states
        require(state.error_code, f"transactional id {transactional_id}")
        return node_id, state

    def describe_state(self, transactional_ids: Iterable[str]) -> dict[str, DescribedState]:
        """DescribeTransactionState (KIP-360), one request a coordinator. Errors are in each answer."""
        by_coordinator: dict[Address, list[str]] = {}
        for transactional_id in transactional_ids:
            by_coordinator.setdefault(self.coordinator(transactional_id, TRANSACTION_KEY)[1], []).append(
                transactional_id
            )
        states: dict[str, DescribedState] = {}
        for address, ids in by_coordinator.items():
            request = m.DescribeTransactionStateRequest(transactional_ids=ids)
            answer = self.ask(address, request, m.DescribeTransactionStateResponse, 0)
            states.update(zip(ids, answer.transaction_states, strict=True))
        return states

    def producers(self, topic: str, partition: int) -> list[ProducerState]:
        """What the leader of a partition knows of its producers."""
        request = m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])]
        )
        kind = m.DescribeProducersResponse
        found = self.ask_leader(topic, partition, request, kind, 0, lambda answer: answer.topics[0].partitions[0])
        producers: list[ProducerState] = found.active_producers
        return producers

    def skip_producer_ids(self, following: int) -> int:
        """Have a broker hand out producer ids until all below `following` are used, each with a request of its own;
        returns the last. A broker keeps a block of 1000 that it got earlier until it is restarted."""

        def ask() -> int:
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = self.ask_any(request, m.InitProducerIdResponse, 4)
            require(answer.error_code, "InitProducerId")
            return answer.producer_id

        last = self.patiently(ask)
        while last < following - 1:
            last = self.patiently(ask)
        return last

    def fence(self, transactional_id: str) -> tuple[int, int]:
        """Fence an id's producer and abort its transaction (Admin.fenceProducers). Returns the new producer id and
        epoch."""
        producer = self.init_producer_id(transactional_id, 1)
        return producer.producer_id, producer.producer_epoch

    def abort(self, topic: str, partition: int, start_offset: int) -> ProducerState:
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
        kind = m.WriteTxnMarkersResponse
        self.ask_leader(topic, partition, request, kind, 1, lambda answer: answer.markers[0].topics[0].partitions[0])
        return producer

    def find_hanging(
        self, *, topic: str | None = None, older_than_ms: int = HANGING_AFTER_MS, now_ms: int
    ) -> list[OpenTransaction]:
        """Transactions open on a partition for longer than any coordinator allows, that no coordinator knows of."""
        suspects = [
            OpenTransaction(name, index, producer)
            for name, index in self.leaders(None if topic is None else [topic])
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
