"""Groups and transactional ids in every state, and how each of those stories must go on in another broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from many_brokers import ManyBrokers

from minibroker.coordinators.transactions.effects import SendMarkers
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch

R = TypeVar("R", bound=Response)

COUNT = 5
CONFIG = {"offsets.topic.num.partitions": str(COUNT), "transaction.state.log.num.partitions": str(COUNT)}
TOPIC = "t"
OFFSETS_TOPIC = "__consumer_offsets"
GROUPS = (
    "orders",
    "my-group",
    "console-consumer",
    "shipping",
    "consumers",
    "tx-zero",
    "payments",
    "polygenelubricants",
)
MEMBERS, CONSUMERS, DELETED = "tx-zero", "consumers", "shipping"
COMPLETE, FENCED = "tx-complete", "tx-fenced"
OPEN, ANNOUNCED, DECIDED, ABANDONED = "tx-joined", "tx-announced", "tx-next", "tx-near"
OPEN_AT_HOME = "tx-2"
TRANSACTIONS = (COMPLETE, FENCED, OPEN, ANNOUNCED, DECIDED, ABANDONED, OPEN_AT_HOME)
_WAIT = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


class Ids:
    """Requests in the shape of one client of a whole cluster, each to the coordinator that Kafka's protocol names."""

    def __init__(self, cluster: ManyBrokers) -> None:
        self.cluster = cluster

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(
        self, kind: int, name: str, request: Request, response: type[R], version: int, code: Callable[[R], int]
    ) -> R:
        """kind: 0 for the coordinator of a group, 1 of a transactional id. Again while that one is not ready."""
        for _ in range(200):
            find = m.FindCoordinatorRequest(key=name, key_type=kind)
            coordinator = self.cluster.call(1, find, m.FindCoordinatorResponse, 2, wait_ms=2000)
            if coordinator.error_code == ErrorCode.NONE:
                answer = self.cluster.call(coordinator.node_id, request, response, version, wait_ms=2000)
                if code(answer) not in _WAIT:
                    return answer
            self.cluster.settle(50)
        raise AssertionError(f"no coordinator of {name} that answers")

    def commit(self, group: str, offset: int, *, member: str = "", generation: int = -1, partition: int = 0) -> None:
        request = m.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        m.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=group
                        )
                    ],
                )
            ],
        )
        code = lambda a: a.topics[0].partitions[0].error_code  # noqa: E731
        assert code(self.ask(0, group, request, m.OffsetCommitResponse, 8, code)) == ErrorCode.NONE

    def offsets(self, group: str, *, stable: bool = False) -> dict[str, int]:
        """Committed offsets by partition of `TOPIC`; minus the error's code where there is one."""
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
        if stable:
            topic = m.OffsetFetchRequest.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0, 1])
            wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
        request = m.OffsetFetchRequest(groups=[wanted], require_stable=stable)
        answer = self.ask(0, group, request, m.OffsetFetchResponse, 8, lambda a: a.groups[0].error_code)
        return {
            f"{topic.name}-{p.partition_index}": -p.error_code if p.error_code else p.committed_offset
            for topic in answer.groups[0].topics
            for p in topic.partitions
        }

    def delete_group(self, group: str) -> None:
        request = m.DeleteGroupsRequest(groups_names=[group])
        code = lambda a: a.results[0].error_code  # noqa: E731
        assert code(self.ask(0, group, request, m.DeleteGroupsResponse, 1, code)) == ErrorCode.NONE

    def join(self, group: str) -> tuple[str, int]:
        """(member id, generation) of a classic group's only member."""
        request = m.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )
        joined = self.ask(0, group, request, m.JoinGroupResponse, 3, lambda a: a.error_code)
        assert joined.error_code == ErrorCode.NONE
        sync = m.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"a")],
        )
        synced = self.ask(0, group, sync, m.SyncGroupResponse, 3, lambda a: a.error_code)
        assert synced.error_code == ErrorCode.NONE
        return joined.member_id, joined.generation_id

    def heartbeat(self, group: str, member: str, generation: int) -> int:
        request = m.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
        return self.ask(0, group, request, m.HeartbeatResponse, 3, lambda a: a.error_code).error_code

    def consumer_heartbeat(self, group: str, member: str, epoch: int) -> m.ConsumerGroupHeartbeatResponse:
        """epoch 0 joins."""
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=300_000 if epoch == 0 else -1,
            subscribed_topic_names=[TOPIC] if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else None,
        )
        return self.ask(0, group, request, m.ConsumerGroupHeartbeatResponse, 0, lambda a: a.error_code)

    def producer(self, name: str) -> tuple[int, int]:
        request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000)
        answer = self.ask(1, name, request, m.InitProducerIdResponse, 4, lambda a: a.error_code)
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    def add(self, name: str, producer: tuple[int, int], partition: int) -> int:
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])
            ],
        )
        code = lambda a: a.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code  # noqa: E731
        return code(self.ask(1, name, request, m.AddPartitionsToTxnResponse, 3, code))

    def produce(self, name: str, producer: tuple[int, int], partition: int) -> None:
        assert self.add(name, producer, partition) == ErrorCode.NONE
        batch = build_batch(
            [Record(0, self.cluster.clock.now_ms(), None, name.encode(), [])],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
            transactional=True,
        )
        request = self.cluster.produce_request(TOPIC, batch, index=partition)
        request.transactional_id = name
        leader = self.cluster.leader(TOPIC, partition)
        answer = self.cluster.call(leader, request, m.ProduceResponse, 9, wait_ms=2000)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    def add_offsets(self, name: str, producer: tuple[int, int], group: str) -> None:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id=group
        )
        answer = self.ask(1, name, request, m.AddOffsetsToTxnResponse, 3, lambda a: a.error_code)
        assert answer.error_code == ErrorCode.NONE

    def send_offsets(self, name: str, producer: tuple[int, int], group: str, offset: int) -> int:
        request = m.TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=offset, committed_metadata=name
                        )
                    ],
                )
            ],
        )
        code = lambda a: a.topics[0].partitions[0].error_code  # noqa: E731
        return code(self.ask(0, group, request, m.TxnOffsetCommitResponse, 3, code))

    def end(self, name: str, producer: tuple[int, int], *, commit: bool) -> int:
        request = m.EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return self.ask(1, name, request, m.EndTxnResponse, 3, lambda a: a.error_code).error_code

    def listed_groups(self) -> list[str]:
        """Every group as often as a broker lists it."""
        names = []
        for node in self.cluster.cluster.brokers:
            answer = self.cluster.call(node, m.ListGroupsRequest(), m.ListGroupsResponse, 4)
            names += [group.group_id for group in answer.groups]
        return sorted(names)

    def listed_transactions(self) -> dict[str, list[tuple[str, int]]]:
        """(state, producer id) of every id, as often as a broker lists it."""
        states: dict[str, list[tuple[str, int]]] = {}
        for node in self.cluster.cluster.brokers:
            request = m.ListTransactionsRequest(state_filters=[], producer_id_filters=[])
            for listed in self.cluster.call(node, request, m.ListTransactionsResponse, 0).transaction_states:
                states.setdefault(listed.transactional_id, []).append((listed.transaction_state, listed.producer_id))
        return {name: states[name] for name in sorted(states)}


