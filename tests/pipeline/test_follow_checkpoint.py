"""A following audit that is started again goes on where its checkpoint says: it loses no finding and repeats none."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from followed_rows import at_once, followed, rows_of

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.rules.live import LiveJudge, identity
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline import audit_command as command
from minibroker_pipeline import follow as follow_module
from minibroker_pipeline import follow_checkpoint
from minibroker_pipeline.audit_command import plan_of
from minibroker_pipeline.follow import FollowingAudit, follow
from minibroker_protocol.records import Record, build_batch

NOBODY = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
"""Transactional batches without a producer: a finding where a run of them begins."""


@pytest.mark.parametrize("fault", ["sequence-gap", "torn-transaction", "hanging-transaction", "offset-rewind"])
def test_started_again_after_each_round(fault: str, tmp_path: Path) -> None:
    path, chosen = tmp_path / "checkpoint", {"--topic": ["t"]}

    def again(judge: LiveJudge) -> LiveJudge:
        follow_checkpoint.save(path, judge, {}, [], chosen)
        started = LiveJudge()
        assert follow_checkpoint.load(path, started, chosen) == ({}, [])
        assert started.kept == judge.kept
        assert started.present == judge.present
        return started

    cluster = rows_of(1, fault, 300)
    new, _, _ = followed(cluster, 1, 25, again)
    assert {identity(one) for one in new} == at_once(cluster) != set()
    assert len(new) == len(at_once(cluster))


def produce(client: TransactionalClient, sequence: int, **fields: int) -> None:
    who = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "transactional": "producer_id" in fields}
    batch = build_batch([Record(0, 1_700_000_000_000, b"k", b"v")], **{**who, **fields})
    client.produce(Producer("x", -1, -1), "t", 0, bytes(batch))


def arguments_of(broker: Minibroker, path: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(
        ["--bootstrap", broker.bootstrap_servers, "--checkpoint", str(path), "--topic", "t", *more]
    )


def run(arguments: argparse.Namespace, rounds: int, monkeypatch: pytest.MonkeyPatch, stop: str = "") -> list[str]:
    """What is printed in so many rounds, or up to the line that begins with `stop`; then it is interrupted."""
    printed: list[str] = []

    def sleep(_: float) -> None:
        nonlocal rounds
        rounds -= 1
        if not rounds:
            raise KeyboardInterrupt

    def notice(line: str) -> None:
        if stop and line.startswith(stop):
            raise KeyboardInterrupt
        printed.append(line)

    monkeypatch.setattr(follow_module.time, "sleep", sleep)
    follow(plan_of(arguments), arguments, notice)
    return [line for line in printed if line.startswith(("error:", "notice:"))]


def test_a_broker_is_followed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is not read again, and what was said is not said again."""
    path = tmp_path / "checkpoint"
    with (
        Minibroker(ephemeral=True, topics={"t": 1}) as broker,
        closing(TransactionalClient(broker.bootstrap_servers)) as client,
    ):
        produce(client, -1, **NOBODY)
        produce(client, 0)
        arguments = arguments_of(broker, path)
        (line,) = run(arguments, 2, monkeypatch)
        assert line.startswith("error: no-producer-id: t-0 offsets 0-0")
        left_over = tmp_path / ".checkpoint-unfinished"  # by a process that was killed
        left_over.touch()
        assert run(arguments, 2, monkeypatch) == []
        assert not left_over.exists()
        follower = FollowingAudit(plan_of(arguments), arguments)
        assert follower.look() == []
        follower.round()
        assert follower.figures.records == 0
        produce(client, -1, **NOBODY)
        assert run(arguments, 2, monkeypatch) == []  # the run that was found goes on
        path.unlink()
        assert len(run(arguments, 2, monkeypatch)) == 1


