"""A case of the museum as a folder, for tests of its runner: the client is called `mini`."""

from __future__ import annotations

from pathlib import Path

CASE = """\
about = "It repeats itself"
happens = "A record is there twice."
thread = "example/mini#7"
client = "mini"
affected = "1.0"
bad = ["1.0"]
good = ["2.0"]
fixed = "2.0"
rule = "duplicate-record"
topics = { orders = 1, in = 1, out = 1 }
"""
SCRIPT = 'about = "A lost answer."\n[[fault]]\napi = "Produce"\naction = "drop_reply"\nnth = 2\ntimes = 2\n'


def write_case(folder: Path, program: str, case: str = CASE, script: str = SCRIPT) -> None:
    """Write the folder."""
    folder.mkdir(parents=True)
    (folder / "case.toml").write_text(case)
    (folder / "script.toml").write_text(script)
    (folder / "client.py").write_text(program)
