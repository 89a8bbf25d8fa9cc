"""The data directories in tests/golden, unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def unpack(archive: str, into: Path) -> Path:
    """Unpack an archive, named by its path below tests/golden, and return where it lies."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(GOLDEN / archive) as tar:
        for member in tar.getmembers():
            path = into / member.name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())
    return into
