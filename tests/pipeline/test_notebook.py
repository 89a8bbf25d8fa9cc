"""The notebook of docs/how-to/spark: its cells do what it shows below them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("pyspark")

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "spark" / "audit.ipynb"
SECONDS = re.compile(r"for \d+ s")


def printed(cell: dict[str, Any]) -> str:
    """What the notebook shows below a cell, as text."""
    return "".join(line for output in cell["outputs"] for line in output.get("text", []))


def bars(axes: Any) -> dict[str, list[tuple[float, float, float]]]:
    """Label → (partition, offset, width) of each bar."""
    return {
        group.get_label(): [(round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width()) for bar in group]
        for group in axes.containers
    }


def test_the_notebook(spark: Any) -> None:
    """In the session of the other tests, as a second one takes half a minute to start."""
    pytest.importorskip("matplotlib").use("agg")
    names: dict[str, Any] = {}
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    try:
        for cell in cells:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            assert SECONDS.sub("for N s", out.getvalue()) == SECONDS.sub("for N s", printed(cell))
    finally:
        if "broker" in names:
            names["broker"].stop()
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
    drawn = bars(names["axes"])
    assert sorted(partition for partition, _, _ in drawn["COMMIT"]) == [0, 0, 1, 1, 2, 2]
    assert drawn["OPEN"] == [(1, names["stuck"].first_offset, 1)]
    assert [output["output_type"] for cell in cells for output in cell["outputs"]].count("display_data") == 1
