"""The order of a run: what a client does first comes first, and what may end a broker last.

It follows from a scenario's requests, so that no list of scenarios or groups has to be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from .routing import TO_GROUP, TO_TRANSACTION
from .scenario import Scenario, Step, every_step

_BYTES = ("rawBody", "cut", "tail", "sizeDelta", "payload", "hex")
"""Options of a request, or of a batch, that no client would send so."""
_ASKS_FOR_IDS, _ASKS_FOR_VERSIONS = "InitProducerId", "ApiVersions"
"""Clients do send the second in a version that the broker lacks."""


class Phase(IntEnum):
    """What a scenario needs of the broker in addition to what earlier phases need."""

    CONNECT = 0
    IDEMPOTENCE = 1
    TRANSACTIONS = 2
    GROUPS = 3
    MALFORMED = 4


def phase(scenario: Scenario) -> Phase:
    return max(map(_of_step, every_step((*scenario.before, *scenario.steps))), default=Phase.CONNECT)


def by_phase(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """The same scenarios; within a phase their order stays."""
    return sorted(scenarios, key=phase)


def _of_step(step: Step) -> Phase:
    header = step.get("header") or {}
    unknown = "apiKey" in header or ("apiVersion" in header and step.api != _ASKS_FOR_VERSIONS)
    batches = list(_batches(step))
    if (
        step.kind == "raw"
        or unknown
        or any(option in options for options in (step.options, *batches) for option in _BYTES)
    ):
        return Phase.MALFORMED
    if step.api in TO_GROUP:
        return Phase.GROUPS
    transactional = any(batch.get("txn") for batch in batches) or (step.get("req") or {}).get("transactionalId")
    if transactional or step.api == "WriteTxnMarkers" or step.api in TO_TRANSACTION - {_ASKS_FOR_IDS}:
        return Phase.TRANSACTIONS
    return Phase.IDEMPOTENCE if step.api == _ASKS_FOR_IDS or any("pid" in batch for batch in batches) else Phase.CONNECT


def _batches(step: Step) -> Iterator[Mapping[str, Any]]:
    at = step.get("at")
    several = at.values() if isinstance(at, dict) else ()
    for value in (step.get("batch"), *(step.get("batches") or ()), *several):
        yield from (value or {},) if isinstance(value, dict | None) else value
