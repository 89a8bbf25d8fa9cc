"""Several brokers in memory under manual time: requests go to the broker they are meant for, bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, TypeVar

from manual_time import ManualTimers
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.cluster.cluster import BrokerSpec, Cluster
from minibroker.config.settings import Settings
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Executor, InlineExecutor
from minibroker.partitions.partition import Partition
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.disk import Disk
from minibroker_storage.memory_disk import MemoryDisk

R = TypeVar("R", bound=Response)

_SMALL = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}


class ManyBrokers:
    """`count` brokers with ids from 1 on. `disks` outlive a broker, as a machine's disk does."""

    def __init__(
        self,
        count: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        semantics: Semantics = KAFKA,
        transaction_version: int | None = None,
        disks: Mapping[int, Any] | None = None,
        journal: Disk | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.timers = ManualTimers(now_ms=1_700_000_000_000)
        self.clock = BrokerClock(self.timers, self.timers.now_ms)
        self.disks: dict[int, Any] = dict(disks or {})
        self.journal = journal or MemoryDisk(64 << 20)
        self.executor = executor or InlineExecutor()
        self.cluster = Cluster(
            Settings({**_SMALL, **(config or {})}),
            semantics,
            nodes=[self.node(i) for i in range(1, count + 1)],
            journal_disk=self.journal,
            clock=self.clock,
            timers=self.timers,
            executor=self.executor,
            random=Random(7),
            transaction_version=transaction_version,
            make_node=self.node,
        )
        self.cluster.start()
        self.settle()

    def node(self, node_id: int) -> BrokerSpec:
        disk = self.disks.setdefault(node_id, MemoryDisk(64 << 20))
        return BrokerSpec(
            node_id=node_id, host="127.0.0.1", port=9091 + node_id, disk=disk, log_dir=f"/memory/{node_id}"
        )

    def settle(self, milliseconds: float = 5) -> None:
        """Let messages between brokers arrive; one step of real time at a time."""
        self.timers.advance(milliseconds)

    # -- requests ----------------------------------------------------------------------------------------------------

    @staticmethod
    def frame(request: Request, version: int) -> bytearray:
        """The bytes a client would send, without the size."""
        key = type(request).__api_key__
        header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="test")
        header_version = 2 if version >= first_flexible_version(key) else 1
        return bytearray(header.encode(header_version) + request.encode(version))

    def send(self, node_id: int, request: Request, version: int) -> Deferred[Any]:
        frame = self.frame(request, version)
        answer = self.cluster.dispatcher(node_id).dispatch(frame, ConnectionInfo(local_host="127.0.0.1"))
        decoded: Deferred[Any] = Deferred()

        def done(raw: Deferred[Any]) -> None:
            try:
                decoded.resolve(MemoryCluster.decode(type(request), version, raw.result()))
            except Exception as error:
                decoded.fail(error)

        if isinstance(answer, Deferred):
            answer.then(done)
        else:
            decoded.resolve(MemoryCluster.decode(type(request), version, answer))
        return decoded

    def call(self, node_id: int, request: Request, response: type[R], version: int, *, wait_ms: float = 100) -> R:
        """`send`, and time moves until the answer is there, at most `wait_ms`."""
        pending = self.send(node_id, request, version)
        waited = 0.0
        while not pending.done and waited < wait_ms:
            self.timers.advance(1)
            waited += 1
        answer = pending.result()
        assert isinstance(answer, response)
        return answer

    # -- shorthands --------------------------------------------------------------------------------------------------

    def create(
        self, name: str, replicas: list[list[int]], configs: Mapping[str, str] | None = None, *, at: int | None = None
    ) -> None:
        node = at or min(self.cluster.brokers)
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=i, broker_ids=nodes)
                        for i, nodes in enumerate(replicas)
                    ],
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=1000,
            validate_only=False,
        )
        result = self.call(node, request, CreateTopicsResponse, 7).topics[0]
        assert result.error_code == 0, result
        self.settle()

    def leader(self, topic: str, index: int = 0) -> int:
        leader = self.cluster.image.leader_of(topic, index)
        assert leader is not None
        return leader

    def partition(self, node_id: int, topic: str, index: int = 0) -> Partition:
        return self.cluster.brokers[node_id].replica(topic, index)

    def produce_request(
        self, topic: str, batch: bytes | bytearray, *, acks: int = -1, index: int = 0
    ) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=None,
            acks=acks,
            timeout_ms=1000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic,
                    partition_data=[ProduceRequest.PartitionProduceData(index=index, records=bytes(batch))],
                )
            ],
        )

    def produce(
        self,
        topic: str,
        value: bytes | bytearray,
        *,
        acks: int = -1,
        at: int | None = None,
        index: int = 0,
        **fields: Any,
    ) -> ProduceResponse.PartitionProduceResponse:
        """One record, or a batch that is built with `fields`, to the leader or to broker `at`."""
        batch = build_batch([Record(0, self.clock.now_ms(), None, bytes(value), [])], **fields)
        request = self.produce_request(topic, batch, acks=acks, index=index)
        node = self.leader(topic, index) if at is None else at
        response = self.call(node, request, ProduceResponse, 9, wait_ms=2000)
        return response.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: str,
        offset: int = 0,
        *,
        at: int | None = None,
        index: int = 0,
        isolation_level: int = 0,
        **fields: Any,
    ) -> FetchResponse.PartitionData:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            isolation_level=isolation_level,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, fetch_offset=offset, partition_max_bytes=1 << 20, **fields
                        )
                    ],
                )
            ],
        )
        node = self.leader(topic, index) if at is None else at
        return self.call(node, request, FetchResponse, 12).responses[0].partitions[0]

    def values(self, topic: str, index: int = 0, *, offset: int = 0) -> list[bytes]:
        """Values that consumers can read now."""
        from minibroker_protocol.records import decode_records, iter_batches

        data = self.fetch(topic, offset, index=index)
        assert data.error_code == 0, data.error_code
        values = []
        for position, header in iter_batches(data.records or b""):  # type: ignore[arg-type]
            if not header.is_control:
                values += [bytes(r.value or b"") for r in decode_records(data.records, position, header)]  # type: ignore[arg-type]
        return values

    def committed(self, topic: str, index: int = 0) -> list[bytes]:
        """Values that a read_committed consumer has now, by the consumer's algorithm (KIP-98)."""
        from minibroker_protocol.records import decode_records, iter_batches

        data = self.fetch(topic, index=index, isolation_level=1)
        assert data.error_code == 0, data.error_code
        aborted = sorted((a.first_offset, a.producer_id) for a in data.aborted_transactions or [])
        aborting: set[int] = set()
        values = []
        for position, header in iter_batches(data.records or b""):  # type: ignore[arg-type]
            while aborted and aborted[0][0] <= header.last_offset:
                aborting.add(aborted.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                values += [bytes(r.value or b"") for r in decode_records(data.records, position, header)]  # type: ignore[arg-type]
        return values

    def coordinator(self, key: str, key_type: int = 1) -> int:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        node = min(self.cluster.brokers)
        coordinator = self.call(node, request, FindCoordinatorResponse, 4).coordinators[0]
        assert coordinator.error_code == 0, coordinator
        self.settle()
        return coordinator.node_id

    def log_bytes(self, node_id: int, topic: str, index: int = 0) -> bytes:
        log = self.partition(node_id, topic, index).log
        if log.log_end_offset == log.log_start_offset:
            return b""
        return bytes(log.read(log.log_start_offset, 1 << 30, bound=log.log_end_offset).records)

    def stop(self) -> None:
        self.cluster.stop()
