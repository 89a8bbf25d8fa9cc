"""Loops that consume `in`, produce to `out` and commit their offsets, each with one mistake of a user's, and what the
judge has to say of it: `loop_client.py`, `tests/jvm/LoopClient.java`, `tests/go/loop`.

python tests/support judged_loops [--runs N] [CLIENT[==VERSION] …]

runs the loop without a mistake under the scripts of TRYING, until N runs are done, and prints how many were held.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from judged_applications import LOOPS, judged, loop_of, release, script_options


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
    "listener_commits": Mistake(
        "rebalance-between-fetches", "lineage-lost", "OffsetCommit", "before anything was written for it"
    ),
}
NOTICED = "listener_commits"
"""A mistake that is told as a notice too, where no rebalance comes while a batch is in hand."""
MIXED = "offsets-mixed"
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
    "silent-end-txn",
)
"""Scripts for a loop without a mistake: those that find the mistakes, and more that fail the same APIs."""
ARGUMENTS = ("--topic", "in:1", "--topic", "out:1", "--topic", "out2:1", "--lineage", "in=out", "--timeout", "90")
NIGHTLY_RUNS = 200
AT_ONCE = 4
"""Judges side by side: most of a run is waiting."""


def find(argv: Sequence[str], mistake: str) -> None:
    """Assert that the judge finds this mistake in a loop, marks the exchange and names the mistake."""
    script, rule, api, said = MISTAKES[mistake]
    (report,) = judged(argv, "--script", script, *ARGUMENTS)
    assert (report["verdict"], {promise["rule"] for promise in report["broken"]}) == ("broken", {rule})
    (marked,) = [line for line in report["timeline"] if line.startswith(">")]
    assert re.search(f" {api} v", marked)
    assert said in report["broken"][0]["message"]


def notice(argv: Sequence[str]) -> None:
    """Assert that the judge tells of `NOTICED` in a loop where nothing fails."""
    (report,) = judged([*argv, NOTICED], "--script", "calm", *ARGUMENTS)
    (sentence,) = report["notices"]
    assert (report["verdict"], MIXED in sentence) == ("held", True)
    assert "outside of any transaction" in sentence


def silent_runs(argv: Sequence[str], runs: int = NIGHTLY_RUNS) -> list[dict[str, Any]]:
    """What the judge reports of at least this many runs of a loop without a mistake, each script in turn."""
    options = [*script_options(TRYING), *ARGUMENTS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rounds = pool.map(lambda _: judged(argv, *options, apart=True), range(-(-runs // len(TRYING))))
        return [row for rows in rounds for row in rows]


def stay_silent(argv: Sequence[str]) -> None:
    """Assert that the judge finds nothing in `NIGHTLY_RUNS` runs of a loop without a mistake."""
    every = silent_runs(argv)
    assert len(every) >= NIGHTLY_RUNS
    assert [(row["script"], row["verdict"], row["broken"]) for row in every if row["verdict"] != "held"] == []
    assert [sentence for row in every for sentence in row["notices"] if MIXED in sentence] == []


def _program() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=NIGHTLY_RUNS)
    parser.add_argument("clients", nargs="*", default=list(LOOPS), metavar="CLIENT[==VERSION]")
    arguments = parser.parse_args()
    others = 0
    for text in arguments.clients:
        client, _, version = text.partition("==")
        version = version or release(client)
        with loop_of(client, version) as argv:
            rows = silent_runs(argv, arguments.runs)
        counts = Counter(row["verdict"] for row in rows)
        rates = [f"{verdict} {count} of {len(rows)}" for verdict, count in counts.items()]
        print(f"{client} {version}: {', '.join(rates)}", flush=True)
        for row in rows:
            if row["verdict"] != "held":
                others += 1
                print(f"  {row['script']}: {row['verdict']}: {row['broken'] or row['doubt']}")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(_program())
