"""The packages in a zip archive, as `--py-files` sends them to the executors of a Spark cluster."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from planting import Planted, write_files

ROOT = Path(__file__).parents[2]
PLACES = {
    "minibroker": ROOT,
    "minibroker_protocol": ROOT / "protocol",
    "minibroker_storage": ROOT / "storage",
    "minibroker_pipeline": ROOT / "pipeline",
}
PROGRAM = """
import sys
archive, root, data = sys.argv[1:]
installed = [path for path in sys.path if "site-packages" in path or not path.startswith(root)]
sys.path[:] = [archive, *filter(None, installed)]
import minibroker.rules.catalogue
assert minibroker.rules.catalogue.__file__.startswith(archive), minibroker.rules.catalogue.__file__
from minibroker_pipeline.planning import plan_for
from minibroker_pipeline.engine import audit_here
from minibroker.config.keys import BROKER_KEYS
figures, found, _ = audit_here(plan_for(data))
print(len(BROKER_KEYS) > 100, sorted({one.rule for one in found}))
"""


@pytest.mark.slow
def test_the_audit_runs_from_a_zip_archive(tmp_path: Path) -> None:
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=11)
    data = write_files(planted.files, tmp_path / "data")
    archive = tmp_path / "minibroker.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for package, place in PLACES.items():
            for path in sorted((place / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    packed.write(path, path.relative_to(place))
    argv = [sys.executable, "-c", PROGRAM, str(archive), str(ROOT), str(data)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True ['sequence-gap']\n"
