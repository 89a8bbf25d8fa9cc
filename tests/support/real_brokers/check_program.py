"""Programs in other languages print one line a check: `ok NAME`, `FAIL NAME: why` or `SKIP NAME: why`."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest


def declared_checks(source: Path, pattern: str) -> list[str]:
    """Names of the checks that a program declares, found by a pattern with one group."""
    names = re.findall(pattern, source.read_text(encoding="utf-8"), re.MULTILINE)
    if not names:
        raise AssertionError(f"no checks found in {source.name}")
    return names


class Outcomes:
    """What a finished program said of its checks."""

    def __init__(self, finished: CompletedProcess[str]) -> None:
        self.finished = finished
        self._lines: dict[str, str] = {}
        for line in finished.stdout.splitlines():
            words = line.partition(":")[0].split()
            if len(words) == 2 and words[0] in ("ok", "FAIL", "SKIP"):
                self._lines[words[1]] = line

    def verify(self, check: str) -> None:
        """Fail with the program's own words when the check is not ok, or was never reached."""
        said = self._lines.get(check, f"not reached, exit code {self.finished.returncode}")
        if said.startswith("SKIP"):
            pytest.skip(said.partition(": ")[2])
        assert said == f"ok {check}", f"{said}\n{self.finished.stderr[-3000:]}"
