"""A transactional producer on the wire, without a client library: one call a request, codes and fields back."""

from __future__ import annotations

from dataclasses import dataclass

from group_client import GroupClient

from minibroker.coordinators.hashing import partition_for
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionStateRequest,
    DescribeTransactionStateResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.disk import Disk

ID = "tx"
TOPIC = "t"
GROUP = "g"
OK = ErrorCode.NONE
Producer = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """One partition of a Produce response."""

    code: int
    base_offset: int
    log_start_offset: int


class SeedClient:
    """One broker in memory, topic ``t`` with two partitions, and requests in the shape of one producer."""

    def __init__(
        self,
        semantics: Semantics = KAFKA,
        config: dict[str, str] | None = None,
        *,
        transaction_version: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.config, self.semantics, self.transaction_version = config, semantics, transaction_version
        self.cluster = self._cluster(disk)

    def _cluster(self, disk: Disk | None) -> GroupClient:
        return GroupClient(
            self.config,
            semantics=self.semantics,
            topics={TOPIC: 2},
            transaction_version=self.transaction_version,
            disk=disk,
        )

    def restart(self, semantics: Semantics | None = None, *, transaction_version: int | None = None) -> None:
        """A clean stop, and another broker on the same disk; with other semantics or another feature level if given."""
        self.cluster.stop()
        self.semantics = semantics or self.semantics
        self.transaction_version = transaction_version
        self.cluster = self._cluster(self.cluster.disk)

    # -- what the coordinator is asked -------------------------------------------------------------------------------

    def init(
        self,
        held: Producer | None = None,
        *,
        version: int = 4,
        timeout_ms: int = 60_000,
        name: str | None = ID,
    ) -> tuple[int, Producer]:
        """(code, (producer id, epoch)) of InitProducerId."""
        producer_id, epoch = held or (-1, -1)
        answer = self.cluster.call(
            InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
            ),
            InitProducerIdResponse,
            version,
        )
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    def new(self, *, timeout_ms: int = 60_000, name: str | None = ID) -> Producer:
        code, producer = self.init(timeout_ms=timeout_ms, name=name)
        assert code == OK
        return producer

    def claim(self, held: Producer) -> Producer:
        """InitProducerId that must succeed."""
        code, producer = self.init(held)
        assert code == OK, ErrorCode(code).name
        return producer

    def add(self, producer: Producer, partition: int = 0, *, version: int = 3) -> int:
        answer = self.cluster.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])
                ],
            ),
            AddPartitionsToTxnResponse,
            version,
        )
        (topic,) = answer.results_by_topic_v3_and_below
        return topic.results_by_partition[0].partition_error_code

    def add_offsets(self, producer: Producer, *, version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], group_id=GROUP
        )
        return self.cluster.call(request, AddOffsetsToTxnResponse, version).error_code

    def end(self, producer: Producer, *, commit: bool, version: int = 4) -> int:
        return self.end_and_go_on(producer, commit=commit, version=version)[0]

    def end_and_go_on(self, producer: Producer, *, commit: bool, version: int = 5) -> tuple[int, Producer]:
        request = EndTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        answer = self.cluster.call(request, EndTxnResponse, version)
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    def commit_offset(self, producer: Producer, offset: int, *, version: int = 3) -> int:
        offsets = {(TOPIC, 0): offset}
        return self.cluster.commit_in_txn(producer, offsets, transactional_id=ID, version=version)[0]

    def committed_offset(self) -> int | ErrorCode:
        """The group's stable offset of partition 0, or why there is none."""
        return self.cluster.fetch((TOPIC, 0), stable=True)[TOPIC, 0]

    def described(self, name: str = ID) -> DescribeTransactionStateResponse.TransactionState:
        request = DescribeTransactionStateRequest(transactional_ids=[name])
        (state,) = self.cluster.call(request, DescribeTransactionStateResponse, 0).transaction_states
        return state

    # -- what the partition is told ----------------------------------------------------------------------------------

    def produce(
        self,
        producer: Producer,
        sequence: int,
        *,
        count: int = 1,
        version: int = 11,
        partition: int = 0,
        transactional: bool = True,
    ) -> Written:
        deferred = self.cluster.send(
            produce_request(producer, sequence, count, partition, transactional, self.cluster.clock.now_ms()), version
        )
        for _ in range(20):  # a partition that waits for its coordinator tries again after a while
            if deferred.done:
                break
            self.cluster.timers.advance(20)
        answer = deferred.result()
        assert isinstance(answer, ProduceResponse)
        result = answer.responses[0].partition_responses[0]
        return Written(result.error_code, result.base_offset, result.log_start_offset)

    # -- time and damage ---------------------------------------------------------------------------------------------

    def time_out(self, timeout_ms: int = 60_000) -> None:
        """Let the running transaction pass its timeout, and the coordinator notice."""
        self.cluster.clock.advance(timeout_ms + 10_001)

    def reload_coordinator(self, name: str = ID) -> None:
        """The coordinator of `name` fails over: its state is read from the log again."""
        service = self.cluster.broker.coordinators.transactions
        index = partition_for(name, service.host.partition_count)
        partition = self.cluster.broker.partition(TRANSACTION_STATE_TOPIC, index)
        service.resigned(index)
        service.elected(partition, partition.leader_epoch)

    def stop(self) -> None:
        self.cluster.stop()


def produce_request(
    producer: Producer, sequence: int, count: int, partition: int, transactional: bool, now_ms: int
) -> ProduceRequest:
    """One batch of `count` records, their values its sequences."""
    batch = build_batch(
        [Record(i, now_ms, None, str(sequence + i).encode(), []) for i in range(count)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=transactional,
    )
    return ProduceRequest(
        transactional_id=ID if transactional else None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=TOPIC,
                partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=batch)],
            )
        ],
    )
