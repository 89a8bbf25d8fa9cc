"""Files that wait for their removal, as Kafka's `.deleted` files do."""

import pytest

from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.removals import Removals


def waiting() -> tuple[MemoryDisk, Removals]:
    """Of three named files two are there: one is due at 100, one at 200."""
    disk = MemoryDisk()
    disk.make_dir("t-0")
    for name in ("a", "b", "kept"):
        disk.write_atomic(f"t-0/{name}", b"x")
    removals = Removals(disk)
    removals.later(["t-0/a", "t-0/none"], 100)
    removals.later(["t-0/b"], 200)
    return disk, removals


@pytest.mark.parametrize(
    ("now", "left"), [(99, {"a.deleted", "b.deleted"}), (100, {"b.deleted"}), (199, {"b.deleted"}), (200, set())]
)
def test_each_goes_when_it_is_due(now: int, left: set[str]) -> None:
    disk, removals = waiting()
    removals.due(now)
    removals.due(now)
    assert set(disk.list("t-0")) == left | {"kept"}


def test_what_has_gone_is_forgotten() -> None:
    disk, removals = waiting()
    removals.due(100)
    disk.write_atomic("t-0/a.deleted", b"another")
    removals.due(100)
    assert disk.exists("t-0/a.deleted")


def test_all_go_at_the_end() -> None:
    disk, removals = waiting()
    removals.due(100)
    removals.finish()
    removals.finish()
    assert disk.list("t-0") == ["kept"]
