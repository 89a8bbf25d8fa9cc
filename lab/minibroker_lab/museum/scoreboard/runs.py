"""`minibroker museum scoreboard`: programs of frameworks under the same failures, and what each kept."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from minibroker.exit_codes import EXIT_HELD, EXIT_SKIPPED
from minibroker.kernel.words import near
from minibroker.output import say, write_out
from minibroker.server.temporary_directory import TemporaryDirectory
from minibroker_lab.judge.application import topic_name
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
    Cell,
    as_markdown,
    outcome,
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
_TARGET = "out-"
_TIMEOUT_SECONDS = 3600.0
"""The feed ends each run; this is for one that does not."""


def scoreboard(
    arguments: argparse.Namespace,
    *,
    folder: Path | None = None,
    program: Programs = program,
    try_out: TryOut = try_out,
) -> int:
    """`minibroker museum scoreboard`: print the table, or run the frameworks that are named; then 0 when all runs held,
    1 when one did not, 2 when one has no verdict, 77 when nothing could be run. Raises CaseError, ConfigError,
    HistoryError, StartError, OSError.

    folder: of the frameworks, default: `place`.
    """
    folder = place() if folder is None else folder
    frameworks = read_all(folder)
    wanted = frameworks if arguments.all else []
    wanted = wanted or [chosen(frameworks, name) for name in arguments.case]
    if wanted:
        return _run(wanted, arguments, folder, program, try_out)
    options = arguments
    if options.client or options.failure or options.save or options.add or options.upstream or options.traces:
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
    if arguments.add and not arguments.save:
        raise CaseError("--add goes with --save: it adds runs to what is saved")
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
    return outcome(measured) if measured else EXIT_SKIPPED


def _cells(runs: Runs, arguments: argparse.Namespace, folder: Path) -> list[Cell]:
    measured = []
    kept = {cell.at: cell for cell in read_cells(folder)} if arguments.add else {}
    for name in arguments.failure or FAILURES:
        if arguments.upstream and not FAILURES[name].behind_proxy:
            continue
        so_far = []
        for cell in runs.cells(name, kept.get(runs.at(name))):
            so_far.append(cell)
            if arguments.add:
                save(folder, cell)
        measured.append(so_far[-1])
        if arguments.save:
            save(folder, so_far[-1])
        say(f"{' '.join(runs.at(name)[:3])}: {so_far[-1].text}", flush=True)
    return measured


def transactional(exchanges: Iterable[Exchange], pattern: str) -> Counter[str]:
    """How many requests of each API with such a transactional id succeeded."""
    return Counter(
        exchange["api"]
        for exchange in exchanges
        if not exchange["errors"]
        and any(
            # v3_and_below_transactional_id of AddPartitionsToTxn
            value and name.endswith("transactional_id") and fnmatchcase(value, pattern)
            for name, value in (exchange["request"] or {}).items()
        )
    )


def written(exchanges: Iterable[Exchange], topic: str, topic_names: Mapping[str, str]) -> Counter[str]:
    """How many Produce to a topic succeeded.

    topic_names: by topic id as exchanges have it.
    """
    return Counter(
        "Produce"
        for exchange in exchanges
        if exchange["api"] == "Produce" and not exchange["errors"]
        if topic in [topic_name(entry, topic_names) for entry in exchange["request"]["topic_data"]]
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

    def at(self, failure: str) -> tuple[str, str, str, str]:
        """Of the cell."""
        broker = self._arguments.broker_name or self._arguments.upstream or HERE
        return self._framework.name, self._version, failure, broker

    def cells(self, failure: str, kept: Cell | None = None) -> Iterator[Cell]:
        """The cell after each run under a failure; they take turns with its scripts. Without any where there is
        nothing to run.

        kept: its first runs.
        """
        at = self.at(failure)
        what = " ".join(at[:3])
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        measured = kept or Cell(*at, date)
        if measured.runs >= self._arguments.times:
            yield measured
            return
        calm, requests = self._requests() if FAILURES[failure].requests else (Verdict(HELD), Counter[str]())
        if calm.said != HELD:
            # Requests that are missing in it say nothing.
            verdict = Verdict(NO_VERDICT, f"without a failure: {calm.said} ({calm.why})")
            say(f"{what}: {NO_VERDICT}: {verdict.why}", flush=True)
            yield measured.plus(verdict, date)
            return
        scripts = self._scripts(failure, requests)
        if not scripts:
            yield measured
        for number, script in enumerate(itertools.islice(itertools.cycle(scripts), self._arguments.times), 1):
            if number > measured.runs:
                verdict = self._verdict(script, f"{what} {number}")
                why = f" ({verdict.why})" if verdict.why else ""
                say(f"{what}: run {number}, {script.name}: {verdict.said}{why}", flush=True)
                measured = measured.plus(verdict, date)
                yield measured

    def _scripts(self, failure: str, requests: Counter[str]) -> list[Script]:
        own = self._framework
        return FAILURES[failure].scripts(
            requests,
            own.transaction_timeout_ms,
            match={"transactional_id": own.transactional_id}
            if own.transaction_timeout_ms
            else {"topic": f"{_TARGET}*"},
            real_time=self._arguments.upstream is not None,
        )

    def _requests(self) -> tuple[Verdict, Counter[str]]:
        """The verdict of a run without failures, and the requests in it that failures are about."""
        if self._calm is None:
            judged, topics, committed = self._judged(FAILURES["none"].scripts({})[0], "requests")
            run = judged.run
            own = (
                transactional(run.exchanges, self._framework.transactional_id)
                if self._framework.transaction_timeout_ms
                else written(run.exchanges, topics[-1], run.topic_names)
            )
            self._calm = verdict(judged, topics, committed), own
        return self._calm

    def _verdict(self, script: Script, what: str) -> Verdict:
        judged, topics, committed = self._judged(script, what)
        save_trace(judged, self._arguments.traces, what.replace(" ", "-"))
        measured = verdict(judged, topics, committed)
        if measured.said in (HELD, NO_VERDICT):
            return measured
        return measured._replace(why=f"{script.name}: {measured.why}")

    def _judged(self, script: Script, what: str) -> tuple[Judged, list[str], dict[int, int]]:
        """With the topics of input and output, whose names no other run has, and the offsets of the group."""
        run = uuid.uuid4().hex[:8]
        source, target = f"in-{run}", f"{_TARGET}{run}"
        with TemporaryDirectory() as state:
            names = {INPUT: source, OUTPUT: target, GROUP: f"scoreboard-{run}", STATE_DIR: str(state)}
            names["TMPDIR"] = str(state)  # what a killed program leaves goes as well
            names |= {PROGRESS: self._framework.progress, **self._framework.environment}
            if self._arguments.upstream:
                waits = sum(step.advance_ms for step in script.steps)
                # What is open then keeps the output back until it times out.
                names[WAITS] = str((waits + bool(waits) * self._framework.transaction_timeout_ms) // 1000)
            # -P: no module of the current directory, which may be a shared one.
            command = [sys.executable, "-P", "-m", _FEED, json.dumps(names), *self._command]
            task = Task(
                command,
                _TIMEOUT_SECONDS,
                {"topics": dict.fromkeys((source, target), PARTITIONS)},
                lineage=[Lineage(source, target, "key")],
                any_status=True,
                upstream=self._arguments.upstream or "",
            )
            judged = self._try_out(task, script, what)
            file = Path(state, COMMITTED)
            committed = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return judged, [source, target], {int(partition): offset for partition, offset in committed.items()}
