"""Programs of other languages' toolchains that a tier needs; a missing one is a reason to skip, never an error."""

from __future__ import annotations

import shutil


class Unavailable(Exception):
    """A tool or a download this tier needs is not to be had; the text says which."""


def tool(name: str) -> str:
    """Full path of a program, or Unavailable."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not installed")
    return path


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
