"""What a partition answers after an event on a real Kafka, and after the operation of `state` that stands for it.

`record_state_events.py` records the events; tests/minibroker/faults/test_state_events.py runs the operations.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from minibroker.client.connection import Connection
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch

Answers = dict[str, Any]
CUT = 6
"""Where the tail is lost: only producer a has records before it."""
DELETED = 9
"""Where the log starts after DeleteRecords: only producer a has records from it on."""
NAME = "idle"


class Wire:
    """Requests one after the other, to one broker."""

    def __init__(self, port: int) -> None:
        self._connection = Connection(("127.0.0.1", port), 30)

    def call(self, request: Any, version: int) -> Any:
        return self._connection.ask(request, version, "state-events", 30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()


class Load:
    """One topic of one partition with a known load: producer a has 6 records, b 3, a 6 more, each written before the
    event. `wire` is a connection to the leader."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.topic = topic
        self.first_epoch = self.leader_epoch(wire)
        self.a, self.b = new_producer(wire), new_producer(wire)
        self.append(wire, self.a, 0, 6)
        self.append(wire, self.b, 0, 3)
        self.append(wire, self.a, 6, 6)

    @classmethod
    def of(cls, topic: str) -> Self:
        """A topic to look at, without any load yet."""
        load = cls.__new__(cls)
        load.topic, load.first_epoch = topic, 0
        return load

    def append(self, wire: Wire, producer: tuple[int, int], sequence: int, count: int) -> None:
        records = [Record(n, time.time_ns() // 1_000_000, None, b"v") for n in range(count)]
        batch = build_batch(
            records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=False
        )
        kind = m.ProduceRequest
        data = kind.TopicProduceData(
            name=self.topic, partition_data=[kind.PartitionProduceData(index=0, records=bytes(batch))]
        )
        request = kind(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data])
        (answer,) = wire.call(request, 12).responses[0].partition_responses
        assert not answer.error_code, answer

    def leader_epoch(self, wire: Wire) -> int:
        partition = described(wire, self.topic)
        assert not partition.error_code, partition
        return int(partition.leader_epoch)

    def answers(self, wire: Wire) -> Answers:
        """What a client can ask the leader. Epochs count from the one that the load was written in; producers are a
        and b: (producer epoch, last sequence, coordinator epoch, start of the open transaction)."""
        epoch = self.leader_epoch(wire)
        return {
            "new leader epoch": epoch > self.first_epoch,
            "end of the old epoch": self.epoch_end(wire, self.first_epoch),
            "end of the new epoch": self.epoch_end(wire, epoch) if epoch > self.first_epoch else None,
            "earliest": self.offset(wire, -2),
            "latest": self.offset(wire, -1),
            "producers": self.producers(wire),
        }

    def _relative(self, epoch: int, current: int) -> str:
        return {-1: "none", current: "new", self.first_epoch: "old"}.get(epoch, str(epoch))

    def epoch_end(self, wire: Wire, epoch: int) -> list[Any]:
        kind = m.OffsetForLeaderEpochRequest
        wanted = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
        request = kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic=self.topic, partitions=[wanted])])
        (answer,) = wire.call(request, 4).topics[0].partitions
        assert not answer.error_code, answer
        return [self._relative(answer.leader_epoch, self.leader_epoch(wire)), answer.end_offset]

    def offset(self, wire: Wire, timestamp: int) -> list[Any]:
        kind = m.ListOffsetsRequest
        wanted = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        topics = [kind.ListOffsetsTopic(name=self.topic, partitions=[wanted])]
        (answer,) = wire.call(kind(replica_id=-1, isolation_level=0, topics=topics), 7).topics[0].partitions
        assert not answer.error_code, answer
        return [answer.offset, self._relative(answer.leader_epoch, self.leader_epoch(wire))]

    def producers(self, wire: Wire) -> dict[str, list[int]]:
        kind = m.DescribeProducersRequest
        request = kind(topics=[kind.TopicRequest(name=self.topic, partition_indexes=[0])])
        (answer,) = wire.call(request, 0).topics[0].partitions
        assert not answer.error_code, answer
        names = {self.a[0]: "a", self.b[0]: "b"}
        return {
            names.get(p.producer_id, "new"): [
                p.producer_epoch,
                p.last_sequence,
                p.coordinator_epoch,
                p.current_txn_start_offset,
            ]
            for p in answer.active_producers
        }


def new_producer(wire: Wire) -> tuple[int, int]:
    """Producer id and epoch of a producer without a transactional id."""
    request = m.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    while (answer := wire.call(request, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        time.sleep(0.05)
    assert not answer.error_code, answer
    return answer.producer_id, answer.producer_epoch


def described(wire: Wire, topic: str) -> Any:
    kind = m.MetadataRequest
    request = kind(topics=[kind.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (answer,) = wire.call(request, 9).topics
    return answer.partitions[0] if answer.partitions else answer


def create(wire: Wire, topic: str, replicas: list[int], **configs: str) -> None:
    """A topic of one partition."""
    kind = m.CreateTopicsRequest
    placed = kind.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    wanted = [kind.CreatableTopicConfig(name=name.replace("__", "."), value=value) for name, value in configs.items()]
    made = kind.CreatableTopic(
        name=topic, num_partitions=-1, replication_factor=-1, assignments=[placed], configs=wanted
    )
    (answer,) = wire.call(kind(topics=[made], timeout_ms=30_000), 7).topics
    assert not answer.error_code, answer


def claim(wire: Wire, name: str) -> tuple[int, int]:
    """InitProducerId of a transactional id, once its coordinator is there."""
    request = m.InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    while (answer := wire.call(request, 4)).error_code in (14, 15, 16, 51):
        wire.call(m.FindCoordinatorRequest(key=name, key_type=1), 2)  # creates the topic
        time.sleep(0.05)
    assert not answer.error_code, answer
    return answer.producer_id, answer.producer_epoch


def state_of_id(wire: Wire) -> list[Any]:
    """Error code and state in DescribeTransactions of the id."""
    kind = m.DescribeTransactionsRequest
    (state,) = wire.call(kind(transactional_ids=[NAME]), 0).transaction_states
    return [state.error_code, state.transaction_state]
