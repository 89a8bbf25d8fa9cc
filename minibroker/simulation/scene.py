"""The interface of a simulated world that its parts see."""

from __future__ import annotations

from random import Random
from typing import Protocol

from minibroker.cluster.cluster import Cluster
from minibroker.simulation.client import Client
from minibroker.simulation.history import History
from minibroker.simulation.machine import MachineDisk
from minibroker.simulation.network_conditions import NetworkConditions
from minibroker.simulation.plan import Plan
from minibroker.simulation.producers import Producer
from minibroker.simulation.schedule import Schedule


class Scene(Protocol):
    """lives: how often each broker was started."""

    plan: Plan
    random: Random
    schedule: Schedule
    history: History
    conditions: NetworkConditions
    cluster: Cluster
    disks: dict[int, MachineDisk]
    clients: list[Client]
    lives: dict[int, int]

    def tell(self, event: str, text: str) -> None: ...
    def attended(self) -> None: ...
    def launch_transactional(self, transactional_id: str) -> Producer: ...
