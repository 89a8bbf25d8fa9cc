"""Each kind of damage is found by its rule, by no other; what looks alike and is lawful is not found. `check` finds by
the same rules what is wrong with small files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from damage import (
    COMPACTED_DAMAGE,
    DAMAGE,
    LAWFUL,
    SIZED,
    TIME_ENTRY,
    Change,
    below_the_cleaner,
    checkpoint,
    patched,
    removed,
)
from planting import Planted, changed, golden_files, header_of, write_files
from sampling import thinned

pytest.importorskip("pyarrow")

from minibroker.rules.catalogue import ERROR, NOTICE, RULES
from minibroker.rules.directory import check_directory
from minibroker.rules.rows import Finding
from minibroker_pipeline import headers
from minibroker_pipeline.engine import audit_here
from minibroker_pipeline.files import Files
from minibroker_pipeline.listing import SPLIT_BYTES, list_directory
from minibroker_pipeline.plan import Plan
from minibroker_storage.directory import partition_of
from minibroker_storage.os_disk import OsDisk

INTERNAL = ["__transaction_state", "__consumer_offsets"]


def audited(
    planted: Planted, tmp_path: Path, split_bytes: int = SPLIT_BYTES, *, metadata: bool = True
) -> list[Finding]:
    """What the audit finds in the topics that were changed, and in the coordinators'."""
    before = golden_files(planted.name)
    names = {name for name in {*before, *planted.files} if before.get(name) != planted.files.get(name)}
    places = [partition_of(name.partition("/")[0]) for name in names]
    topics = [place[0] for place in places if place is not None] or ["plain"]
    topics += ["codec-zstd"]  # of which groups have offsets
    chosen = {*topics, *INTERNAL}
    kept = {name: data for name, data in planted.files.items() if _topic(name) in (None, *chosen)}
    if metadata:
        kept |= golden_files("metadata")  # which have cleanup.policy
    files = Files(str(write_files(kept, tmp_path)))
    listed = list_directory(files, topics=chosen, split_bytes=split_bytes)
    plan = Plan(files, tuple(listed.facts), tuple(listed.parts), files.uri, findings=listed.findings)
    return audit_here(plan)[1]


def _topic(name: str) -> str | None:
    """Whose file it is; None for one at the root, or in a directory that is none of a partition."""
    place = partition_of(name.partition("/")[0]) if "/" in name else None
    return None if place is None else place[0]


@pytest.mark.parametrize(("kind", "plant"), LAWFUL, ids=[kind for kind, _ in LAWFUL])
def test_what_is_lawful_is_not_found(kind: str, plant: Change, tmp_path: Path) -> None:
    planted = Planted()
    plant(planted)
    assert planted.files != golden_files("clean")
    assert [str(one) for one in audited(planted, tmp_path, metadata=False)] == []


def test_what_only_a_power_loss_does_to_a_log_that_was_not_closed_is_worth_a_notice(tmp_path: Path) -> None:
    """Above the recovery point: opening the log makes indexes anew and cuts what is torn."""
    planted = Planted()
    for change in (
        removed(".kafka_cleanshutdown"),
        checkpoint("recovery-point-offset-checkpoint", b"sized 0 600", b"sized 0 512"),
        patched("sized-0/00000000000000000512.index", ">i", 4, 3),
        patched(f"{SIZED}.index", ">i", 4, 3),
    ):
        change(planted)
    found = {(one.file, one.severity) for one in audited(planted, tmp_path)}
    assert found == {("sized-0/00000000000000000512.index", NOTICE), (f"{SIZED}.index", ERROR)}


BY_SMALL_FILES = {
    "offset-index",
    "time-index",
    "epoch-checkpoint",
    "checkpoint",
    "topic-id",
    "data-directory",
    "lost-data",
}


@pytest.mark.parametrize(
    ("kind", "plant", "rules"),
    [row for row in DAMAGE if row[2] <= BY_SMALL_FILES],
    ids=[row[0] for row in DAMAGE if row[2] <= BY_SMALL_FILES],
)
def test_check_finds_small_files_by_the_same_rules(kind: str, plant: Change, rules: set[str], tmp_path: Path) -> None:
    planted = Planted()
    plant(planted)
    for name in [
        name for name in planted.files if name.startswith(("compacted", "codec", "broker", "rolled", "deleted", "__"))
    ]:
        del planted.files[name]  # what nothing was planted in
    found = check_directory(OsDisk(str(write_files(planted.files, tmp_path)), read_only=True))
    told = {one.rule for one in found if not one.message.endswith("has no directory") or "plain" in one.message}
    assert told == rules


