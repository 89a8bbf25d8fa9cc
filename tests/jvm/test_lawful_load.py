"""What two brokers of Kafka 4.4.0 leave under a load of everything, stopped at twenty points, has no finding."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toolchain import Unavailable, tool

pytest.importorskip("confluent_kafka")
pytest.importorskip("pyarrow")

import lawful_load
from lawful_load import Dropped, Journal, Load, dropped_by, record, run

POINTS = 20


@pytest.mark.slow
@pytest.mark.jvm
def test_nothing_is_wrong_that_the_load_knows_no_cause_of(tmp_path: Path) -> None:
    try:
        tool("mvn")
    except Unavailable as missing:
        pytest.skip(str(missing))
    result = run(POINTS, seed=1, keep=tmp_path)
    assert result.unexplained == []


SAID = (
    "2026-11-28T01:23:28.273Z [TxnMarkerSenderThread-1] INFO"
    " kafka.coordinator.transaction.TransactionMarkerChannelManager - [Transaction Marker Channel Manager 1]: "
)
"""How Kafka 4.4.0 begins a line."""


@pytest.mark.jvm
def test_the_markers_that_a_coordinator_says_it_dropped() -> None:
    line = (
        f"{SAID}Couldn't find leader endpoint for partitions Set(deleted-0, kept-1) while trying to send transaction"
        " markers for transactions-3, these partitions are likely deleted already and hence can be skipped"
    )
    at = 1_795_829_008_273
    assert [*dropped_by(line)] == [
        Dropped("transactions-3", "deleted", 0, at),
        Dropped("transactions-3", "kept", 1, at),
    ]
    assert not [*dropped_by(f"{SAID}Creating new marker queue map to destination broker 1")]


class Unstarted(Load):
    """Two brokers of which the second never came to write a log."""

    def __init__(self, folder: Path) -> None:
        self.journal, self.closed = Journal(), False
        self.brokers: Any = [SimpleNamespace(directory=folder / str(number)) for number in (1, 2)]
        for broker in self.brokers:
            broker.directory.mkdir()
        (folder / "1" / "broker.log").write_text("started\n")

    def start(self) -> None:
        raise OSError("no port")

    def close(self) -> None:
        self.closed = True


@pytest.mark.jvm
@pytest.mark.parametrize(("folder", "error"), [("kept", "no port"), ("missing", "journal")])
def test_a_load_that_cannot_start_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, error: str
) -> None:
    """Also where its journal cannot be written. What logs there are stay."""
    load = Unstarted(tmp_path)
    monkeypatch.setattr(lawful_load, "Load", lambda _: load)
    (tmp_path / "kept").mkdir()
    with pytest.raises(OSError, match=error):
        record(1, 1, tmp_path / folder, print)
    assert load.closed
    assert [path.name for path in tmp_path.glob("kept/*.log")] == (["broker-1.log"] if folder == "kept" else [])
