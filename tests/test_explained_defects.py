"""tests/support/damage_and_defects/mutants.toml explains small defects of the code as it is today."""

from __future__ import annotations

import tomllib

from packages import ROOT

EXPLAINED = ROOT / "tests" / "support" / "damage_and_defects" / "mutants.toml"


def test_each_explained_defect_is_of_a_line_that_stands_in_its_file() -> None:
    """What has been rewritten is to be planted again, not to be passed over for a reason that was another line's."""
    stale = []
    for entry in tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["mutant"]:
        path = ROOT / entry["path"]
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if entry["before"] not in map(str.strip, lines):
            stale.append((entry["path"], entry["before"]))
    assert stale == []
