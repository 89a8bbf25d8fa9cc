"""`minibroker museum scoreboard`: programs of frameworks under the same failures, and what each kept."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from minibroker.exit_codes import EXIT_BROKEN, EXIT_HELD, EXIT_SKIPPED
from minibroker.kernel.words import near
from minibroker.output import say, write_out
from minibroker.server.temporary_directory import TemporaryDirectory
from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.files import save_trace
from minibroker_lab.judge.lineage import Lineage
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.scripts import Script
from minibroker_lab.judge.trial import Task, TryOut, try_out
from minibroker_lab.museum.cases import CaseError
from minibroker_lab.museum.clients import ClientError, Programs, program
from minibroker_lab.museum.scoreboard.cells import (
    HERE,
    NOT_SENT,
    Cell,
    as_markdown,
    broken,
    cell,
    read_cells,
    save,
)
from minibroker_lab.museum.scoreboard.failures import FAILURES
from minibroker_lab.museum.scoreboard.feed import (
    COMMITTED,
    GROUP,
    INPUT,
    OUTPUT,
    PARTITIONS,
    PROGRESS,
    STATE_DIR,
    WAITS,
)
from minibroker_lab.museum.scoreboard.frameworks import Framework, chosen, place, read_all
from minibroker_lab.museum.scoreboard.verdict import HELD, NO_VERDICT, Verdict, verdict

_FEED = "minibroker_lab.museum.scoreboard.feed"
_TIMEOUT_SECONDS, _START_SECONDS = 240.0, 60.0


def scoreboard(
    arguments: argparse.Namespace,
    *,
    folder: Path | None = None,
    program: Programs = program,
    try_out: TryOut = try_out,
) -> int:
    """`minibroker museum scoreboard`: print the table, or run the frameworks that are named; then 0 when all runs held,
    1 when one did not, 77 when nothing could be run. Raises CaseError, ConfigError, HistoryError, StartError, OSError.

    folder: of the frameworks, default: `place`.
    """
    folder = place() if folder is None else folder
    frameworks = read_all(folder)
    wanted = [framework for framework in frameworks if framework.versions] if arguments.all else []
    wanted = wanted or [chosen(frameworks, name) for name in arguments.case]
    if wanted:
        return _run(wanted, arguments, folder, program, try_out)
    if arguments.client or arguments.failure or arguments.save or arguments.upstream or arguments.traces:
        raise CaseError("name a framework to run, or --all; without them the table of what was measured is printed")
    write_out(as_markdown(frameworks, read_cells(folder)))
    return EXIT_HELD


def _run(
    wanted: Sequence[Framework], arguments: argparse.Namespace, folder: Path, program: Programs, try_out: TryOut
) -> int:
    for name in arguments.failure:
        if name not in FAILURES:
            others = f"; there are {', '.join(FAILURES)}"
            raise CaseError(f"there is no failure {name!r}{near(name, FAILURES) or others}")
    if arguments.broker_name and not arguments.upstream:
        raise CaseError("--broker-name goes with --upstream: it is the name of that cluster")
    if arguments.broker_name == HERE:
        raise CaseError(f"--broker-name cannot be {HERE}: these cells are of a broker of our own")
    if arguments.upstream and arguments.save and not arguments.broker_name:
        raise CaseError("--save with --upstream needs --broker-name NAME: what this cluster is, with its version")
    clients = [framework.client for framework in wanted]
    for client, _ in arguments.client:
        if client not in clients:
            raise CaseError(f"--client {client}: what is run is about {', '.join(clients)}")
    measured: list[Cell] = []
    for framework in wanted:
        releases = [version for client, version in arguments.client if client == framework.client]
        for version in releases or framework.versions:
            try:
                with program(framework.client, version, framework.sources) as command:
                    measured += _cells(Runs(framework, version, command, arguments, try_out), arguments, folder)
            except ClientError as error:
                say(f"{framework.name} {version}: SKIPPED: {error}")
    return EXIT_BROKEN if broken(measured) else EXIT_HELD if measured else EXIT_SKIPPED


def _cells(runs: Runs, arguments: argparse.Namespace, folder: Path) -> list[Cell]:
    measured = []
    for name in arguments.failure or FAILURES:
        if arguments.upstream and not FAILURES[name].behind_proxy:
            continue
        measured.append(runs.cell(name))
        if arguments.save:
            save(folder, measured[-1])
    return measured


def transactional(exchanges: Iterable[Exchange]) -> Counter[str]:
    """How many requests of each API with a transactional id succeeded."""
    return Counter(
        exchange["api"]
        for exchange in exchanges
        if not exchange["errors"]
        # v3_and_below_transactional_id of AddPartitionsToTxn
        and any(name.endswith("transactional_id") and value for name, value in (exchange["request"] or {}).items())
    )


class Runs:
    """The runs of one version.

    command: the command that starts its program.
    """

    def __init__(
        self,
        framework: Framework,
        version: str,
        command: Sequence[str],
        arguments: argparse.Namespace,
        try_out: TryOut = try_out,
    ) -> None:
        self._framework, self._version, self._command = framework, version, command
        self._arguments, self._try_out = arguments, try_out
        self._calm: tuple[Verdict, Counter[str]] | None = None

    def cell(self, failure: str) -> Cell:
        """So many runs under a failure, which take turns with its scripts."""
        at = (
            self._framework.name,
            self._version,
            failure,
            self._arguments.broker_name or self._arguments.upstream or HERE,
        )
        what = " ".join(at[:3])
        verdicts: list[Verdict] = []
        calm, requests = self._requests() if FAILURES[failure].requests else (Verdict(HELD), Counter[str]())
        if calm.said != HELD:
            # Requests that are missing in it say nothing.
            verdicts.append(Verdict(NO_VERDICT, f"without a failure: {calm.said} ({calm.why})"))
            say(f"{what}: {NO_VERDICT}: {verdicts[0].why}", flush=True)
        scripts = [] if verdicts else self._scripts(failure, requests)
        for number, script in zip(range(self._arguments.times), itertools.cycle(scripts)):
            verdicts.append(self._verdict(script, f"{what} {number + 1}"))
            said, why = verdicts[-1]
            say(f"{what}: run {number + 1}, {script.name}: {said}{f' ({why})' if why else ''}", flush=True)
        measured = cell(at, datetime.datetime.now(datetime.UTC).date().isoformat(), verdicts)
        say(f"{what}: {measured.text if verdicts else NOT_SENT}", flush=True)
        return measured

    def _scripts(self, failure: str, requests: Counter[str]) -> list[Script]:
        timeout_ms = self._framework.transaction_timeout_ms
        return FAILURES[failure].scripts(requests, timeout_ms, real_time=self._arguments.upstream is not None)

    def _requests(self) -> tuple[Verdict, Counter[str]]:
        """The verdict of a run without failures, and the transactional requests in it."""
        if self._calm is None:
            judged, topics, committed = self._judged(FAILURES["none"].scripts({})[0], "requests")
            self._calm = verdict(judged, topics, committed), transactional(judged.run.exchanges)
        return self._calm

    def _verdict(self, script: Script, what: str) -> Verdict:
        judged, topics, committed = self._judged(script, what)
        save_trace(judged, self._arguments.traces, what.replace(" ", "-"))
        measured = verdict(judged, topics, committed)
        return measured._replace(why=f"{script.name}: {measured.why}") if measured.why else measured

    def _judged(self, script: Script, what: str) -> tuple[Judged, list[str], dict[int, int]]:
        """With the topics of input and output, whose names no other run has, and the offsets of the group."""
        run = uuid.uuid4().hex[:8]
        source, target = f"in-{run}", f"out-{run}"
        with TemporaryDirectory() as state:
            names = {INPUT: source, OUTPUT: target, GROUP: f"scoreboard-{run}", STATE_DIR: str(state)}
            names |= {PROGRESS: self._framework.progress, **self._framework.environment}
            if self._arguments.upstream:
                names[WAITS] = str(sum(step.advance_ms for step in script.steps) // 1000)
            # -P: no module of the current directory, which may be a shared one.
            command = [sys.executable, "-P", "-m", _FEED, json.dumps(names), *self._command]
            task = Task(
                command,
                _TIMEOUT_SECONDS,
                {"topics": dict.fromkeys((source, target), PARTITIONS)},
                lineage=[Lineage(source, target, "key")],
                any_status=True,
                start=_START_SECONDS,
                upstream=self._arguments.upstream or "",
            )
            judged = self._try_out(task, script, what)
            file = Path(state, COMMITTED)
            committed = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return judged, [source, target], {int(partition): offset for partition, offset in committed.items()}
