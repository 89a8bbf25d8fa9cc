"""Notes which transaction a late marker hits: the fact for the hole "late WriteTxnMarkers"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from minibroker.coordinator_runtime.transaction_markers import Marker
from minibroker.coordinators.transactions import records as states
from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.states import PREPARE_COMMIT, PREPARED
from minibroker_lab.simulation.evidence import Identity, TopicPartition
from minibroker_lab.simulation.producers import Producer
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ApiError
from minibroker_protocol.messages.transactions import WriteTxnMarkersRequest
from minibroker_protocol.records import BatchHeader, decode_records, iter_batches

if TYPE_CHECKING:
    from collections.abc import Hashable

    from minibroker.coordinator_runtime.transaction_markers import EndedTransaction
    from minibroker.partitions.partition import Partition
    from minibroker_lab.simulation.scene import Scene
    from minibroker_storage.log import PartitionLog

_WHOLE = 1 << 30


class LateMarkers:
    """Told of markers before partitions take them. One is late when its sender has given it up, or when its coordinator
    had a successor since: below transaction.version 2 nothing tells it from a marker of the transaction that is open
    there by then. Partitions refuse it only where a later coordinator has written one for the same producer."""

    def __init__(self, world: Scene) -> None:
        self._world = world

    def arrives(self, node_id: int, request: Request, *, given_up: bool = False) -> None:
        """A broker begins to serve another broker's request."""
        if not isinstance(request, WriteTxnMarkersRequest):
            return
        for written in request.markers:
            marker = Marker(
                written.producer_id,
                written.producer_epoch,
                written.transaction_result,
                written.coordinator_epoch,
                written.transaction_version,
            )
            places = [(topic.name, index) for topic in written.topics for index in topic.partition_indexes]
            self._meets(node_id, marker, places, given_up=given_up)

    def sends(self, node_id: int, job: EndedTransaction, places: Iterable[TopicPartition]) -> None:
        """A coordinator sends markers; those for partitions of its own broker go there without a request."""
        self._meets(node_id, job.marker, places, given_up=False)

    def _meets(self, node_id: int, marker: Marker, places: Iterable[TopicPartition], *, given_up: bool) -> None:
        transactional_id = self._transactional_id(marker)
        if not (given_up or self._deposed(marker, transactional_id)):
            return
        for place in places:
            partition = self._led(node_id, place)
            if partition is not None:
                self._note(partition, place, marker, transactional_id)

    def _note(self, partition: Partition, place: TopicPartition, marker: Marker, transactional_id: str | None) -> None:
        evidence, version = self._world.history.evidence, self._world.plan.client_version
        identity = marker.producer_id, marker.producer_epoch
        entry = partition.log.producers.entry(marker.producer_id) if partition.has_log else None
        open_from = -1
        if entry is not None:
            open_from = entry.current_txn_first_offset
            if entry.epoch > marker.producer_epoch or entry.coordinator_epoch > marker.coordinator_epoch:
                return  # refused
            if version >= 2 and open_from >= 0:
                return  # refused, or the end of just this transaction, whose epoch is its own
        if open_from < 0 or self._is_due(place, marker, transactional_id):
            evidence.idle_markers.add((place, identity))
            return
        transaction = self._transaction(partition, place, identity, open_from)
        self._world.tell("late WriteTxnMarkers", f"a late marker meets {transaction}")
        evidence.marked[transaction] = identity

    # -- the sender and its purpose ------------------------------------------------------------------------------------

    def _producers(self) -> list[Producer]:
        return [client for client in self._world.clients if isinstance(client, Producer)]

    def _transactional_id(self, marker: Marker) -> str | None:
        return next((c.transactional_id for c in self._producers() if c.producer_id == marker.producer_id), None)

    def _deposed(self, marker: Marker, transactional_id: str | None) -> bool:
        if transactional_id is None:
            return False
        state = self._world.cluster.image.partition(*self._world.plan.state_log(transactional_id))
        return state is not None and marker.coordinator_epoch < state.leader_epoch

    def _is_due(self, place: TopicPartition, marker: Marker, transactional_id: str | None) -> bool:
        """Whether the coordinator is about to send the same marker; then the late one has no other effect."""
        metadata = None if transactional_id is None else self._last_state(transactional_id)
        return (
            metadata is not None
            and metadata.state in PREPARED
            and metadata.producer == (marker.producer_id, marker.producer_epoch)
            and (metadata.state is PREPARE_COMMIT) == marker.commit
            and place in metadata.partitions
        )

    def _last_state(self, transactional_id: str) -> TransactionMetadata | None:
        """The last state in the coordinator's log, committed or not; None while it has no leader."""
        place = self._world.plan.state_log(transactional_id)
        partition = self._led(self._world.cluster.image.leader_of(*place) or -1, place)
        last = None
        if partition is not None and partition.has_log:
            layout = self._world.plan.rules.transaction_state_layout
            for data, at, header in _batches(partition.log, partition.log.log_start_offset):
                for record in decode_records(data, at, header) if not header.is_control else ():
                    value = None if record.value is None else bytes(record.value)
                    state = states.decode(bytes(record.key or b""), value, layout)
                    if state is not None and state.transactional_id == transactional_id:
                        last = state.metadata
        return last

    # -- where it arrives ----------------------------------------------------------------------------------------------

    def _led(self, node_id: int, place: TopicPartition) -> Partition | None:
        """The partition at this broker, if it leads it, as the controller knows it."""
        broker = self._world.cluster.brokers.get(node_id)
        if broker is None or self._world.cluster.image.leader_of(*place) != node_id:
            return None
        try:
            return broker.partition(*place)
        except ApiError:
            return None

    def _transaction(self, partition: Partition, place: TopicPartition, identity: Identity, offset: int) -> Hashable:
        """The one that is open from `offset` on: of the record there, or of the offsets that the client sent last."""
        for data, at, header in _batches(partition.log, max(offset, partition.log.log_start_offset)):
            if (header.producer_id, header.producer_epoch) == identity and not header.is_control:
                key = bytes(decode_records(data, at, header)[0].value or b"").decode(errors="replace")
                if key in self._world.history.records:
                    return self._world.history.records[key].transaction
                break
        clients = [client for client in self._producers() if (client.producer_id, client.epoch) == identity]
        sent = [client.offsets_in for client in clients if client.offsets_in is not None]
        return sent[0] if sent else next((client.newest_transaction for client in clients), None)


def _batches(log: PartitionLog, offset: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    while offset < log.log_end_offset:
        data = bytes(log.read(offset, _WHOLE, bound=log.log_end_offset).records)
        if not data:
            return
        for at, header in iter_batches(data):
            yield data, at, header
            offset = header.next_offset