def test_stopped_before_a_line_was_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding was made, so the next start prints it, once."""
    with (
        Minibroker(ephemeral=True, topics={"t": 1}) as broker,
        closing(TransactionalClient(broker.bootstrap_servers)) as client,
    ):
        produce(client, -1, **NOBODY)
        arguments = arguments_of(broker, tmp_path / "checkpoint")
        assert run(arguments, 5, monkeypatch, stop="error:") == []
        (line,) = run(arguments, 2, monkeypatch)
        assert line.startswith("error: no-producer-id")
        assert run(arguments, 2, monkeypatch) == []


def test_a_line_is_out_before_the_checkpoint_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a file, and the process is killed."""
    printed, path = tmp_path / "printed", tmp_path / "checkpoint"
    with (
        Minibroker(ephemeral=True, topics={"t": 1}) as broker,
        closing(TransactionalClient(broker.bootstrap_servers)) as client,
        open(printed, "w", encoding="utf-8") as output,
    ):
        produce(client, -1, **NOBODY)
        said: list[str] = []

        def sleep(_: float) -> None:
            assert '"untold":[]' in path.read_text()
            said.append(printed.read_text())
            raise KeyboardInterrupt

        monkeypatch.setattr(follow_module.time, "sleep", sleep)
        monkeypatch.setattr(sys, "stdout", output)
        main(["audit", "--bootstrap", broker.bootstrap_servers, "--follow", "--checkpoint", str(path), "--topic", "t"])
        monkeypatch.undo()
        assert said[0].startswith("error: no-producer-id")


class Signal:
    """Comes once, right after a call of this method of the judge; where signals wait, at the end of that."""

    def __init__(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waits, self.came, self._told = 0, False, False
        called = getattr(LiveJudge, method)

        def call(judge: LiveJudge, *arguments: Any) -> Any:
            result = called(judge, *arguments)
            self.came = True
            self._tell()
            return result

        monkeypatch.setattr(LiveJudge, method, call)
        monkeypatch.setattr(follow_module, "uninterrupted", self._uninterrupted, raising=False)

    def _tell(self) -> None:
        if self.came and not self._waits and not self._told:
            self._told = True
            raise KeyboardInterrupt

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
        self._tell()


@pytest.mark.parametrize("method", ["take", "judge"])
def test_a_signal_in_the_middle_of_a_round(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken is not taken again, and what was found is told."""
    with (
        Minibroker(ephemeral=True, topics={"t": 1}) as broker,
        closing(TransactionalClient(broker.bootstrap_servers)) as client,
    ):
        arguments = arguments_of(broker, tmp_path / "checkpoint")
        produce(client, 0)
        produce(client, -1, **NOBODY)
        with monkeypatch.context() as patched:
            signal = Signal(method, patched)
            assert run(arguments, 3, patched) == []
            assert signal.came
        (line,) = run(arguments, 2, monkeypatch)
        assert line.startswith("error: no-producer-id")


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["audit", *arguments]) == 2
    return capsys.readouterr().err


def test_a_checkpoint_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "checkpoint"
    with Minibroker(ephemeral=True, topics={"t": 1, "u": 1}) as broker:
        first = arguments_of(broker, path)
        FollowingAudit(plan_of(first), first)
        whole = path.read_text()
        followed_u: list[Any] = ["--bootstrap", broker.bootstrap_servers, "--follow", "--checkpoint", str(path)]
        assert "written with other options (--topic); give another file" in refused(
            [*followed_u, "--topic", "u"], capsys
        )
        for damaged in ("", "[]", "\udcff", whole[:-20], whole.replace('"reported"', '"repotred"')):
            path.write_bytes(damaged.encode("utf-8", "surrogateescape"))
            assert "not a checkpoint of an audit, or a damaged one" in refused([*followed_u, "--topic", "t"], capsys)
        path.write_text(whole.replace('"format":2', '"format":1'))
        assert "of format 1, this release reads 2" in refused([*followed_u, "--topic", "t"], capsys)
        missing = [*followed_u[:-1], str(tmp_path / "none" / "checkpoint"), "--topic", "t"]
        assert "none" in refused(missing, capsys)
        assert "Traceback" not in capsys.readouterr().err
    assert "--checkpoint goes with --follow" in refused([str(tmp_path), "--checkpoint", "x"], capsys)
