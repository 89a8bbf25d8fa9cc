"""The coordinators of one broker: {internal topic: coordinator}.

The broker notifies them of leader changes, new settings and deleted topics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from minibroker.coordinator_runtime.marker_append import append_marker
from minibroker.coordinator_runtime.ports import CoordinatingBroker, Coordinator
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.partitions.partition import Partition

if TYPE_CHECKING:
    from minibroker.coordinator_runtime.group_service import GroupService
    from minibroker.coordinator_runtime.transaction_markers import Marker
    from minibroker.coordinator_runtime.transaction_service import TransactionService
    from minibroker.coordinator_runtime.transaction_verifier import TransactionVerifier
    from minibroker.coordinators.transactions.metadata import TopicPartition


class Coordinators:
    """Each is created for its first request or its topic, so that a start need not import its modules."""

    def __init__(self, broker: CoordinatingBroker) -> None:
        self._broker = broker
        self._started = False
        self._verifier: TransactionVerifier | None = None
        self._made: dict[str, Coordinator] = {}
        #: (marker, partition) → Deferred: end a producer's transaction in a partition that this broker leads.
        self.append_marker: Callable[[Marker, TopicPartition], Deferred[None]] = partial(
            append_marker, broker, lambda: self.groups
        )

    @property
    def transactions(self) -> TransactionService:
        """The transaction coordinator."""
        return self._made.get(TRANSACTION_STATE_TOPIC) or self._of(TRANSACTION_STATE_TOPIC)  # type: ignore[return-value]

    @property
    def transactions_if_any(self) -> TransactionService | None:
        """The transaction coordinator; None before its first use."""
        return cast("TransactionService | None", self._made.get(TRANSACTION_STATE_TOPIC))

    @property
    def verifier(self) -> TransactionVerifier:
        """The verifier, which asks the transaction coordinator, on this broker or another, about a write."""
        if self._verifier is None:
            from minibroker.coordinator_runtime.transaction_verifier import TransactionVerifier

            self._verifier = TransactionVerifier(self._broker, self.transactions)
        return self._verifier

    @property
    def groups(self) -> GroupService:
        """The group coordinator."""
        return self._made.get(CONSUMER_OFFSETS_TOPIC) or self._of(CONSUMER_OFFSETS_TOPIC)  # type: ignore[return-value]

    @property
    def groups_if_any(self) -> GroupService | None:
        """The group coordinator; None before its first use."""
        return cast("GroupService | None", self._made.get(CONSUMER_OFFSETS_TOPIC))

    @property
    def made(self) -> tuple[Coordinator, ...]:
        """The coordinators that were needed so far."""
        return tuple(self._made.values())

    def _of(self, topic: str) -> Coordinator:
        coordinator = self._made.get(topic)
        if coordinator is None:
            coordinator = self._made[topic] = _LATER[topic](self)
            if self._started:
                coordinator.start()
        return coordinator

    def _make_transactions(self) -> Coordinator:
        from minibroker.coordinator_runtime.transaction_service import TransactionService

        return TransactionService(self._broker, self.append_marker)

    def _make_groups(self) -> Coordinator:
        from minibroker.coordinator_runtime.group_service import GroupService

        return GroupService(self._broker, self.verifier)

    def start(self) -> None:
        self._started = True
        for coordinator in self._made.values():
            coordinator.start()

    def close(self) -> None:
        self._started = False
        if self._verifier is not None:
            self._verifier.close()
        for coordinator in self._made.values():
            coordinator.close()

    def elected(self, partition: Partition, epoch: int) -> None:
        """The broker leads `partition` now, a partition of any topic."""
        if partition.topic in self._made or partition.topic in _LATER:
            self._of(partition.topic).elected(partition, epoch)

    def resigned(self, topic: str, index: int) -> None:
        """The broker no longer leads this partition."""
        coordinator = self._made.get(topic)
        if coordinator is not None:
            coordinator.resigned(index)

    def reconfigure(self) -> None:
        """Settings or finalized features have changed."""
        for coordinator in self._made.values():
            coordinator.reconfigure()

    def topic_deleted(self, name: str) -> None:
        for coordinator in self._made.values():
            coordinator.topic_deleted(name)


_LATER: Final[dict[str, Callable[[Coordinators], Coordinator]]] = {
    TRANSACTION_STATE_TOPIC: Coordinators._make_transactions,
    CONSUMER_OFFSETS_TOPIC: Coordinators._make_groups,
}
"""Coordinators that are created when they are first needed."""
