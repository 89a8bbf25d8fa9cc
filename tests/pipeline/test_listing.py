"""Who lists a data directory: the driver its root, whoever it hands them to the directories of partitions."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from planting import golden_files, write_files

pytest.importorskip("pyarrow")

from minibroker_pipeline.engine import DIRECTORIES_OF_A_TASK, spread_on
from minibroker_pipeline.files import Files, NotReadable
from minibroker_pipeline.listing import PartitionLook, list_directory
from minibroker_pipeline.planning import plan_for
from minibroker_storage.directory import partition_of

MANY = 2 * DIRECTORIES_OF_A_TASK
OF_A_PARTITION = ("plain-0", "txn-a-0")


class Asked:
    """Lists and reads of files, by whether executors or the driver did them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self.executor = False
        for name in ("list", "read"):
            monkeypatch.setattr(Files, name, self._counted(name, getattr(Files, name)))

    def _counted(self, name: str, asked: Callable[..., Any]) -> Callable[..., Any]:
        def counted(files: Files, *arguments: Any) -> Any:
            self.counts[f"{'executor' if self.executor else 'driver'} {name}"] += 1
            return asked(files, *arguments)

        return counted

    def spread(self, look: Callable[[str], PartitionLook], names: Sequence[str]) -> Iterable[PartitionLook]:
        """What goes to executors and comes back is pickled."""
        self.executor = True
        looks = [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(look))(name))) for name in names]
        self.executor = False
        return looks


def directory(path: Path, partitions: int) -> str:
    """The golden directory's root, and a topic with copies of one of its partitions."""
    golden = golden_files("clean")
    files = {name: data for name, data in golden.items() if "/" not in name}
    for number in range(partitions):
        of = {name: data for name, data in golden.items() if name.startswith("plain-0/") and "snapshot" not in name}
        files |= {f"made-{number}/{name.partition('/')[2]}": data for name, data in of.items()}
    return str(write_files(files, path))


def test_the_driver_does_not_look_into_the_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; each is listed once."""
    counts = []
    for partitions in (20, 40):
        path = directory(tmp_path / str(partitions), partitions)
        with monkeypatch.context() as patched:
            asked = Asked(patched)
            listed = list_directory(Files(path), topics=["made"], spread=asked.spread)
            assert len(listed.facts) == partitions
            assert asked.counts.pop("executor list") == partitions
            assert asked.counts.pop("executor read") <= 3 * partitions
            counts.append(dict(asked.counts))
    assert counts[0] == counts[1]


def test_it_finds_what_one_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is wrong between directories: another topic id, a checkpoint's partition without a directory."""
    golden = golden_files("clean")
    kept = {name: data for name, data in golden.items() if (partition_of(name.partition("/")[0]) or ("", 0))[1] == 0}
    metadata = "append-time-0/partition.metadata"
    other = golden["txn-a-0/partition.metadata"]
    path = str(write_files({**kept, "append-time-1/partition.metadata": other, metadata: golden[metadata]}, tmp_path))
    here = list_directory(Files(path))
    spread = list_directory(Files(path), spread=Asked(monkeypatch).spread)
    assert spread == here
    assert {"topic-id", "checkpoint"} <= {one.rule for one in here.findings}


def test_executors_that_do_not_see_the_directory(tmp_path: Path) -> None:
    """Data on a disk of the driver alone is not taken for lost data."""
    path = Path(directory(tmp_path / "data", 3))

    def elsewhere(look: Callable[[str], PartitionLook], names: Sequence[str]) -> Iterable[PartitionLook]:
        path.rename(tmp_path / "not-here")
        return [look(name) for name in names]

    with pytest.raises(NotReadable, match="No such file or directory"):
        list_directory(Files(str(path)), topics=["made"], spread=elsewhere)


class Session:
    """Runs what it is given, and counts its tasks."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.defaultParallelism = 2
        self.tasks = 0

    def parallelize(self, names: Sequence[str], tasks: int) -> Session:
        self._names, self.tasks = names, tasks
        return self

    def map(self, look: Callable[[str], PartitionLook]) -> Session:
        self._looks = [look(name) for name in self._names]
        return self

    def collect(self) -> list[PartitionLook]:
        return self._looks


def test_a_session_is_opened_for_many_directories_only(tmp_path: Path) -> None:
    opened: list[Session] = []

    def session() -> Session:
        opened.append(Session())
        return opened[-1]

    assert (
        len(plan_for(directory(tmp_path / "few", MANY - 1), topics=["made"], spread=spread_on(session)).facts)
        == MANY - 1
    )
    assert opened == []
    assert len(plan_for(directory(tmp_path / "many", MANY), topics=["made"], spread=spread_on(session)).facts) == MANY
    assert [one.tasks for one in opened] == [2]
