"""The defects that `python -m mutants` plants. Planting and showing them takes hours and is done by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("cosmic_ray")

from mutants import CORE, ROOT, candidates, chosen_tests, drawn

SOURCE = """
class Thing:
    size: int = 3

    def grow(self, by: int | None = None, *, at: int = 0) -> int:
        log.info("grows by %d", by + 1)
        self.size += by
        if by < 4 and not at:
            self.tell()
        kept = [by]
        raise ValueError(f"too {by + 2}")
"""


def test_what_is_planted_and_what_is_not() -> None:
    """No annotation, log line, text of an error or name that is never bound."""
    found = {(mutant.line, mutant.operator.split("_")[-1]) for mutant in candidates("thing.py", SOURCE)}
    assert {line for line, _ in found} <= {5, 7, 8, 9, 10}
    assert {
        (7, "delete"),
        (9, "delete"),
        (8, "LtE"),
        (8, "ReplaceAndWithOr"),
        (8, "Not"),
        (8, "NumberReplacer"),
    } <= found
    assert (10, "delete") not in found


def test_a_seed_draws_the_same_again_from_the_core() -> None:
    first, again, other = drawn(3, 12, "in_sync"), drawn(3, 12, "in_sync"), drawn(4, 12, "in_sync")
    assert first == again != other
    assert all(mutant.before != mutant.after for mutant in first)
    assert all((ROOT / folder).is_dir() for folder in CORE)


class Map:
    """Coverage of one file."""

    def measured_files(self) -> list[str]:
        return ["/somewhere/minibroker/partitions/in_sync.py"]

    def contexts_by_lineno(self, file: str) -> dict[int, list[str]]:
        here, there = "tests/minibroker/partitions/test_in_sync.py::test_a", "tests/minibroker/cluster/test_x.py::test"
        return {1: [""], 90: [f"{there}_quick|run", f"{here}|run", f"{there}_slow|run", f"{there}_unknown|run"]}


@pytest.mark.parametrize(("line", "limit", "count"), [(90, 40, 3), (90, 1.2, 2), (1, 40, 3)])
def test_tests_of_the_folder_come_first_then_the_quick_ones(line: int, limit: float, count: int) -> None:
    mutant = drawn(3, 1, "in_sync")[0]
    mutant.line = line
    seconds = {
        "tests/minibroker/partitions/test_in_sync.py::test_a": 1.0,
        "tests/minibroker/cluster/test_x.py::test_quick": 0.1,
        "tests/minibroker/cluster/test_x.py::test_slow": 5.0,
    }
    assert chosen_tests(mutant, Map(), seconds, limit) == list(seconds)[:count]  # type: ignore[arg-type]