def later_than_all(planted: Planted) -> None:
    """A batch in the first part of the file has a time that no entry of its index knows."""
    later = header_of(planted.batches("sized-0")[-1]).max_timestamp + 1000
    planted.change("sized-0", 4, lambda batch: changed(batch, max_timestamp=later), 0)


OF_INDEXES = [(kind, plant) for kind, plant, rules in DAMAGE if rules <= {"offset-index", "time-index"}]
LATER = "a time that the index does not know"
OF_INDEXES += [(LATER, later_than_all), ("none", lambda planted: None)]


@pytest.mark.parametrize("row", thinned(OF_INDEXES, 3), ids=lambda row: row[0])
def test_indexes_are_read_alike_in_every_way(
    row: tuple[str, Change], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch by batch, a block at a time and in parts of a file; entries that are wrong because of an earlier part are
    told once for each part."""
    kind, plant = row
    planted = Planted()
    plant(planted)
    rules = {"offset-index", "time-index"}
    plain = {(one.rule, one.file, one.position) for one in planted.findings() if one.rule in rules}
    for number, (split, block) in enumerate([(1 << 30, 65_536), (1 << 30, 7), (100_000, 65_536), (100_000, 7)]):
        monkeypatch.setattr(headers, "BLOCK", block)
        found = [one for one in audited(planted, tmp_path / str(number), split) if one.rule in rules]
        missing = {one.file for one in found if one.severity == NOTICE or one.message.endswith("an index of no log")}
        told = {(one.rule, one.file, one.position) for one in found if one.file not in missing}
        if kind != LATER or split > 100_000:
            assert told == plain
        else:  # one entry of each later part, and of the last part the file ends with
            assert told < plain
            assert (
                max(position for _, _, position in told) > max(position for _, _, position in plain) - 10 * TIME_ENTRY
            )


def test_the_table_is_whole() -> None:
    """Every rule of the audit that needs nothing but files has its kinds, and the names are of rules."""
    named = {rule for _, _, rules in DAMAGE for rule in rules}
    assert named <= RULES.keys()
    assert len({kind for kind, _, _ in DAMAGE}) == len(DAMAGE) > 60
    asked_for = {"duplicate-content", "lineage-lost", "lineage-duplicate", "lineage-stray", "offset-rewind"}
    assert {rule.id for rule in RULES.values() if rule.remedies} - named == asked_for


@pytest.mark.parametrize("row", thinned(DAMAGE, 4), ids=lambda row: row[0])
def test_damage_is_found_by_its_rule_and_by_no_other(row: tuple[str, Change, set[str]], tmp_path: Path) -> None:
    _, plant, rules = row
    planted = Planted()
    plant(planted)
    found = audited(planted, tmp_path)
    assert {one.rule for one in found} == rules, [str(one) for one in found]


@pytest.mark.parametrize("row", COMPACTED_DAMAGE, ids=lambda row: row[0])
def test_damage_below_the_cleaners_checkpoint_is_found(row: tuple[str, Change, set[str]], tmp_path: Path) -> None:
    """By `check` too."""
    _, plant, rules = row
    planted = Planted("compacted")
    below_the_cleaner(plant)(planted)
    planted.without_small_files("t-0")
    found = audited(planted, tmp_path / "audited", metadata=False)
    assert {one.rule for one in found if one.severity == ERROR} == rules, [str(one) for one in found]
    checked = check_directory(OsDisk(str(write_files(planted.files, tmp_path / "checked")), read_only=True))
    assert {one.rule for one in checked if one.severity == ERROR} == rules


def test_a_compacted_log_whose_checkpoint_says_nothing(tmp_path: Path) -> None:
    """As after a stop within a pass, and as a replica has it."""
    planted = Planted("compacted")
    planted.files["cleaner-offset-checkpoint"] = b"0\n1\nt 0 0\n"
    for partition in ("t-0", "t-1"):
        del planted.files[f"{partition}/00000000000000000290.snapshot"]
    found = audited(planted, tmp_path, metadata=False)
    assert {(one.rule, one.severity, str(one.log)) for one in found} == {
        ("offset-hole", NOTICE, "t-0"),
        ("offset-hole", NOTICE, "t-1"),
    }
