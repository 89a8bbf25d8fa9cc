"""Collects the records of one decision about a member of a KIP-848 group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.environment import ClientInfo
from minibroker.coordinators.result import CoordinatorRecord
from minibroker.metadata.image import MetadataImage


@dataclass(slots=True)
class Change:
    """One decision in progress: the member, the metadata used, the records so far, and the resulting group.

    group: the current state; a copy if the decision is made on another thread.
    live: the group itself.
    effects: timers and the like, which `take_effect` runs afterwards.
    """

    client: ClientInfo
    group: ConsumerGroup
    image: MetadataImage
    live: ConsumerGroup
    records: list[CoordinatorRecord] = field(default_factory=list)
    effects: list[Callable[[], None]] = field(default_factory=list)

    @property
    def group_id(self) -> str:
        return self.group.group_id

    def take_effect(self) -> None:
        effects, self.effects = self.effects, []
        for effect in effects:
            effect()

    def see_image(self) -> None:
        self.live.seen_image = self.image
