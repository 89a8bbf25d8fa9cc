"""The scripts of findings/: each is in the index, installs pinned packages by their names, and compares what it saw.

They are not run here: they install packages.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

FINDINGS = Path(__file__).parents[1] / "findings"
SCRIPTS = sorted(path for path in FINDINGS.glob("*.sh") if path.name != "lib.sh")
PINNED = {
    "python_packages": r"[\w-]+==[\d.]+",
    "node_packages": r"[@\w/-]+@[\d.]+",
    "maven_jars": r"[\w.-]+:[\w.-]+:[\d.]+",
}


def test_every_script_has_one_line_in_the_index() -> None:
    index = (FINDINGS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| \S.* \d.* \| \S.* \|$", index, re.M)
    assert rows == [(path.stem, path.name) for path in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_pins_its_packages_and_says_what_it_saw(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    installs = re.findall(r"^(python_packages|node_packages|maven_jars) (.+)$", text, re.M)
    assert installs
    pinned = {
        "python_packages": r"[\w-]+==[\d.]+",
        "node_packages": r"[@\w/-]+@[\d.]+",
        "maven_jars": r"[\w.-]+:[\w.-]+:[\d.]+",
    }
    for how, packages in installs:
        assert all(re.fullmatch(pinned[how], package) for package in packages.split()), packages
    assert "\n# Expected: " in text
    assert "\n# Seen: " in text
    assert "\nsame seen <<" in text
    assert "://" not in text
    assert "minibroker" not in text


@pytest.mark.skipif(os.name == "nt", reason="bash")
@pytest.mark.parametrize(("seen", "status"), [("a\nb\n", 0), ("a\n", 1)])
def test_a_change_fails_and_the_folder_goes(tmp_path: Path, seen: str, status: int) -> None:
    script = tmp_path / "it.sh"
    compare = f"printf '{seen}' > seen\nsame seen << 'EXPECTED'\na\nb\nEXPECTED\n"
    script.write_text(f"source '{FINDINGS / 'lib.sh'}'\n{compare}", encoding="utf-8", newline="\n")
    place = tmp_path / "place"
    place.mkdir()
    ran = subprocess.run(
        ["bash", str(script)], env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True
    )
    assert (ran.returncode, "-b" in ran.stdout) == (status, status == 1)
    assert list(place.iterdir()) == []
