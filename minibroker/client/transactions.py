"""Transaction requests of an operator over a blocking connection: list, describe, fence, write a marker.

DescribeTransactions, ListTransactions, DescribeProducers and WriteTxnMarkers (KIP-664) work with any Kafka broker;
DescribeTransactionState (KIP-360) only with this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from minibroker.client.cluster import require
from minibroker.client.transactional import TRANSACTION_KEY, TransactionalClient
from minibroker.kernel.addresses import Address
from minibroker_protocol import messages as m

NO_OFFSET: Final = -1

DescribedState = m.DescribeTransactionStateResponse.TransactionState
Described = m.DescribeTransactionsResponse.TransactionState
Listed = m.ListTransactionsResponse.TransactionState
ProducerState = m.DescribeProducersResponse.ProducerState


class TransactionsClient(TransactionalClient):
    """What an operator asks of a cluster. Raises BrokerFailed when no broker answers, ApiError when one refuses."""

    client_id = "minibroker-transactions"
    patience = 5.0
    old_end_txn = 3  # the newest version of brokers before 3.8

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
        listings = []
        for node_id, address in self.brokers().items():
            answer = self.ask(address, request, m.ListTransactionsResponse, version)
            require(answer.error_code, f"broker {node_id} does not list transactions")
            if answer.unknown_state_filters:
                raise ValueError(f"no transaction state is called {', '.join(answer.unknown_state_filters)}")
            listings += [(node_id, listed) for listed in answer.transaction_states]
        return listings

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
        result = self.ask_leader(topic, partition, request, kind, 0, lambda answer: answer.topics[0].partitions[0])
        producers: list[ProducerState] = result.active_producers
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

    def write_marker(
        self, topic: str, partition: int, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, commit: bool
    ) -> None:
        """End a producer's transaction on one partition as a coordinator does (Admin.abortTransaction, KIP-664).

        Needs the right to ALTER, or CLUSTER_ACTION on, the cluster.
        """
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=commit,
            topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=coordinator_epoch,
        )
        request = m.WriteTxnMarkersRequest(markers=[marker])
        kind = m.WriteTxnMarkersResponse
        self.ask_leader(topic, partition, request, kind, 1, lambda answer: answer.markers[0].topics[0].partitions[0])
