"""Group requests in short, against a broker in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from memory_cluster import MemoryCluster, R

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.shard import GroupShard
from minibroker.kernel.deferred import Deferred
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, TXN_COMMIT = 9, 4, 4, 5, 9, 9, 3
FIRST_GROUP = "g"

Offsets = Mapping[tuple[str, int], int]


class GroupClient(MemoryCluster):
    """Whole round trips through codec and handler. A request that must be answered at once fails when it is parked."""

    starts = 0

    def __init__(self, config: Mapping[str, str] | None = None, **more: Any) -> None:
        more.setdefault("topics", {"t": 4, "u": 2})
        # Fewer partitions than the default 50 only make the start quicker.
        few = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5"}
        super().__init__({**few, **(config or {})}, **more)
        # A version that brokers of every release know.
        self.call(m.FindCoordinatorRequest(key_type=0, key="g"), m.FindCoordinatorResponse, 2)
        self.call(m.FindCoordinatorRequest(key_type=1, key="x"), m.FindCoordinatorResponse, 2)

    def call(self, request: Any, response: type[R], version: int, *, client_id: str = "test") -> R:
        """An answer for which brokers may have to ask each other, but no time has to pass."""
        answer = self.send(request, version, client_id=client_id)
        if not answer.done:
            self.timers.advance(0)
        answered = answer.result()
        assert isinstance(answered, response)
        return answered

    def shard(self, group_id: str = FIRST_GROUP) -> GroupShard:
        return self.broker.coordinators.groups.shard_for(group_id)[1]

    def classic(self, group_id: str = FIRST_GROUP) -> ClassicGroup:
        group = self.shard(group_id).groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    def restart(self, config: Mapping[str, str] | None = None) -> Self:
        """Stop the broker and start another one on the same disk."""
        self.stop()
        self.starts += 1
        again = type(self)(config, disk=self.disk, now_ms=self.timers.now_ms(), seed=7 + self.starts)
        again.starts = self.starts
        return again

    # -- classic members -----------------------------------------------------------------------------------------------

    def join_later(
        self,
        member_id: str = "",
        *,
        group_id: str = FIRST_GROUP,
        version: int = 3,
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
    ) -> Deferred[m.JoinGroupResponse]:
        request = m.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=d) for n, d in protocols],
        )
        return self.send(request, version)

    def join(self, member_id: str = "", **more: Any) -> m.JoinGroupResponse:
        return self.join_later(member_id, **more).result()

    def sync_later(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = FIRST_GROUP,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        version: int = SYNC,
    ) -> Deferred[m.SyncGroupResponse]:
        request = m.SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=k, assignment=v)
                for k, v in (assignments or {}).items()
            ],
        )
        return self.send(request, version)

    def sync(self, *args: Any, **more: Any) -> m.SyncGroupResponse:
        return self.sync_later(*args, **more).result()

    def heartbeat(
        self, member_id: str, generation_id: int, *, group_id: str = FIRST_GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = m.HeartbeatRequest(
            group_id=group_id, generation_id=generation_id, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode(self.call(request, m.HeartbeatResponse, HEARTBEAT).error_code)

    def leave(self, *members: tuple[str, str | None], group_id: str = FIRST_GROUP) -> tuple[ErrorCode, list[ErrorCode]]:
        identities = [
            m.LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance)
            for member_id, instance in members
        ]
        response = self.call(m.LeaveGroupRequest(group_id=group_id, members=identities), m.LeaveGroupResponse, LEAVE)
        return ErrorCode(response.error_code), [ErrorCode(r.error_code) for r in response.members]

    def stable(self, **more: Any) -> str:
        """A group of one member in generation 1, with the assignment b"a"; the member's id."""
        member_id = self.join(**more).member_id
        assert self.sync(member_id, 1, {member_id: b"a"}).error_code == ErrorCode.NONE
        return member_id

    # -- offsets -------------------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Offsets,
        member_id: str = "",
        generation_id: int = -1,
        *,
        group_id: str = FIRST_GROUP,
        instance: str | None = None,
        version: int = COMMIT,
        metadata: str = "",
        retention_ms: int = -1,
    ) -> list[ErrorCode]:
        """Errors in the order of `offsets`, which must be grouped by topic."""
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                m.OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = m.OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        response = self.call(request, m.OffsetCommitResponse, version)
        return [ErrorCode(p.error_code) for topic in response.topics for p in topic.partitions]

    def fetch(
        self, *partitions: tuple[str, int], group_id: str = FIRST_GROUP, stable: bool = False
    ) -> dict[tuple[str, int], int | ErrorCode]:
        """Offset, or error, of each partition; of all that have one when none is named."""
        names = list(dict.fromkeys(topic for topic, _ in partitions))
        topics = [
            m.OffsetFetchRequest.OffsetFetchRequestTopics(
                name=name, partition_indexes=[p for topic, p in partitions if topic == name]
            )
            for name in names
        ]
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=topics if partitions else None)
        request = m.OffsetFetchRequest(groups=[group], require_stable=stable)
        [of_group] = self.call(request, m.OffsetFetchResponse, FETCH).groups
        assert of_group.error_code == ErrorCode.NONE
        return {
            (topic.name, p.partition_index): ErrorCode(p.error_code) if p.error_code else p.committed_offset
            for topic in of_group.topics
            for p in topic.partitions
        }

    # -- transactions --------------------------------------------------------------------------------------------------

    def producer(self, transactional_id: str = "x", *, timeout_ms: int = 60_000) -> tuple[int, int]:
        request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        response = self.call(request, m.InitProducerIdResponse, 4)
        assert response.error_code == ErrorCode.NONE
        return response.producer_id, response.producer_epoch

    def add_offsets(
        self, producer: tuple[int, int], *, group_id: str = FIRST_GROUP, transactional_id: str = "x"
    ) -> ErrorCode:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], group_id=group_id
        )
        return ErrorCode(self.call(request, m.AddOffsetsToTxnResponse, 3).error_code)

    def commit_in_txn(
        self,
        producer: tuple[int, int],
        offsets: Offsets,
        member_id: str = "",
        generation_id: int = -1,
        *,
        group_id: str = FIRST_GROUP,
        instance: str | None = None,
        transactional_id: str = "x",
        version: int = TXN_COMMIT,
    ) -> list[ErrorCode]:
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata="m"
                )
            )
        request = m.TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        response = self.call(request, m.TxnOffsetCommitResponse, version)
        return [ErrorCode(p.error_code) for topic in response.topics for p in topic.partitions]

    def end(
        self, producer: tuple[int, int], *, commit: bool, transactional_id: str = "x", version: int = 3
    ) -> ErrorCode:
        request = m.EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return ErrorCode(self.call(request, m.EndTxnResponse, version).error_code)

    def advance(self, delta_ms: int) -> None:
        """Let real time go by, and the broker clock with it."""
        self.timers.advance(delta_ms)
