"""The interface of a simulated world that its parts see."""

from __future__ import annotations

from random import Random
from typing import Protocol

from minibroker.cluster.cluster import Cluster
from minibroker_lab.simulation.client import Client, ClientEnvironment
from minibroker_lab.simulation.machine import MachineDisk
from minibroker_lab.simulation.producers import Producer


class Scene(ClientEnvironment, Protocol):
    """lives: how often each broker was started."""

    random: Random
    cluster: Cluster
    disks: dict[int, MachineDisk]
    clients: list[Client]
    lives: dict[int, int]

    def tell(self, event: str, text: str) -> None: ...
    def attended(self) -> None: ...
    def launch_transactional(self, transactional_id: str) -> Producer: ...
