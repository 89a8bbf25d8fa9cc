"""Loops that consume `in`, produce to `out` and commit their offsets, each with one mistake of a user's, and what the
judge has to say of it: `loop_client.py`, `tests/jvm/LoopClient.java`, `tests/go/loop`.

python tests/support judged_loops [--runs N] [--at-once N] [--kept DIR] [CLIENT[==VERSION] …]

runs the loop without a mistake N times with each client, the clients and the scripts of TRYING in turn. It prints a
line for each run as it ends, and at last, or when it is interrupted, how many were held. `--kept` gets the traces and
the output of the others.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from judged_applications import LOOPS, NoReport, client_version, judged, judged_apart, loop_of, script_options

from minibroker.kernel.arguments import directory
from minibroker_lab.museum.clients import ClientError


class Mistake(NamedTuple):
    """script: the bundled one that finds it. rule: the only one that it breaks. api: of the marked exchange, a pattern.
    said: a part of the sentence that names the mistake."""

    script: str
    rule: str
    api: str
    said: str


_OUTSIDE, _REFUSED = "committed outside of it", "its Produce was refused"
MISTAKES = {
    "offsets_outside": Mistake("client-killed-after-commit", "lineage-duplicate", "Produce", _OUTSIDE),
    "swallowed": Mistake("produce-refused", "lineage-lost", "OffsetCommit", _REFUSED),
    "new_id": Mistake("silent-end-txn", "lineage-duplicate", "Produce", "under two transactional ids"),
    "delivery_unseen": Mistake("produce-refused", "lineage-lost", "OffsetCommit", _REFUSED),
    "read_uncommitted": Mistake("aborted-tail", "lineage-stray", "Produce", "read_uncommitted"),
    "position": Mistake(
        "client-killed-after-commit", "lineage-lost", "TxnOffsetCommit", "before anything was written for it"
    ),
    "no_seek": Mistake("produce-refused", "lineage-lost", "TxnOffsetCommit", "the consumer was not set back"),
    "one_id_twice": Mistake("calm", "shared-id", r"\w+", "two instances have the transactional id 'loop'"),
    "init_retried_only": Mistake("silent-end-txn", "lineage-duplicate", "Produce", "its answer was lost"),
    "auto_commit": Mistake("client-killed-before-commit", "lineage-lost", "OffsetCommit", "outside of any transaction"),
    "last_offset": Mistake("client-killed-before-commit", "lineage-duplicate", "Produce", "is that of the next record"),
    "shared_producer": Mistake("calm", "lineage-duplicate", "Produce", "two loops share one producer"),
    "stale_metadata": Mistake("rebalance-in-transaction", "lineage-lost", "Produce", "that of before a rebalance"),
    "tombstone_dropped": Mistake("calm", "lineage-lost", "TxnOffsetCommit", "a tombstone that is dropped"),
    "listener_commits": Mistake(
        "rebalance-between-fetches", "lineage-lost", "OffsetCommit", "before anything was written for it"
    ),
}
NOTICED = {
    "listener_commits": ("offsets-mixed", "outside of any transaction"),
    "read_uncommitted": ("input-uncommitted", "read with isolation.level read_uncommitted"),
}
"""Mistakes that a notice tells of too, where nothing goes wrong: its rule, and a part of its sentence."""
QUICK, FREQUENT = "delivery_unseen", ("offsets_outside", "swallowed", "new_id")
"""Those that users make most: the loops in Java and Go have these. The first is found in the shortest run."""
TRYING = (
    "calm",
    "aborted-tail",
    "broker-killed",
    "client-killed-after-commit",
    "client-killed-before-commit",
    "connection-resets",
    "coordinator-moves",
    "group-rebalances",
    "offsets-unavailable",
    "produce-refused",
    "rebalance-between-fetches",
    "rebalance-in-transaction",
    "silent-end-txn",
)
"""Scripts for a loop without a mistake: those that find the mistakes, and more that fail the same APIs."""
ARGUMENTS = ("--topic", "in:1", "--topic", "out:1", "--topic", "out2:1", "--lineage", "in=out")
SHORT, PATIENT = ("--timeout", "90"), ("--timeout", "300")
"""For runs that a test waits for, and for many, beside other work: two starts of a JVM may take more than 90 s then."""
NIGHTLY_RUNS = 200
AT_ONCE = 4
"""Judges side by side: most of a run is waiting."""


def find(argv: Sequence[str], mistake: str) -> None:
    """Assert that the judge finds this mistake in a loop, marks the exchange and names the mistake."""
    script, rule, api, said = MISTAKES[mistake]
    (report,) = judged(argv, "--script", script, *ARGUMENTS, *SHORT)
    assert (report["verdict"], {promise["rule"] for promise in report["broken"]}) == ("broken", {rule})
    (marked,) = [line for line in report["timeline"] if line.startswith(">")]
    assert re.search(f" {api} v", marked)
    assert said in report["broken"][0]["message"]


def notice(argv: Sequence[str], mistake: str) -> None:
    """Assert that the judge tells of one of `NOTICED` in a loop where nothing fails."""
    (report,) = judged([*argv, mistake], "--script", "calm", *ARGUMENTS, *SHORT)
    (sentence,) = report["notices"]
    assert (report["verdict"], [said in sentence for said in NOTICED[mistake]]) == ("held", [True, True])


class LoopRun(NamedTuple):
    """client: as `runs_of` was given it. number: from 1, of this client's runs. row: what the judge reports."""

    client: str
    number: int
    row: dict[str, Any]

    def __str__(self) -> str:
        row = self.row
        why = [promise["message"] for promise in row["broken"]] or [row["doubt"]]
        said = row["verdict"] if row["verdict"] == "held" else f"{row['verdict']}: {why[0]}"
        return f"{self.client}, run {self.number}, {row['script']}: {said}"


