"""Loops that consume `in`, produce to `out` and commit their offsets, each with one mistake of a user's, and what the
judge has to say of it: `loop_client.py`, `tests/jvm/LoopClient.java`, `tests/go/loop`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minibroker.cli import main


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
}
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
    "silent-end-txn",
)
"""Scripts for a loop without a mistake: those that find the mistakes, and more that fail the same APIs."""
ARGUMENTS = ("--topic", "in:1", "--topic", "out:1", "--topic", "out2:1", "--lineage", "in=out")


def reports(argv: Sequence[str], directory: Path, *scripts: str, repeat: int = 1) -> list[dict[str, Any]]:
    """What the judge reports of this command, one object a run."""
    chosen = ["--repeat", str(repeat)]
    chosen += [argument for script in scripts for argument in ("--script", script)]
    how = [*ARGUMENTS, "--timeout", "90", "--report", "json", "--report-dir", str(directory)]
    main(["judge", *chosen, *how, "--", *argv])
    found: list[dict[str, Any]] = json.loads((directory / "judge.json").read_text(encoding="utf-8"))
    return found


def find(argv: Sequence[str], mistake: str, directory: Path) -> None:
    """Assert that the judge finds this mistake in a loop, marks the exchange and names the mistake."""
    script, rule, api, said = MISTAKES[mistake]
    (report,) = reports(argv, directory, script)
    assert (report["verdict"], {one["rule"] for one in report["broken"]}) == ("broken", {rule})
    (marked,) = [line for line in report["timeline"] if line.startswith(">")]
    assert re.search(f" {api} v", marked)
    assert said in report["broken"][0]["message"]


def stay_silent(argv: Sequence[str], directory: Path, repeat: int = 1) -> None:
    """Assert that the judge finds nothing in a loop without a mistake."""
    every = reports(argv, directory, *TRYING, repeat=repeat)
    assert len(every) == len(TRYING) * repeat
    assert [one for one in every if one["verdict"] != "held"] == []
