"""Data directories of Apache Kafka 3.9 to 4.4, stopped and killed: no finding as they are, all planted ones."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planting import changed, header_of, marker, write_files
from sampling import thinned

pytest.importorskip("pyarrow")

from minibroker.rules.catalogue import ERROR
from minibroker.rules.directory import check_directory
from minibroker.rules.rows import Finding
from minibroker.rules.scan import DEPTHS, RECORDS
from minibroker_pipeline.engine import audit_here
from minibroker_pipeline.files import Files
from minibroker_pipeline.listing import list_directory
from minibroker_pipeline.plan import Plan
from minibroker_protocol.records import iter_batches
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.os_disk import OsDisk

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "releases"
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
STATES = ("clean", "killed")
Tree = dict[str, bytes]


@cache
def kept(release: str) -> Tree:
    with tarfile.open(GOLDEN / f"{release}.tar.xz") as archive:
        contents = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {name: content.read() for name, content in contents if content is not None}


def files_of(release: str, state: str) -> Tree:
    return {
        name.removeprefix(f"{state}/"): data for name, data in kept(release).items() if name.startswith(f"{state}/")
    }


def audited(files: Tree, path: Path, depth: str = RECORDS) -> list[Finding]:
    return audit_of(write_files(files, path), depth)


def audit_of(path: Path, depth: str) -> list[Finding]:
    tree = Files(str(path))
    listed = list_directory(tree)
    return audit_here(Plan(tree, tuple(listed.facts), tuple(listed.parts), tree.uri, depth, findings=listed.findings))[
        1
    ]


def test_every_release_from_3_9_on_is_here() -> None:
    minors = [release.removeprefix("kafka-").rpartition(".")[0] for release in RELEASES]
    assert minors == ["3.9", "4.0", "4.1", "4.2", "4.3", "4.4"]


@pytest.mark.parametrize(
    "case", thinned([(release, state) for release in RELEASES[::-1] for state in STATES[::-1]], 12), ids="-".join
)
def test_a_healthy_directory_has_no_finding(case: tuple[str, str], tmp_path: Path) -> None:
    release, state = case
    files = files_of(release, state)
    assert (".kafka_cleanshutdown" in files) == (state == "clean")
    assert sum(name.endswith(".log") for name in files) > 30
    write_files(files, tmp_path)
    for depth in DEPTHS:
        assert [str(one) for one in audit_of(tmp_path, depth)] == []
    found = check_directory(OsDisk(str(tmp_path), read_only=True))
    assert [one for one in found if one.severity == ERROR] == []


# Planted


def first_log(files: Tree, partition: str, number: int = 0) -> str:
    named = (name for name in files if name.startswith(f"{partition}/") and name.endswith(".log") and files[name])
    return sorted(named)[number]


def batches(files: Tree, name: str) -> list[bytes]:
    return [files[name][at : at + header.size] for at, header in iter_batches(files[name])]


def appended(files: Tree, partition: str, batch: bytes, **fields: int) -> None:
    """After the last batch, of the newest leader epoch and with the offset that comes next."""
    name = first_log(files, partition, -1)
    epoch = LeaderEpochCache.decode(files[f"{partition}/leader-epoch-checkpoint"]).latest_epoch or 0
    last = header_of(batches(files, name)[-1])
    fields = {"base_offset": last.next_offset, "partition_leader_epoch": epoch, **fields}
    files[name] += changed(batch, **fields)


def of_producer(files: Tree, partition: str) -> bytes:
    """The last batch of an idempotent producer."""
    found = batches(files, first_log(files, partition, -1))
    return next(one for one in reversed(found) if header_of(one).producer_id >= 0 and not header_of(one).is_control)


def twice(files: Tree) -> None:
    appended(files, "codecs-0", of_producer(files, "codecs-0"))


def gap(files: Tree) -> None:
    batch = of_producer(files, "codecs-0")
    appended(files, "codecs-0", batch, base_sequence=header_of(batch).last_sequence + 9)


def older_epoch(files: Tree) -> None:
    batch = of_producer(files, "codecs-0")
    epoch = header_of(batch).producer_epoch
    appended(files, "codecs-0", batch, base_sequence=0, producer_epoch=epoch + 1)
    appended(files, "codecs-0", batch, base_sequence=header_of(batch).last_sequence + 1)


def hole(files: Tree) -> None:
    name = first_log(files, "codecs-0", -1)
    batch = of_producer(files, "codecs-0")
    after = header_of(batches(files, name)[-1]).next_offset
    sequence = header_of(batch).last_sequence + 1
    appended(files, "codecs-0", batch, base_offset=after + 3, base_sequence=sequence)


def no_decision(files: Tree) -> None:
    batch = header_of(of_producer(files, "codecs-0"))
    appended(files, "codecs-0", marker(producer_id=batch.producer_id, producer_epoch=batch.producer_epoch))


def spoiled(files: Tree) -> None:
    name = first_log(files, "codecs-0")
    data = bytearray(files[name])
    data[header_of(files[name]).size - 1] ^= 1
    files[name] = bytes(data)


def torn(files: Tree) -> None:
    files[name] = files[name := first_log(files, "t-0", 1)][:-1]


def wrong_index(files: Tree) -> None:
    name = first_log(files, "codecs-0").removesuffix(".log") + ".index"
    files[name] = struct.pack(">ii", 1, 7)


def wrong_times(files: Tree) -> None:
    name = first_log(files, "codecs-0").removesuffix(".log") + ".timeindex"
    files[name] = struct.pack(">qi", 1, 0)


def wrong_epochs(files: Tree) -> None:
    files["codecs-0/leader-epoch-checkpoint"] = b"0\n1\n9 0\n"


def torn_snapshot(files: Tree) -> None:
    name = max(name for name in files if name.startswith("codecs-0/") and name.endswith(".snapshot"))
    files[name] = files[name][:-1]


def lost_abort(files: Tree) -> None:
    name = next(name for name, data in sorted(files.items()) if name.endswith(".txnindex") and data)
    files[name] = b""


def past_the_end(files: Tree) -> None:
    name = "replication-offset-checkpoint"
    lines = files[name].decode().splitlines(keepends=True)
    files[name] = "".join("codecs 0 99999\n" if line.startswith("codecs 0 ") else line for line in lines).encode()


def without_directory(files: Tree) -> None:
    for name in [name for name in files if name.startswith("appended-0/")]:
        del files[name]


def other_topic_id(files: Tree) -> None:
    files["t-1/partition.metadata"] = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def no_identity(files: Tree) -> None:
    files["meta.properties"] = b"version=1\n"


def damaged_metadata(files: Tree) -> None:
    name = first_log(files, "__cluster_metadata-0")
    data = bytearray(files[name])
    data[header_of(files[name]).size - 1] ^= 1
    files[name] = bytes(data)


PLANTED: dict[Callable[[Tree], None], set[str]] = {
    twice: {"duplicate"},
    gap: {"sequence-gap"},
    older_epoch: {"epoch-back"},
    hole: {"offset-hole"},
    no_decision: {"marker-without-transaction"},
    spoiled: {"checksum"},
    torn: {"torn-batch"},
    wrong_index: {"offset-index"},
    wrong_times: {"time-index"},
    wrong_epochs: {"epoch-checkpoint"},
    torn_snapshot: {"producer-snapshot"},
    lost_abort: {"abort-index"},
    past_the_end: {"lost-data"},
    without_directory: {"checkpoint"},
    other_topic_id: {"topic-id"},
    no_identity: {"data-directory"},
    damaged_metadata: {"checksum"},
}


#: The default tests take the newest, the tier `matrix` the others too.
IN_PART = thinned(RELEASES[::-1], len(RELEASES))


def some_planted() -> list[Any]:
    """Every third fault in the newest release; the tier `matrix` has all of them in each."""
    every = thinned([(RELEASES[-1], number) for number in range(3)], 3, several=True)
    return every + [pytest.param(release, None, marks=pytest.mark.matrix) for release in RELEASES[:-1]]


@pytest.mark.parametrize(("release", "third"), some_planted())
def test_every_planted_fault_is_found(release: str, third: int | None, tmp_path: Path) -> None:
    sound, found = files_of(release, "clean"), {}
    planted = dict(list(PLANTED.items())[third::3] if third is not None else PLANTED)
    write_files(sound, tmp_path)
    for plant in planted:
        files = dict(sound)
        plant(files)
        assert files.keys() <= sound.keys()
        differ = [name for name in sound if files.get(name) is not sound[name]]
        gone = [tmp_path / name for name in differ if name not in files]
        for path in gone:
            path.unlink()
        for folder in {path.parent for path in gone}:
            folder.rmdir()
        write_files({name: files[name] for name in differ if name in files}, tmp_path)
        found[plant.__name__] = {one.rule for one in audit_of(tmp_path, RECORDS)}
        write_files({name: sound[name] for name in differ}, tmp_path)
    assert found == {plant.__name__: rules for plant, rules in planted.items()}


@pytest.mark.parametrize("release", IN_PART)
def test_all_at_once(release: str, tmp_path: Path) -> None:
    """What is wrong in one place hides nothing in another."""
    files = files_of(release, "clean")
    for plant in (
        no_decision,
        torn,
        wrong_times,
        wrong_epochs,
        lost_abort,
        past_the_end,
        without_directory,
        no_identity,
    ):
        plant(files)
    rules = {one.rule for one in audited(files, tmp_path)}
    assert rules >= {
        *("marker-without-transaction", "torn-batch", "time-index", "epoch-checkpoint", "abort-index", "lost-data"),
        *("checkpoint", "data-directory"),
    }