def runs_of(
    commands: Mapping[str, Sequence[str]], runs: int, *, at_once: int = AT_ONCE, kept: Path | None = None
) -> Generator[LoopRun]:
    """So many runs of each loop, as they end: the clients in turn, and for each of them the scripts in turn. Those that
    have not ended are ended with the generator.

    commands: by client. at_once: judges side by side. kept: gets a folder of each run that is not held.
    """
    ending = threading.Event()
    with ThreadPoolExecutor(at_once) as pool:
        started = [
            pool.submit(_run, client, number, argv, kept, ending)
            for number in range(1, runs + 1)
            for client, argv in commands.items()
        ]
        try:
            for done in as_completed(started):
                yield done.result()
        finally:
            ending.set()
            pool.shutdown(cancel_futures=True)


def _run(client: str, number: int, argv: Sequence[str], kept: Path | None, ending: threading.Event) -> LoopRun:
    script = TRYING[(number - 1) % len(TRYING)]
    folder = None if kept is None else kept / f"{client.replace(' ', '-')}-{number}"
    try:
        (row,) = judged_apart(argv, *script_options([script]), *ARGUMENTS, *PATIENT, kept=folder, ending=ending)
    except NoReport as why:
        row = {"script": script, "verdict": "no report", "broken": [], "doubt": str(why), "notices": []}
    return LoopRun(client, number, row)


def stay_silent(argv: Sequence[str]) -> None:
    """Assert that the judge finds nothing in `NIGHTLY_RUNS` runs of a loop without a mistake."""
    every = list(runs_of({"loop": argv}, NIGHTLY_RUNS))
    assert len(every) == NIGHTLY_RUNS
    assert [str(run) for run in every if run.row["verdict"] != "held"] == []
    sentences = [sentence for run in every for sentence in run.row["notices"]]
    assert [sentence for sentence in sentences if any(rule in sentence for rule, _ in NOTICED.values())] == []


def tell(runs: Iterable[LoopRun]) -> bool:
    """Print each as it ends, and how many of each client were held, with what there is when it is interrupted; whether
    all were."""
    ended: dict[str, list[str]] = {}
    with suppress(KeyboardInterrupt):
        for run in runs:
            print(run, flush=True)
            ended.setdefault(run.client, []).append(run.row["verdict"])
    for client, verdicts in ended.items():
        print(f"{client}: held {verdicts.count('held')} of {len(verdicts)}", flush=True)
    return all(verdict == "held" for verdicts in ended.values() for verdict in verdicts)


def _program() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=NIGHTLY_RUNS)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--kept", type=directory)
    parser.add_argument("clients", nargs="*", type=client_version, metavar="CLIENT[==VERSION]")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as started:
        commands = {}
        for client, version in arguments.clients or map(client_version, LOOPS):
            try:
                commands[f"{client} {version}"] = started.enter_context(loop_of(client, version))
            except ClientError as error:
                parser.error(str(error))
        all_held = tell(runs_of(commands, arguments.runs, at_once=arguments.at_once, kept=arguments.kept))
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(_program())
