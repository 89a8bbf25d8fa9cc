"""The two set-up commands of README.md, as a reader would copy them. As a program: print number 1 or 2."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[3] / "README.md"
SECTION = re.compile(r"^## Try it\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
LANGUAGES = {"unix": "sh", "windows": "bat"}


def setup_commands(system: str = "unix") -> list[str]:
    """The commands for one kind of system ("unix", "windows"), in the order of the page."""
    section = SECTION.search(README.read_text(encoding="utf-8"))
    if section is None:
        raise ValueError("README.md has no section 'Try it'")
    block = re.search(rf"^```{LANGUAGES[system]}\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError(f"README.md shows no commands for {system}")
    return block[1].splitlines()


if __name__ == "__main__":
    print(setup_commands()[int(sys.argv[1]) - 1])
