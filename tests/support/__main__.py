"""Runs a program of a room, with every room on the path: `python tests/support NAME [ARGUMENT …]`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOMS = sorted(path for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__")


def programs() -> list[str]:
    """The names of the modules that do something when they are run."""
    files = (path for room in ROOMS for path in (*room.glob("*.py"), *room.glob("*/__main__.py")))
    mains = (path for path in files if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8"))
    return sorted(path.parent.name if path.stem == "__main__" else path.stem for path in mains)


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in programs():
        sys.path[:1] = map(str, ROOMS)
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.exit(f"usage: python tests/support NAME [ARGUMENT …], where NAME is one of {', '.join(programs())}")


if __name__ == "__main__":
    main()
