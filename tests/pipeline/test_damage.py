"""Whatever is wrong with the files, an audit of them comes to an end and says so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from planting import golden_files, write_files
from sampling import thinned

pytest.importorskip("pyarrow")

from minibroker.cli import main

SETS = ("clean", "killed", "loop", "retention", "compacted", "reassigned", "own-kip")


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The content with a bit turned over, bytes missing, overwritten or added, or without its end."""
    data, at = bytearray(content), chance.randrange(len(content))
    how = chance.randrange(5)
    if how == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at : at + 8] = chance.randbytes(8)
    elif how == 3:
        del data[at : at + chance.randrange(1, 40)]
    else:
        data[at:at] = chance.randbytes(chance.randrange(1, 40))
    return bytes(data)


@pytest.mark.parametrize("seed", thinned(range(28), 3))
def test_damaged_files(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(seed)
    files = dict(golden_files(SETS[seed % len(SETS)]))
    for _ in range(chance.choice([1, 3, 9])):
        name = chance.choice([name for name, content in sorted(files.items()) if content])
        files[name] = damaged(files[name], chance)
    path = write_files(files, tmp_path / "data")
    page = tmp_path / "report.html"
    logs = {path.split("/")[-2].rpartition("-")[0] for path in files if path.endswith(".log")}
    topics = sorted(topic for topic in logs if not topic.startswith("__"))
    options = ["--content", "--lineage", f"{topics[0]}={topics[-1]}", "--html", str(page)]
    code = main(["audit", str(path), *options])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert code == (0 if printed.out.splitlines()[-1].startswith("0 findings") else 1)
    assert page.read_text().endswith("</html>\n")
