"""One trial: a command under one script of failures, and the verdict on what it left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from minibroker.kernel.progress import ProgressLine
from minibroker.rules.rows import Log
from minibroker.rules.rules import finding
from minibroker.server.temporary_directory import TemporaryDirectory
from minibroker_lab.judge.history import History, HistoryError, read_history
from minibroker_lab.judge.lineage import Lineage
from minibroker_lab.judge.own_cluster import JudgedCluster, OwnCluster
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.run import run_command
from minibroker_lab.judge.scripts import Script
from minibroker_lab.judge.upstream import Upstream
from minibroker_lab.judge.verdict import NO_PROGRESS, BrokenPromise, Evidence, judge, since, waited_for
from minibroker_storage.directory import BROKER_DIR
from minibroker_storage.os_disk import OsDisk

_CONFIG = {
    # The clock moves far ahead; records that retention deletes could not be checked.
    "log.retention.ms": "-1",
    # An application that cannot wait would fail on Kafka.
    "minibroker.not.yet.answers": "true",
    # Fifty partitions of each take longer to make than most applications run.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Task(NamedTuple):
    """What is judged.

    timeout, start: as `run_command` has them.
    broker: options of `Minibroker`, its settings apart in config.
    history: the file that the command must write, None: it may write one.
    any_status: the command may end with any status.
    upstream: addresses of brokers to run it against, through a proxy, in place of one of our own.
    command_config: file with the properties of a client, for those.
    """

    command: Sequence[str]
    timeout: float
    broker: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}
    history: str | None = None
    lineage: Sequence[Lineage] = ()
    any_status: bool = False
    start: float = 0.0
    upstream: str = ""
    command_config: str | None = None


TryOut: TypeAlias = Callable[[Task, Script, str], Judged]
"""`try_out`, or what stands for it."""


def try_out(task: Task, script: Script, what: str) -> Judged:
    """Run and judge it; `what` is in front of the progress. Raises HistoryError, OSError when the command cannot be
    started, ConfigError or StartError when the broker cannot."""
    with TemporaryDirectory() as place:  # the next broker removes it when this process is killed
        data_dir = Path(place, "data")
        data_dir.mkdir()
        path = Path(task.history).absolute() if task.history else Path(place, "history.jsonl")
        before = path.stat().st_size if path.exists() else 0
        progress = ProgressLine(sys.stderr)
        ran = run_command(
            task.command,
            script,
            cluster=_cluster(task, script, data_dir),
            history=path,
            timeout=task.timeout,
            start=task.start,
            watch=lambda run, seconds: progress.say(f"{what}: {seconds:.0f} s, {len(run.exchanges)} exchanges"),
        )
        progress.clear()
        if ran.misfit:
            return Judged(ran, [])
        history = _history(path, before, wanted=bool(task.history))
        evidence = Evidence(
            OsDisk(str(_one_copy(data_dir))),
            ran.exchanges,
            ran.produced,
            history,
            task.lineage,
            ran.left_behind.as_of_ms,
            complete=not ran.lost,
            compacted=ran.left_behind.compacted,
            topic_names=ran.topic_names,
            unapplied=ran.unapplied,
            before=ran.left_behind.before,
            gave_up=ran.status is None or (ran.status != 0 and not task.any_status),
        )
        broken, noticed = judge(evidence)
    if ran.status is None and ran.exchanges:
        reason = f"the command did not end within {task.timeout:g} s{since(ran.exchanges, ran.topic_names)}"
        broken.insert(0, BrokenPromise(finding(NO_PROGRESS, Log("", "", -1), reason), waited_for(ran.exchanges)))
    return Judged(ran, broken, task.any_status, noticed)


def _cluster(task: Task, script: Script, data_dir: Path) -> JudgedCluster:
    if not task.upstream:
        return OwnCluster(data_dir, {**task.broker, **_brokers(script), "config": _config(task, script)})
    return Upstream(
        task.upstream,
        task.command_config,
        data_dir,
        task.broker.get("topics", {}),
        whole_topics=[lineage.source for lineage in task.lineage],
        longest=task.timeout,
    )


def _one_copy(data_dir: Path) -> Path:
    """The data of one of several brokers, each of which has a replica of everything."""
    first = data_dir / BROKER_DIR.format(1)
    return first if first.is_dir() else data_dir


def _brokers(script: Script) -> dict[str, int]:
    return {"brokers": script.brokers} if script.brokers > 1 else {}


def _config(task: Task, script: Script) -> dict[str, Any]:
    replicas = {"default.replication.factor": str(script.brokers)} if script.brokers > 1 else {}
    return {**_CONFIG, **replicas, **task.config}


def _history(path: Path, before: int, *, wanted: bool) -> History | None:
    """What the command added to the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if wanted:
            raise HistoryError(f"{path}: the command wrote no history") from None
        return None
    added = data[before:] if len(data) >= before else data
    try:
        return read_history(added.decode().splitlines())
    except UnicodeDecodeError as error:
        raise HistoryError(f"{path}: {error}") from None
