"""Producer ids and transactions: InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
WriteTxnMarkers (27), TxnOffsetCommit (28), DescribeProducers (61), DescribeTransactions (65), ListTransactions (66),
and DescribeTransactionState of KIP-360, which Kafka never shipped, under a key of our own (10001).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class InitProducerIdRequest(Request, key=22, versions="0-6", flexible="2+", latest_unstable=True):
    """Get a producer id; for a transactional id, fence and bump (KIP-360)."""

    transactional_id: string | None = f(nullable="0+", entity="transactionalId")
    transaction_timeout_ms: int32
    producer_id: int64 = f("3+", default=-1, entity="producerId")
    producer_epoch: int16 = f("3+", default=-1, entity="producerEpoch")
    enable2_pc: bool_ = f("6+", default=False)
    keep_prepared_txn: bool_ = f("6+", default=False)


class InitProducerIdResponse(Response, key=22, versions="0-6", flexible="2+"):
    """The producer id and epoch to use."""

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    producer_id: int64 = f(default=-1, entity="producerId")
    producer_epoch: int16 = f(entity="producerEpoch")
    ongoing_txn_producer_id: int64 = f("6+", default=-1, entity="producerId")
    ongoing_txn_producer_epoch: int16 = f("6+", default=-1, entity="producerEpoch")


class AddPartitionsToTxnRequest(Request, key=24, versions="0-5", flexible="3+"):
    """Add partitions to a transaction, or verify that they are in it (KIP-890)."""

    class AddPartitionsToTxnTopic(Struct):
        name: string = f(entity="topicName", map_key=True)
        partitions: list[int32] = f(entity="partition")

    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: string = f("4+", default="", entity="transactionalId", map_key=True)
        producer_id: int64 = f("4+", default=0, entity="producerId")
        producer_epoch: int16 = f("4+", default=0, entity="producerEpoch")
        verify_only: bool_ = f("4+", default=False)
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = f("4+", default=[])

    transactions: list[AddPartitionsToTxnTransaction] = f("4+", default=[])
    v3_and_below_transactional_id: string = f("0-3", default="", entity="transactionalId")
    v3_and_below_producer_id: int64 = f("0-3", default=0, entity="producerId")
    v3_and_below_producer_epoch: int16 = f("0-3", default=0, entity="producerEpoch")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = f("0-3", default=[])


class AddPartitionsToTxnResponse(Response, key=24, versions="0-5", flexible="3+"):
    """The result for each partition."""

    class AddPartitionsToTxnTopicResult(Struct):
        name: string = f(entity="topicName", map_key=True)
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: int32 = f(entity="partition", map_key=True)
        partition_error_code: int16 = f(error=True)

    class AddPartitionsToTxnResult(Struct):
        transactional_id: string = f("4+", default="", entity="transactionalId", map_key=True)
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = f("4+", default=[])

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f("4+", default=0, ignorable=True, error=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = f("4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = f("0-3", default=[])


class AddOffsetsToTxnRequest(Request, key=25, versions="0-4", flexible="3+"):
    """Add the offsets of a group to a transaction."""

    transactional_id: string = f(entity="transactionalId")
    producer_id: int64 = f(entity="producerId")
    producer_epoch: int16 = f(entity="producerEpoch")
    group_id: string = f(entity="groupId")


class AddOffsetsToTxnResponse(Response, key=25, versions="0-4", flexible="3+"):
    """Whether they were added."""

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)


class EndTxnRequest(Request, key=26, versions="0-5", flexible="3+"):
    """Commit or abort a transaction."""

    transactional_id: string = f(entity="transactionalId")
    producer_id: int64 = f(entity="producerId")
    producer_epoch: int16 = f(entity="producerEpoch")
    committed: bool_


class EndTxnResponse(Response, key=26, versions="0-5", flexible="3+"):
    """Whether the transaction will end so; from v5 the id and epoch of the next one (KIP-890)."""

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    producer_id: int64 = f("5+", default=-1, ignorable=True, entity="producerId")
    producer_epoch: int16 = f("5+", default=-1, ignorable=True, entity="producerEpoch")


class WriteTxnMarkersRequest(Request, key=27, versions="1-2", flexible="1+"):
    """Write end-of-transaction markers to partitions."""

    class WritableTxnMarkerTopic(Struct):
        name: string = f(entity="topicName")
        partition_indexes: list[int32] = f(entity="partition")

    class WritableTxnMarker(Struct):
        producer_id: int64 = f(entity="producerId")
        producer_epoch: int16 = f(entity="producerEpoch")
        transaction_result: bool_
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic]
        coordinator_epoch: int32
        transaction_version: int8 = f("2+", default=0, ignorable=True)

    markers: list[WritableTxnMarker]


class WriteTxnMarkersResponse(Response, key=27, versions="1-2", flexible="1+"):
    """Whether each marker was written."""

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)

    class WritableTxnMarkerTopicResult(Struct):
        name: string = f(entity="topicName")
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]

    class WritableTxnMarkerResult(Struct):
        producer_id: int64 = f(entity="producerId")
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]

    markers: list[WritableTxnMarkerResult]


class TxnOffsetCommitRequest(Request, key=28, versions="0-6", flexible="3+"):
    """Store offsets of a group as part of a transaction (KIP-447)."""

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: int32 = f(entity="partition")
        committed_offset: int64
        committed_leader_epoch: int32 = f("2+", default=-1, ignorable=True)
        committed_metadata: string | None = f(nullable="0+")

    class TxnOffsetCommitRequestTopic(Struct):
        name: string = f("0-5", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("6+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]

    transactional_id: string = f(entity="transactionalId")
    group_id: string = f(entity="groupId")
    producer_id: int64 = f(entity="producerId")
    producer_epoch: int16 = f(entity="producerEpoch")
    generation_id_or_member_epoch: int32 = f("3+", default=-1, entity="generation")
    member_id: string = f("3+", default="", entity="memberId")
    group_instance_id: string | None = f("3+", nullable="3+", default=None, entity="groupInstanceId")
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response, key=28, versions="0-6", flexible="3+"):
    """Whether each offset was stored."""

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)

    class TxnOffsetCommitResponseTopic(Struct):
        name: string = f("0-5", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("6+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[TxnOffsetCommitResponseTopic]


class DescribeProducersRequest(Request, key=61, versions="0", flexible="0+"):
    """Ask which producers a partition knows."""

    class TopicRequest(Struct):
        name: string = f(entity="topicName")
        partition_indexes: list[int32] = f(entity="partition")

    topics: list[TopicRequest]


class DescribeProducersResponse(Response, key=61, versions="0", flexible="0+"):
    """The producers of each partition."""

    class ProducerState(Struct):
        producer_id: int64 = f(entity="producerId")
        producer_epoch: int32 = f(entity="producerEpoch")
        last_sequence: int32 = f(default=-1)
        last_timestamp: int64 = f(default=-1)
        coordinator_epoch: int32
        current_txn_start_offset: int64 = f(default=-1)

    class PartitionResponse(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        active_producers: list[DescribeProducersResponse.ProducerState] = f(default=[])

    class TopicResponse(Struct):
        name: string = f(entity="topicName")
        partitions: list[DescribeProducersResponse.PartitionResponse]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[TopicResponse]


class DescribeTransactionsRequest(Request, key=65, versions="0", flexible="0+"):
    """Ask for the state of transactions by id."""

    transactional_ids: list[string] = f(entity="transactionalId")


class DescribeTransactionsResponse(Response, key=65, versions="0", flexible="0+"):
    """The state of each transaction."""

    class TopicData(Struct):
        topic: string = f(entity="topicName", map_key=True)
        partitions: list[int32] = f(entity="partition")

    class TransactionState(Struct):
        error_code: int16 = f(default=0, error=True)
        transactional_id: string = f(entity="transactionalId")
        transaction_state: string = f(default="")
        transaction_timeout_ms: int32
        transaction_start_time_ms: int64
        producer_id: int64 = f(entity="producerId")
        producer_epoch: int16 = f(entity="producerEpoch")
        topics: list[DescribeTransactionsResponse.TopicData] = f(default=[])

    throttle_time_ms: int32 = f(default=0, throttle=True)
    transaction_states: list[TransactionState]


class ListTransactionsRequest(Request, key=66, versions="0-2", flexible="0+"):
    """Ask for the transactions of a coordinator."""

    state_filters: list[string]
    producer_id_filters: list[int64] = f(entity="producerId")
    duration_filter: int64 = f("1+", default=-1)
    transactional_id_pattern: string | None = f("2+", nullable="2+", default=None)


class ListTransactionsResponse(Response, key=66, versions="0-2", flexible="0+"):
    """The transactions that match."""

    class TransactionState(Struct):
        transactional_id: string = f(entity="transactionalId")
        producer_id: int64 = f(entity="producerId")
        transaction_state: string

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    unknown_state_filters: list[string]
    transaction_states: list[TransactionState] = f(default=[])


class DescribeTransactionStateRequest(Request, key=10001, versions="0", private=True):
    """Asks for the state of transactions by id (KIP-360)."""

    transactional_ids: list[string] = f(entity="transactionalId")


class DescribeTransactionStateResponse(Response, key=10001, versions="0", private=True):
    """One state per id, in the order of the request; producer id and epoch are -1 where the error leaves them unknown
    (KIP-360)."""

    class TopicPartitions(Struct):
        topic_name: string = f(entity="topicName")
        partition_ids: list[int32] = f(entity="partition")

    class TransactionState(Struct):
        error: int16 = f(default=0, error=True)
        producer_id: int64 = f(default=-1, entity="producerId")
        epoch: int16 = f(default=-1, entity="producerEpoch")
        state: string = f(default="")
        partitions: list[DescribeTransactionStateResponse.TopicPartitions] = f(default=[])

    transaction_states: list[TransactionState] = f(answers="transactional_ids")
