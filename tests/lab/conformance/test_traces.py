"""What a run leaves on the broker: nothing that can be ended, on every way out, and the rest is listed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import left_on

from minibroker import Minibroker
from minibroker_lab.conformance import cli
from minibroker_lab.conformance.scenario import KAFKA, bundled

OPEN = """
- name: open
  topics: {t: {partitions: 1}}
  names: [x, y, g]
  steps:
  - {call: InitProducerId v4, req: {transactionalId: $x, transactionTimeoutMs: 60000},
     retry: true, save: {pid: producerId}}
  - {call: AddPartitionsToTxn v3, at: t/0, req: {transactionalId: $x, producerId: $pid, producerEpoch: 0},
     expect: {..partitionErrorCode: NONE}}
  - {call: InitProducerId v4, req: {transactionalId: $y, transactionTimeoutMs: 60000},
     retry: true, save: {pid: producerId}}
  - {call: AddOffsetsToTxn v3, req: {transactionalId: $y, producerId: $pid, producerEpoch: 0, groupId: $g},
     expect: {errorCode: NONE}}
  - {call: TxnOffsetCommit v3, at: t/0@1, req: {transactionalId: $y, producerId: $pid, producerEpoch: 0, groupId: $g},
     expect: {..errorCode: NONE}}
"""
HELD = "  - {call: ApiVersions v0, until: {errorCode: INVALID_REQUEST}, within: 60, every: 0.01}\n"


@pytest.mark.parametrize(("more", "status"), [("", 0), ("  - {call: ApiVersions v0, expect: {errorCode: 7}}\n", 1)])
def test_scenarios_end_what_they_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, status: int
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN + more)
    with Minibroker() as broker:
        assert cli.main(["--bootstrap", broker.bootstrap_servers, str(file)]) == status
        assert left_on(broker.bootstrap_servers) == []
    assert "left behind" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be interrupted alone there")
def test_an_interrupt_leaves_nothing_either(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN + HELD)
    with Minibroker() as broker:
        command = [sys.executable, "-m", "minibroker", "conformance", "-v", "--bootstrap", broker.bootstrap_servers]
        with subprocess.Popen([*command, str(file)], stdout=subprocess.PIPE, text=True) as suite:
            assert suite.stdout
            seen = next(line for line in suite.stdout if "TxnOffsetCommit" in line)
            assert left_on(broker.bootstrap_servers), seen
            suite.send_signal(signal.SIGINT)
            assert suite.wait() != 0
        assert left_on(broker.bootstrap_servers) == []


def test_what_cannot_be_ended_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """A marker that a partition refused is written when the broker starts again, as in Kafka."""
    name = "prepare-commit-end-v4"
    assert [one for one in bundled() if one.name == name and KAFKA in one.only]
    with Minibroker() as broker:
        assert cli.main(["--bootstrap", broker.bootstrap_servers, "--only", name]) == 0
        said = capsys.readouterr().err.splitlines()
        (stays,) = left_on(broker.bootstrap_servers)
    kind, transactional_id, state = stays.split()
    assert (kind, state) == ("transaction", "PrepareCommit")
    assert f"left behind: 1 transactional ids in PrepareCommit: {transactional_id}" in said
