"""Brokers that are stopped when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from seed_client import SeedClient

from minibroker.releases.semantics import PRESETS, Semantics

Start = Callable[..., SeedClient]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(semantics or its name, config, …) → a client of a fresh broker."""
    running: list[SeedClient] = []

    def begin(semantics: Semantics | str = "kafka", config: dict[str, str] | None = None, **more: object) -> SeedClient:
        chosen = PRESETS[semantics] if isinstance(semantics, str) else semantics
        running.append(SeedClient(chosen, config, **more))  # type: ignore[arg-type]
        return running[-1]

    yield begin
    for client in running:
        client.stop()
