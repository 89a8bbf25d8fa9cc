"""Deliberate defects: one line of the broker each, switched on alone, to see that a test notices.

`plant` changes the running program, so it is for tests only; nothing here is imported unless it is asked for. Names and
what each breaks: `DEFECTS`, or `python tests/support defects`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from defects.coordinators import COORDINATORS
from defects.defect import Defect, plant
from defects.loading import LOADING
from defects.serving import SERVING
from defects.storage import STORAGE

__all__ = ["DEFECTS", "Defect", "named", "plant"]

DEFECTS: Final[Mapping[str, Defect]] = MappingProxyType(
    {defect.name: defect for defect in (*STORAGE, *COORDINATORS, *LOADING, *SERVING)}
)
"""Every defect by its name."""


def named(names: Iterable[str]) -> list[Defect]:
    """The defects of these names. Raises ValueError for a name there is not."""
    wanted = list(names)
    unknown = [name for name in wanted if name not in DEFECTS]
    if unknown:
        raise ValueError(f"no such defect: {', '.join(unknown)}")
    return [DEFECTS[name] for name in wanted]
