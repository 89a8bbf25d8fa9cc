"""Scenarios that ran several times: one result each, and which of them do not always end alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minibroker.kernel.words import counted

from .reports import BAD
from .results import Result
from .weight import heaviest


def merged(results: Sequence[Result]) -> list[Result]:
    """One result a scenario: the heaviest failure where there is one, with how often it failed."""
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.scenario.name, []).append(result)
    return [_of_one(several) for several in by_name.values()]


def unsteady(results: Sequence[Result]) -> list[str]:
    """A line for each scenario that failed in some of its runs only."""
    return [
        f"not always: {result.scenario.name} failed in {result.why.partition(':')[0]}"
        for result in results
        if result.turns
    ]


def _of_one(several: Sequence[Result]) -> Result:
    seconds = sum(result.seconds for result in several)
    bad = [result for result in several if result.outcome in BAD]
    heavy = heaviest(result.breach for result in bad if result.breach)
    worst = next((result for result in bad if result.breach == heavy), (bad or several)[0])
    if not bad or len(bad) == len(several):
        return replace(worst, seconds=seconds)
    often = f"{len(bad)} of {counted(len(several), 'run')}"
    return replace(worst, why=f"{often}: {worst.why}", seconds=seconds, turns=(len(bad), len(several)))