def write(ids: Ids, *, decided: bool = True) -> dict[str, Any]:
    """Every state there is; what the clients hold of it afterwards. decided: also ended transactions without their
    markers, which only a broker of ours can be made to leave."""
    cluster = ids.cluster
    cluster.create(TOPIC, [[*cluster.cluster.brokers]] * 2)
    for number, group in enumerate(GROUPS[:4] + GROUPS[6:]):
        ids.commit(group, 100 + number)
        ids.commit(group, number, partition=1)
    ids.commit("orders", 7)
    ids.delete_group(DELETED)
    member, generation = ids.join(MEMBERS)
    ids.commit(MEMBERS, 55, member=member, generation=generation)
    epoch = ids.consumer_heartbeat(CONSUMERS, "a-member", 0).member_epoch
    done = ids.producer(COMPLETE)
    ids.produce(COMPLETE, done, 0)
    ids.add_offsets(COMPLETE, done, "my-group")
    assert ids.send_offsets(COMPLETE, done, "my-group", 31) == ErrorCode.NONE
    assert ids.end(COMPLETE, done, commit=True) == ErrorCode.NONE
    cluster.settle(500)
    fenced, current = ids.producer(FENCED), ids.producer(FENCED)
    held: dict[str, tuple[int, int]] = {}
    begin(ids, held, OPEN, 0, "orders", "payments")
    begin(ids, held, OPEN_AT_HOME, 1, "my-group")
    if decided:
        for broker in cluster.cluster.brokers.values():
            broker.coordinators.transactions.effects.hold(
                lambda effect: isinstance(effect, SendMarkers) and effect.transactional_id in (DECIDED, ABANDONED)
            )
        begin(ids, held, DECIDED, 0, "console-consumer")
        begin(ids, held, ABANDONED, 1, "orders")
        assert ids.end(DECIDED, held[DECIDED], commit=True) == ErrorCode.NONE
        assert ids.end(ABANDONED, held[ABANDONED], commit=False) == ErrorCode.NONE
    held[ANNOUNCED] = ids.producer(ANNOUNCED)
    ids.add_offsets(ANNOUNCED, held[ANNOUNCED], "my-group")
    cluster.settle(500)
    return {"fenced": fenced, "current": current, "held": held, "member": [member, generation], "epoch": epoch}


