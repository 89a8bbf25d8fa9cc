"""The metadata journal on a disk that fails at its n-th call and works again, and then loses power or is killed."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.controller.journal import MetadataJournal
from minibroker_lab.simulation.faulty_disk import FaultyDisk, PowerLost
from minibroker_protocol.errors import ApiError

GROUPS = [["a"], ["b", "c"], ["d"], ["e", "f"]]
"""Entries that are written one after another, and synced together."""


def play(disk: FaultyDisk) -> tuple[list[str], list[str]]:
    """(entries that the journal took, those that it said are safe)."""
    taken: list[str] = []
    safe: list[str] = []
    journal = MetadataJournal(disk, "metadata.journal")
    try:
        list(journal.replay())
        for group in GROUPS:
            for name in group:
                try:
                    journal.append({"type": name})
                except ApiError:
                    continue
                taken.append(name)
            try:
                journal.sync()
            except ApiError:
                continue
            safe = list(taken)
        journal.close()
    except PowerLost:
        pass
    return taken, safe


def entries(disk: FaultyDisk) -> list[str]:
    journal = MetadataJournal(disk, "metadata.journal")
    assert journal.lost() is None
    return [entry["type"] for entry in journal.replay()]


CALLS = range(1, 20)


@pytest.mark.parametrize("then", ["power loss", "torn power loss", "kill"])
@pytest.mark.parametrize("fault", ["fail_at", "lose_power_at"])
def test_what_was_said_to_be_safe_is_there(fault: str, then: str) -> None:
    whole = FaultyDisk()
    play(whole)
    assert whole.calls in CALLS
    for call in range(1, whole.calls + 1):
        disk = FaultyDisk()
        setattr(disk, fault, call)
        taken, safe = play(disk)
        choices = Random(call) if then == "torn power loss" else None
        after = entries(disk.after_kill() if then == "kill" else disk.after_power_loss(choices))
        place = disk.history[call - 1]
        assert after[: len(safe)] == safe, place
        # A call that failed may have had its effect: the entry of the last one may be there, whole, and no other.
        names = [name for group in GROUPS for name in group]
        assert after in (taken[: len(after)], names[: len(after)]), place


@pytest.mark.parametrize("what", ["sync", "sync_dir"])
def test_after_a_failed_sync_every_sync_and_append_is_refused(what: str) -> None:
    """The system may have dropped what it could not write, and then says that all is well."""
    disk = FaultyDisk()
    journal = MetadataJournal(disk, "metadata.journal")
    journal.append({"type": "a"})
    disk.fail_at = disk.calls + (1 if what == "sync" else 2)
    for refused in (journal.sync, journal.sync, lambda: journal.append({"type": "b"})):
        with pytest.raises(ApiError, match=f"{what} failed"):
            refused()
    journal.close()
    assert f" {what} " in disk.history[disk.fail_at - 1]
    assert entries(disk.after_power_loss()) == []
