"""The stories of the fault table behind a proxy: what became of it is asked of the cluster itself."""

from __future__ import annotations

from fault_stories import Cell
from fault_table import Row, Target

from minibroker import Proxy
from minibroker.client.cluster import ClusterClient
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

_LIST_OFFSETS = 5
_OFFSET_FETCH = 8
_GROUP, _TRANSACTION = 0, 1


class UpstreamCell(Cell):
    """One action of a proxy on one kind of request to a cluster that belongs to others."""

    def __init__(self, proxy: Proxy, upstream: str, target: Target, row: Row) -> None:
        self.proxy = proxy
        self.upstream = upstream
        super().__init__(proxy, target, row)  # type: ignore[arg-type]

    def _create_topic(self) -> None:
        self.proxy.create_topic(self.topic)

    def _log_end(self) -> int:
        with ClusterClient(self.upstream) as client:
            where = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
            topic = m.ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=[where])
            request = m.ListOffsetsRequest(replica_id=-1, topics=[topic])
            leader = client.patiently(lambda: client.leader(self.topic, 0))
            answer = client.ask(leader, request, m.ListOffsetsResponse, _LIST_OFFSETS)
        return int(answer.topics[0].partitions[0].offset)

    def _described(self) -> m.DescribeTransactionsResponse.TransactionState:
        with ClusterClient(self.upstream) as client:
            _, coordinator = client.coordinator(self.name, _TRANSACTION)
            request = m.DescribeTransactionsRequest(transactional_ids=[self.name])
            answer = client.ask(coordinator, request, m.DescribeTransactionsResponse, 0)
        return answer.transaction_states[0]

    def _count(self) -> int | None:
        if self.target.api == "Produce":
            return super()._count()
        return self._described().producer_epoch + 1 if self.row.applied else None

    def _changed(self) -> bool:
        api = self.target.api
        if api == "Produce":
            return super()._changed()
        if api in ("OffsetCommit", "TxnOffsetCommit"):
            return self._offset() != ""
        state = self._described()
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return False
        if api == "InitProducerId":
            return True
        if api == "EndTxn":
            return state.transaction_state in ("PrepareCommit", "CompleteCommit")
        wanted = self.topic if api == "AddPartitionsToTxn" else "__consumer_offsets"
        return any(topic.topic == wanted for topic in state.topics)

    def _offset(self) -> str:
        """The group's, "" without one; "pending" while a transaction has it."""
        partitions = m.OffsetFetchRequest.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group, topics=[partitions])
        request = m.OffsetFetchRequest(groups=[group], require_stable=True)
        with ClusterClient(self.upstream) as client:
            _, coordinator = client.coordinator(self.group, _GROUP)
            answer = client.ask(coordinator, request, m.OffsetFetchResponse, _OFFSET_FETCH)
        partition = answer.groups[0].topics[0].partitions[0]
        if partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            return "pending"
        return "" if partition.committed_offset < 0 else str(partition.committed_offset)
