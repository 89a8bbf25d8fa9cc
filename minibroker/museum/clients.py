"""Client libraries by version: each in an environment of its own in the user's cache, installed once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minibroker.judge.run import end
from minibroker.program import uninterrupted

_INSTALL_SECONDS = 300
_NAME = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)")


class ClientError(ValueError):
    """A version that cannot be had here; the text is one line that says why."""


def parse_client(text: str) -> tuple[str, str]:
    """``NAME==VERSION``. Raises ValueError."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"expected NAME==VERSION, such as confluent-kafka==2.3.0, got {text!r}")
    return match[1], match[2]


def cache() -> Path:
    """Where environments are kept: ``minibroker/clients`` in $XDG_CACHE_HOME, which is ~/.cache when not set."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "minibroker" / "clients"


def interpreter(name: str, version: str) -> Path:
    """The Python that has this version of a client, installed when it is asked for first. Raises ClientError."""
    kept = cache() / f"{sys.implementation.cache_tag}-{name}=={version}"
    inside = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
    if not (kept / inside).exists():
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=kept.parent) as place:
                new = Path(place, "env")
                _run([sys.executable, "-m", "venv", str(new)], place)
                pip = [str(new / inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                _run([*pip, "--retries", "1", "--only-binary", ":all:", f"{name}=={version}"], place)
                if not kept.exists():  # another process may have been quicker
                    new.rename(kept)
        except OSError as error:
            raise ClientError(f"{name} {version} cannot be installed: {error.strerror or error}") from None
    return kept / inside


def _run(command: Sequence[str], place: str) -> None:
    said = Path(place, "said")
    child = None
    try:
        with open(said, "wb") as output:
            with uninterrupted():
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            status = child.wait(_INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise ClientError(f"{command[-1]} was not installed within {_INSTALL_SECONDS} s") from None
    finally:
        if child is not None:
            end(child)
    if status:
        lines = [line for line in said.read_text("utf-8", "replace").splitlines() if line.strip()]
        wrong = [line for line in lines if line.startswith("ERROR: ")] or lines or [f"exit status {status}"]
        raise ClientError(f"{command[-1]} cannot be installed: {wrong[-1].removeprefix('ERROR: ')}")
