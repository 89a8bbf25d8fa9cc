"""How much of a search the default tests make: a fixed sample; docs/how-to/developers/development.md has the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

SAMPLE, WHOLE = "sample", "whole"
"""Hypothesis profiles: the same few examples in every run, or all of them from another seed each time."""

_SHARE = 6
_FEWEST = 10


def search(examples: int, *, steps: int | None = None) -> settings:
    """Settings of a test of generated inputs that makes this many examples in the whole search; `steps` is how many
    a state machine takes in each."""
    if settings.get_current_profile_name() != WHOLE:
        examples = max(_FEWEST, examples // _SHARE)
    chosen = settings(max_examples=examples)
    return chosen if steps is None else settings(chosen, stateful_step_count=steps)


def thinned(cases: Sequence[Any], every: int, *, several: bool = False) -> list[Any]:
    """Parameters of a test: the first of each `every` for the default tests, the others for the tier `matrix`. With
    `several` each case is the values of several parameters."""
    return [
        pytest.param(*(case if several else (case,)), marks=[pytest.mark.matrix] if number % every else [])
        for number, case in enumerate(cases)
    ]
