"""A neighbour: a second producer, with a transaction open while a scenario runs."""

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from minibroker import Minibroker
from minibroker_lab.conformance import command as cli

HEAD = "- {name: s, neighbour: true, steps: ["
OWN_ID = "{call: InitProducerId v4, req: {transactionalId: $neighbour_id, transactionTimeoutMs: 60000}}"
OPEN = "{call: Fetch v11, at: neighbour_topic/0@0, expect: {..lastStableOffset: 0, '#..records': 1}}"
END = (
    "{call: EndTxn v3, req: {transactionalId: $neighbour_id, producerId: $neighbour, producerEpoch: 1,"
    " committed: true}, expect: {errorCode: NONE}}"
)
MORE = (
    "{call: Produce v9, at: neighbour_topic/0, batch: {pid: $neighbour, epoch: 1, seq: 1, txn: true},"
    " req: {transactionalId: $neighbour_id}, expect: {..errorCode: NONE}}"
)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Minibroker() as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (OPEN, "ok s"),
        (END, "FAIL s [exactly-once]: step after.1 (Fetch v11): field ..records(length)"),
        (MORE, "FAIL s [exactly-once]: step after.1 (Fetch v11): field ..records(length)"),
        (OWN_ID, "FAIL s [exactly-once]: step after.1 (Fetch v11): field ..records(length)"),
    ],
    ids=["left alone", "ended", "more records", "fenced"],
)
def test_the_neighbour_is_looked_after(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str, said: str
) -> None:
    file = tmp_path / "suite.yaml"
    wait = "{call: Fetch v11, at: neighbour_topic/0@0, until: {..highWatermark: 2}}"
    file.write_text(HEAD + step + ("" if step is OPEN else f", {wait}") + "]}\n")
    cli.main(["--bootstrap", bootstrap, str(file)])
    assert said in capsys.readouterr().out.splitlines()[0]


def test_no_scenario_makes_up_the_id_of_another_producer() -> None:
    """One computed from the own id belongs to nobody, or to whoever asked for one at that time."""
    folder = resources.files("minibroker_lab.conformance") / "scenarios"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert [name for name, text in texts.items() if re.search(r"\$\w+\+1(00000)?\b(?=[^\n]*producerEpoch)", text)] == []
    assert sum("neighbour: true" in text for text in texts.values()) == 7
