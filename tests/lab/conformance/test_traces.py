"""What a run leaves on the broker: nothing that can be ended, on every way out, and the rest is listed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_process import ForkedProcess, start_command
from leftovers import left_on

from minibroker import Minibroker
from minibroker.control.client import Faults
from minibroker.faults.actions import Close, Error, Hold
from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.scenario import KAFKA, bundled
from minibroker_protocol.errors import ErrorCode

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
INTERRUPTED = 130
HELD = "  - {call: ApiVersions v0, until: {errorCode: INVALID_REQUEST}, within: 60, every: 0.01}\n"


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be interrupted alone there")


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker() as made:
        yield made


@pytest.fixture
def faults(broker: Minibroker) -> Iterator[Faults]:
    yield broker.faults
    broker.faults.verify()


@contextmanager
def started(broker: Minibroker, file: Path) -> Iterator[subprocess.Popen[str] | ForkedProcess]:
    """The suite as a process of its own, whose output is kept back as it is for a user."""
    command = ("conformance", "-v", "--bootstrap", broker.bootstrap_servers, str(file))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    suite = start_command(*command, stdout=subprocess.PIPE, text=True, env=environment)
    with suite:
        yield suite


@pytest.mark.parametrize(("more", "status"), [("", 0), ("  - {call: ApiVersions v0, expect: {errorCode: 7}}\n", 1)])
def test_scenarios_end_what_they_begin(
    broker: Minibroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, status: int
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN + more)
    assert cli.main(["--bootstrap", broker.bootstrap_servers, str(file)]) == status
    assert left_on(broker.bootstrap_servers) == []
    assert "left behind" not in capsys.readouterr().err


@POSIX
def test_an_interrupt_leaves_nothing_either(broker: Minibroker, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN + HELD)
    with started(broker, file) as suite:
        assert suite.stdout
        seen = next(line for line in suite.stdout if "TxnOffsetCommit" in line)
        assert left_on(broker.bootstrap_servers), seen
        suite.send_signal(signal.SIGINT)
        assert "FAIL" not in suite.stdout.read(), "the line came when the scenario was over"
    assert suite.returncode == INTERRUPTED
    assert left_on(broker.bootstrap_servers) == []


@POSIX
def test_an_interrupt_waits_for_the_removal(broker: Minibroker, faults: Faults, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN)
    removal = faults.inject("ListGroups", Hold(), nth=2)  # it is asked for before the first scenario too
    with started(broker, file) as suite:
        removal.wait()
        suite.send_signal(signal.SIGINT)
        removal.release()
        assert suite.wait() == INTERRUPTED
    assert left_on(broker.bootstrap_servers) == []


@POSIX
def test_a_commit_that_arrives_after_the_end_makes_no_group(broker: Minibroker, faults: Faults, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN)
    commit = faults.inject("TxnOffsetCommit", Hold())
    with started(broker, file) as suite:
        commit.wait()
        suite.send_signal(signal.SIGINT)
    commit.release()
    assert left_on(broker.bootstrap_servers) == []


BUSY = Error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.mark.parametrize(
    "refused",
    [
        [("ListGroups", 2, 2)],  # it is asked for before the first scenario too
        [("DeleteGroups", 1, 1)],
        [("InitProducerId", 3, 2), ("ListTransactions", 1, 1)],  # two of them are the scenario's
    ],
    ids=lambda refused: refused[-1][0],
)
def test_a_coordinator_that_is_busy_is_asked_again(
    broker: Minibroker,
    faults: Faults,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refused: list[tuple[str, int, int]],
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(OPEN)
    for api, nth, times in refused:
        faults.inject(api, BUSY, nth=nth, times=times)
    assert cli.main(["--bootstrap", broker.bootstrap_servers, str(file)]) == 0
    assert left_on(broker.bootstrap_servers) == []
    assert "left behind" not in capsys.readouterr().err


def test_what_is_not_known_is_said(
    broker: Minibroker, faults: Faults, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text("- {name: s, steps: [{call: ApiVersions v0}]}")
    with faults.inject("ListGroups", Close(), times=None):
        assert cli.main(["--bootstrap", broker.bootstrap_servers, str(file)]) == 0
    said = capsys.readouterr().err.splitlines()
    (line,) = (line for line in said if line.startswith("left behind"))
    assert line.startswith("left behind: perhaps topics and groups: ")
    assert line.endswith("ListGroups v2: connection closed by the broker")


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
