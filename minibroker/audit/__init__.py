"""Modules under the names they had in 0.1: each gives way to the one that took its place, with a warning.

To be removed in the release after the next.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module


def moved(old: str, new: str) -> None:
    """Let module `old`, which is being imported, be module `new`."""
    warnings.warn(f"{old} is {new} now", DeprecationWarning, stacklevel=3)
    sys.modules[old] = import_module(new)
