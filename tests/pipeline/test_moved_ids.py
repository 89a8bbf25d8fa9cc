"""Ids that moved from one partition of an internal topic to another are followed; offsets stand by where they lie."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from minibroker.cli import main
from minibroker.rules.offset_rules import final_offsets
from minibroker.rules.rows import COMMIT, CommittedOffset, Log, Transaction, TxnState
from minibroker.rules.txn_rules import read_coordinators

MISPLACED = Path(__file__).resolve().parents[1] / "golden" / "minibroker-0.1.0" / "misplaced-ids"
OFFSETS = Log("", "__consumer_offsets", 2)


def state(partition: int, offset: int, epoch: int, name: str, updated: int = 5) -> TxnState:
    log = Log("", "__transaction_state", partition)
    producer = 7 if name else -1
    return TxnState(log, offset, epoch, "tx", producer, 0, 1000, name, (("t", 0),) if name else (), 1, updated)


def test_a_decision_that_moved_is_one_and_not_complete() -> None:
    before = [state(1, 4, 0, "Ongoing"), state(1, 5, 0, "PrepareCommit", 6)]
    moved = [state(1, 9, 3, ""), state(2, 0, 3, "PrepareCommit", 6)]
    for states in ([*before, *moved], [*moved, *before]):
        (decision,) = read_coordinators(states, whole=True).decisions
        assert (decision.outcome, decision.complete, decision.leader_epoch) == (COMMIT, False, 3)
        known = read_coordinators([*states, state(2, 1, 3, "CompleteCommit", 7)], whole=True)
        assert [one.complete for one in known.decisions] == [True]
        assert known.held[7][-1].state.state == "CompleteCommit"


def test_an_id_that_expired_after_it_moved_is_gone() -> None:
    states = [state(1, 9, 3, ""), state(2, 0, 3, "CompleteCommit"), state(2, 4, 5, "")]
    assert read_coordinators(states, whole=True).held[7][-1].state.state == "CompleteCommit"
    assert read_coordinators(states, whole=True).decisions == ()


def offset(at: int, value: int, producer: int = -1, log: Log = OFFSETS) -> CommittedOffset:
    return CommittedOffset(log, at, producer, 0 if producer >= 0 else -1, "g", "t", 0, value)


def test_what_was_written_last_stands_whenever_its_marker_came() -> None:
    """OffsetMetadataManager compares where the records lie, and a tombstone takes what transactions hold."""
    committed = [Transaction(OFFSETS, "", 7, 0, 3, 3, 9, 0, COMMIT, 0, 1, 2)]
    held = offset(3, 40, 7)
    assert final_offsets([held], committed) == [held]
    assert final_offsets([held], []) == []
    later = offset(5, 41)
    assert final_offsets([held, later], committed) == [later]
    assert final_offsets([held, offset(5, -1)], committed) == []


def test_a_group_that_moved_is_not_gone() -> None:
    there = offset(0, 40, log=Log("", "__consumer_offsets", 1))
    assert final_offsets([offset(2, 40), offset(8, -1), there], []) == [there]


@pytest.mark.parametrize("name", ["clean", "killed", "three-brokers"])
def test_directories_with_moved_ids(name: str, tmp_path: Path) -> None:
    """Their clients committed offsets that are past the ends of `t`, which a broker takes: that is true, and all."""
    pytest.importorskip("pyarrow")
    with tarfile.open(MISPLACED / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    main(["audit", str(tmp_path / "data"), "--json", str(tmp_path / "s.json")])
    shown = json.loads((tmp_path / "s.json").read_text())["shown"]
    assert {one["rule"] for one in shown} == {"offset-end"}
    places = [re.search(r"committed (\d+) on t-\d, which ends at ([24])$", one["message"]) for one in shown]
    assert len(places) == 8
    assert all(place is not None and int(place[1]) > int(place[2]) for place in places)
