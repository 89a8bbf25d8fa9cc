"""The requests of one transactional producer, over blocking connections.

At transaction.version 2 (KIP-890) partitions and groups join the transaction with their first Produce and
TxnOffsetCommit, and EndTxn raises the epoch, so that a request of an ended transaction is refused wherever it arrives.
Below, partitions are added beforehand, and leaders refuse a partition that is not in the open transaction, if
transaction.partition.verification.enable is on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from minibroker.client.cluster import require
from minibroker.client.topics import LATEST, ReadingClient
from minibroker_protocol import messages as m

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
BROKER_RESOURCE: Final = 4
TRANSACTION_VERSION: Final = "transaction.version"
VERIFICATION: Final = "transaction.partition.verification.enable"
BUMPS_EPOCH: Final = 2
"""The transaction.version from which on EndTxn raises the epoch."""
PATIENCE: Final = 60.0
"""Seconds until a request that fails for a passing reason is given up."""


class Producer(NamedTuple):
    """The identity in the requests of a transaction, and the transaction protocol."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int = BUMPS_EPOCH

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request that identify this producer."""
        return {name: getattr(self, name) for name in self._fields[:3]}

    def choose(self, new: int, old: int) -> int:
        """The version of a request: at transaction.version 2, and below."""
        return new if self.transaction_version >= BUMPS_EPOCH else old


class TransactionalClient(ReadingClient):
    """Repeats a request, byte for byte, while its error is retriable or a broker is away.

    Raises ApiError for an error that is not, BrokerFailed when none answered within `patience` seconds.
    """

    client_id = "minibroker-producer"
    patience = PATIENCE
    old_end_txn = 4
    """The version of EndTxn below transaction.version 2."""

    def transaction_version(self) -> int:
        """The finalized level of the feature; 0 where there is none."""
        request = m.ApiVersionsRequest(client_software_name=self.client_id, client_software_version="1")
        answer = self.ask_any(request, m.ApiVersionsResponse, 3)
        require(answer.error_code, "ApiVersions")
        return max([f.max_version_level for f in answer.finalized_features if f.name == TRANSACTION_VERSION], default=0)

    def unverified(self) -> list[int]:
        """Brokers that append to a partition whether or not it is in a transaction."""
        kind = m.DescribeConfigsRequest

        def ask() -> list[int]:
            node_ids = []
            for node_id, address in sorted(self.brokers().items()):
                wanted = kind.DescribeConfigsResource(
                    resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[VERIFICATION]
                )
                (result,) = self.ask(address, kind(resources=[wanted]), m.DescribeConfigsResponse, 1).results
                require(result.error_code, f"configuration of broker {node_id}", result.error_message)
                if any(config.value == "false" for config in result.configs):
                    node_ids.append(node_id)
            return node_ids

        return self.patiently(ask)

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, *, transaction_version: int = BUMPS_EPOCH
    ) -> Producer:
        """A new epoch. What is open under the id is aborted first, and its producer fenced."""
        request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

        def ask() -> Producer:
            _, address = self.coordinator(transactional_id, TRANSACTION_KEY)
            answer = self.ask(address, request, m.InitProducerIdResponse, 4)
            require(answer.error_code, f"transactional id {transactional_id}")
            return Producer(transactional_id, answer.producer_id, answer.producer_epoch, transaction_version)

        return self.patiently(ask)

    def add_partitions(self, producer: Producer, topic: str, partitions: Iterable[int]) -> None:
        """Make partitions part of the transaction, which begins with it; only below transaction.version 2."""
        kind = m.AddPartitionsToTxnRequest
        request = kind(
            **{f"v3_and_below_{name}": value for name, value in producer.fields.items()},
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=topic, partitions=[*partitions])],
        )

        def ask() -> None:
            _, address = self.coordinator(producer.transactional_id, TRANSACTION_KEY)
            (answered,) = self.ask(address, request, m.AddPartitionsToTxnResponse, 3).results_by_topic_v3_and_below
            for result in answered.results_by_partition:
                require(result.partition_error_code, f"{topic}-{result.partition_index} in a transaction")

        self.patiently(ask)

    def add_group(self, producer: Producer, group: str) -> None:
        """Make a group's offsets part of the transaction; only below transaction.version 2."""
        request = m.AddOffsetsToTxnRequest(**producer.fields, group_id=group)

        def ask() -> None:
            _, address = self.coordinator(producer.transactional_id, TRANSACTION_KEY)
            require(self.ask(address, request, m.AddOffsetsToTxnResponse, 3).error_code, f"group {group}")

        self.patiently(ask)

    def produce(self, producer: Producer, topic: str, partition: int, batch: bytes) -> int:
        """Append one batch of this producer, which is sent again until it is known to be there; its base offset."""
        kind = m.ProduceRequest
        entry = kind.PartitionProduceData(index=partition, records=batch)
        request = kind(
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout_ms=int(self.timeout * 1000),
            topic_data=[kind.TopicProduceData(name=topic, partition_data=[entry])],
        )

        def ask() -> int:
            answer = self.ask(self.leader(topic, partition), request, m.ProduceResponse, producer.choose(12, 11))
            result = answer.responses[0].partition_responses[0]
            require(result.error_code, f"{topic}-{partition}", result.error_message)
            return result.base_offset

        return self.patiently(ask)

    def end_offset(self, topic: str, partition: int) -> int:
        """The high watermark: the offset after the last record that all in-sync replicas have."""
        return self.patiently(lambda: self.offset(topic, partition, LATEST))

    def committed(self, group: str, topic: str, partition: int) -> tuple[int, str] | None:
        """The committed offset and its metadata once no transaction can change it; None when there is none."""
        entry = m.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
        offset, metadata = self._committed(group, [entry])[topic, partition]
        return (offset, metadata) if offset >= 0 else None

    def all_committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """(topic, partition) → the committed offset and its metadata, of all that the group has. One that is committed
        for the first time may be missing until its transaction has ended."""
        return self._committed(group, None)

    def _committed(
        self, group: str, topics: list[m.OffsetFetchRequest.OffsetFetchRequestTopic] | None
    ) -> dict[tuple[str, int], tuple[int, str]]:
        request = m.OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)

        def ask() -> dict[tuple[str, int], tuple[int, str]]:
            _, address = self.coordinator(group, GROUP_KEY)
            answer = self.ask(address, request, m.OffsetFetchResponse, 7)
            require(answer.error_code, f"group {group}")
            committed = {}
            for topic in answer.topics:
                for partition in topic.partitions:
                    place = topic.name, partition.partition_index
                    require(partition.error_code, f"offset of group {group} for {place[0]}-{place[1]}")
                    committed[place] = partition.committed_offset, partition.metadata or ""
            return committed

        return self.patiently(ask)

    def commit_offset(
        self, producer: Producer, group: str, topic: str, partition: int, offset: int, metadata: str
    ) -> None:
        """Make an offset and its metadata part of the transaction."""
        kind = m.TxnOffsetCommitRequest
        entry = kind.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        request = kind(
            **producer.fields,
            group_id=group,
            topics=[kind.TxnOffsetCommitRequestTopic(name=topic, partitions=[entry])],
        )

        def ask() -> None:
            _, address = self.coordinator(group, GROUP_KEY)
            answer = self.ask(address, request, m.TxnOffsetCommitResponse, producer.choose(5, 4))
            require(answer.topics[0].partitions[0].error_code, f"offset of group {group} for {topic}-{partition}")

        self.patiently(ask)

    def end(self, producer: Producer, *, commit: bool, patience: float | None = None) -> None:
        """Commit or abort.

        patience: seconds, by default the client's.

        A repetition of what took effect succeeds; the opposite raises INVALID_TXN_STATE.
        """
        request = m.EndTxnRequest(**producer.fields, committed=commit)

        def ask() -> None:
            _, address = self.coordinator(producer.transactional_id, TRANSACTION_KEY)
            answer = self.ask(address, request, m.EndTxnResponse, producer.choose(5, self.old_end_txn))
            require(answer.error_code, f"transactional id {producer.transactional_id}")

        self.patiently(ask, patience)