def begin(ids: Ids, held: dict[str, tuple[int, int]], name: str, partition: int, *groups: str) -> None:
    """A transaction with a record and, for each group, the offset 901 for the first one held, 902 for the next …"""
    held[name] = ids.producer(name)
    ids.produce(name, held[name], partition)
    for group in groups:
        ids.add_offsets(name, held[name], group)
        assert ids.send_offsets(name, held[name], group, 900 + len(held)) == ErrorCode.NONE


def go_on(ids: Ids, clients: dict[str, Any]) -> None:
    """Each story to its end: what was committed is there, what was not is not, and nothing is left open."""
    cluster, held = ids.cluster, {name: tuple(producer) for name, producer in clients["held"].items()}
    cluster.settle(500)
    if DECIDED in held:
        assert ids.listed_transactions()[DECIDED] == [("CompleteCommit", held[DECIDED][0])]
        assert ids.listed_transactions()[ABANDONED] == [("CompleteAbort", held[ABANDONED][0])]
        assert ids.offsets("console-consumer", stable=True)[f"{TOPIC}-0"] == 903
    assert ids.add(FENCED, tuple(clients["fenced"]), 0) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    ids.produce(FENCED, tuple(clients["current"]), 0)
    assert ids.end(FENCED, tuple(clients["current"]), commit=False) == ErrorCode.NONE
    assert ids.offsets("orders", stable=True)[f"{TOPIC}-0"] == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert ids.end(OPEN, held[OPEN], commit=True) == ErrorCode.NONE
    assert ids.end(OPEN_AT_HOME, held[OPEN_AT_HOME], commit=False) == ErrorCode.NONE
    cluster.settle(500)
    assert ids.offsets("orders", stable=True) == {"t-0": 901, "t-1": 0}
    assert ids.offsets("payments", stable=True) == {"t-0": 901, "t-1": 4}
    assert ids.offsets("my-group", stable=True) == {"t-0": 31, "t-1": 1}
    assert ids.send_offsets(ANNOUNCED, held[ANNOUNCED], "my-group", 77) == ErrorCode.NONE
    assert ids.end(ANNOUNCED, held[ANNOUNCED], commit=True) == ErrorCode.NONE
    cluster.settle(500)
    assert ids.offsets("my-group", stable=True) == {"t-0": 77, "t-1": 1}
    assert ids.offsets(DELETED) == {}
    assert ids.offsets(MEMBERS) == {"t-0": 55}
    assert ids.heartbeat(MEMBERS, *clients["member"]) == ErrorCode.NONE
    assert ids.consumer_heartbeat(CONSUMERS, "a-member", clients["epoch"]).error_code == ErrorCode.NONE
    seen = [name.encode() for name in (COMPLETE, OPEN, DECIDED) if name != DECIDED or DECIDED in held]
    assert cluster.committed(TOPIC, 0) == seen
    assert cluster.committed(TOPIC, 1) == []
    for broker in cluster.cluster.brokers.values():
        for partition in broker.partitions():
            if partition.is_leader and partition.has_log:
                assert partition.log.last_stable_offset == partition.log.high_watermark, partition
