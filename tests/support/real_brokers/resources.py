"""What a process holds, and what of its logs' files it should have let go. Linux only: read from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

DELETED = " (deleted)"


class Resources(NamedTuple):
    """Of a process."""

    memory_mb: float
    files: list[str]
    """Paths as /proc shows them, which says of a file that is deleted that it is."""
    threads: int

    @classmethod
    def of(cls, pid: int) -> Resources:
        text = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines())
        open_files = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                open_files.append(os.readlink(link))
        return cls(int(fields["VmRSS"].split()[0]) / 1024, open_files, int(fields["Threads"]))

    def leaks(self, most_segments: int) -> list[str]:
        """A line for each open file that is deleted, and for each log of which more than `most_segments` are open."""
        segments = Counter(str(Path(file).parent) for file in self.files if file.endswith(".log"))
        return [file for file in sorted(self.files) if file.endswith(DELETED)] + [
            f"{log}: {count} segments" for log, count in sorted(segments.items()) if count > most_segments
        ]

    def __str__(self) -> str:
        return f"{self.memory_mb:.1f} MB, {len(self.files)} files, {self.threads} threads"
