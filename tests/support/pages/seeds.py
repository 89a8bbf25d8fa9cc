"""What must hold of producer state and transactions: every id, and the tests that say which one they prove.

A test carries ``@pytest.mark.seed(ID…, semantics="kafka kip", how="raw")``: the ids it proves, the semantics it runs
under, and who speaks to the broker (``raw``: bytes without a client library). ``python tests/support seeds`` writes
benchmarks/results/seeds.md from the markers; they are read from the source, so that no client has to be installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "benchmarks" / "results" / "seeds.md"
SEMANTICS = ("kafka", "kip")
RAW = "raw"
OWN = ("minibroker transactions",)
"""Clients that are part of this project."""


@dataclass(frozen=True, slots=True)
class Seed:
    """One thing that must hold, in a line, and what Apache Kafka 4.4 does instead ("" when it does the same)."""

    holds: str
    kafka: str = ""


SEEDS: dict[str, Seed] = {
    "360-1": Seed("InitProducerId without a producer id bumps the epoch and forgets the last one: a new instance."),
    "360-2": Seed("InitProducerId at the current epoch bumps it, the old one becomes the last; sequences begin at 0."),
    "360-3": Seed("InitProducerId at the last epoch is a retry: the current epoch again, unchanged."),
    "360-4": Seed(
        "Any other epoch is fenced at once and changes nothing.",
        "With a transaction running any epoch with the right producer id aborts it first, and is fenced on its retry.",
    ),
    "360-5": Seed(
        "The retry survives a failover of the coordinator: the last epoch is in the log.",
        "Up to 4.4.0 it is not logged and the retry fenced (KAFKA-20357); minibroker does log it, except as a release.",
    ),
    "360-6": Seed(
        "An expired transactional id: a new producer id, and the same for the same request again; fenced when another"
        " producer id holds it.",
        "The same request again is fenced.",
    ),
    "360-7": Seed(
        "Version 1 of the transaction state message has the last epoch, version 0 loads still, both before and after a"
        " change of the feature level.",
        "Version 1 is a flexible record without the last epoch.",
    ),
    "360-8": Seed(
        "DescribeTransactionState: per id error, producer id, epoch, state, partitions.",
        "Never shipped; DescribeTransactions is its heir. Both are served.",
    ),
    "360-9": Seed(
        "Producer state outlives its records and goes by transactional.id.expiration.ms of broker time.",
        "It goes by producer.id.expiration.ms and the last record's timestamp.",
    ),
    "360-10": Seed(
        "A replica that knows only its log answers UNKNOWN_PRODUCER_ID; a bumped epoch goes on, and never backwards.",
        "It accepts any first sequence (transactional Produce v12+: OUT_OF_ORDER_SEQUENCE_NUMBER).",
    ),
    "360-11": Seed("After an abortable error the producer bumps its epoch and begins at sequence 0 at once."),
    "360-12": Seed("No gap and no duplicate in the log after a batch failed for good."),
    "360-13": Seed(
        "A broker that advertises older API versions makes the client skip the bump.", "By running an old release."
    ),
    "360-14": Seed(
        "With the draft's check a fenced zombie cannot begin at sequence 0 where its state was lost.",
        "Closed by the verification of transactions (KIP-890).",
    ),
    "360-15": Seed(
        "At the last epoch a bump gives a new producer id, and a retry the same one, also after a failover.",
        "After a failover only where the last epoch is logged. A second retry is fenced; with `kip` it gets the"
        " same again (`remember_offered_producer_id`).",
    ),
    "360-16": Seed("A late copy of a batch that expired in the client is refused after the epoch was bumped."),
    "360-17": Seed(
        "A client that resets its sequence where its records are gone and keeps its epoch goes on, and is fenced still."
    ),
    "360-18": Seed(
        "No leader asks the coordinator about unknown producers below transaction.version 1, whose records came with"
        " that call.",
        "It never asks.",
    ),
    "360-19": Seed(
        "A leader that has not learnt its predecessor's log start remembers what was lost: a producer that bumped goes"
        " on, and never backwards.",
    ),
    "588-1": Seed(
        "A timeout makes the current epoch the last one and bumps.",
        "The same with transaction.version 2; below, the last epoch is forgotten.",
    ),
    "588-2": Seed(
        "Requests of the old epoch get the error for a timed-out transaction, until a producer claims the new one.",
        "It is fenced; EndTxn v5 abort succeeds with the new epoch.",
    ),
    "588-3": Seed(
        "InitProducerId at the old epoch returns the bumped one.",
        "With transaction.version 2 the same; fenced with 0 or 1.",
    ),
    "588-4": Seed("A later instance with the same transactional id fences both epochs for good."),
    "588-5": Seed(
        "Produce from the old epoch gets INVALID_PRODUCER_EPOCH; `timed_out_codes=recoverable` has another code below"
        " version 11, because librdkafka ends for good on that one, `draft` has not."
    ),
    "588-6": Seed(
        "PRODUCER_FENCED from AddPartitionsToTxn v2, AddOffsetsToTxn v2, EndTxn v2 and InitProducerId v4 on,"
        " INVALID_PRODUCER_EPOCH below."
    ),
    "588-7": Seed(
        "The draft's numbers: TRANSACTION_TIMED_OUT 90, PRODUCER_FENCED 91, by setting.",
        "90 is PRODUCER_FENCED, 91 another error.",
    ),
    "588-8": Seed(
        "The loop of the text lives through a timeout, loses and doubles nothing.",
        "Clients below EndTxn v5 end fenced.",
    ),
    "588-9": Seed("abortTransaction() after a timeout succeeds, and the next begin works.", "Not below EndTxn v5."),
    "588-10": Seed(
        "After a timeout the callback of the sample sees nothing on which it ends: no fencing, no OutOfOrderSequence.",
        "The same in Produce; clients that are fenced by the coordinator fail what is in flight with that.",
    ),
    "447-1": Seed("One producer per transactional id: same id, same producer id, epoch + 1; zombies are fenced."),
    "447-2": Seed("Offsets of a transaction become visible with its commit and vanish with its abort."),
    "447-3": Seed("OffsetFetch with require_stable gets UNSTABLE_OFFSET_COMMIT while offsets are pending."),
    "447-4": Seed("TxnOffsetCommit v3+ is fenced by member id, generation and group instance id."),
    "447-5": Seed("The failover of the text: the survivor waits for the pending offset and processes nothing twice."),
    "447-6": Seed("On start the broker rebuilds its producers from the log and snapshots."),
    "447-7": Seed("The loop with groupMetadata in a dynamic group, with rebalances, is exactly once."),
    "447-8": Seed(
        "A consumer with assigned partitions sends its offsets with a group id alone, no member and no generation."
    ),
    "447-9": Seed("A consumer that waits for pending offsets reads the new ones after the regular commit."),
    "447-10": Seed(
        "A broker before 2.5 forgets a producer with its last record, and answers UNKNOWN_PRODUCER_ID: the end for a"
        " client that cannot bump, by version; the text's bump goes on."
    ),
    "oos-1": Seed(
        "A non-zero sequence from a producer whose state is gone gets UNKNOWN_PRODUCER_ID.",
        "Accepted; transactional Produce v12+ gets OUT_OF_ORDER_SEQUENCE_NUMBER.",
    ),
    "oos-2": Seed(
        "Produce v5+ answers with the log start offset, and UNKNOWN_PRODUCER_ID always with the current one.",
        "-1 in errors that do not come from the log.",
    ),
    "oos-3": Seed("The log start offset distinguishes truncation from loss; a test can cause both."),
    "oos-4": Seed(
        "A batch at or below the last sequence that is not remembered gets DUPLICATE_SEQUENCE_NUMBER; a remembered one"
        " is acknowledged again.",
        "Older than five: OUT_OF_ORDER_SEQUENCE_NUMBER.",
    ),
    "oos-5": Seed(
        "OUT_OF_ORDER_SEQUENCE_NUMBER means a gap and nothing else.",
        "Also duplicates older than five, a bumped epoch or a first v12 batch that does not begin at 0.",
    ),
}


BOTH = "kafka kip"
UNSEEN_BY_CLIENTS: dict[tuple[str, str], str] = {
    (
        "360-4",
        BOTH,
    ): "A client with an old epoch gets the error from EndTxn or AddPartitionsToTxn and requests no further epoch.",
    (
        "360-8",
        BOTH,
    ): "No client knows the call; `minibroker transactions` and `minibroker.client.transactions` make it.",
    ("360-13", "kip"): "`--as-version` goes with `kafka` only.",
    ("360-14", BOTH): "A fenced client gets the coordinator's error before it begins a partition again.",
    ("360-18", BOTH): "No client sees what brokers ask each other.",
    ("588-3", "kafka"): "Clients that may go on with transaction.version 2 learn the new epoch from EndTxn v5.",
    ("588-7", BOTH): "No client knows these numbers.",
    ("oos-2", "kafka"): "Kafka never answers UNKNOWN_PRODUCER_ID, with which alone a client looks at the log start.",
    ("oos-3", "kafka"): "Kafka never answers UNKNOWN_PRODUCER_ID, with which alone a client looks at the log start.",
}
"""Rows that only bytes can show, by id and semantics, and why."""


def unseen(seed: str, semantics: str) -> str | None:
    """Why no client can show the row under `semantics`; None when one can."""
    return UNSEEN_BY_CLIENTS.get((seed, semantics)) or UNSEEN_BY_CLIENTS.get((seed, BOTH))


@dataclass(frozen=True, slots=True)
class Proof:
    """One test, what it says it proves, and how."""

    test: str
    ids: tuple[str, ...]
    semantics: tuple[str, ...]
    how: str


def proofs(root: Path = ROOT / "tests") -> list[Proof]:
    """Every marker in the sources below `root`. Raises ValueError for one that is not made of literals."""
    proofs: list[Proof] = []
    for path in sorted(root.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.seed" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                where = f"{path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name}::{node.name}"
                proofs += (_proof(where, mark) for mark in _marks(node))
    return proofs


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.seed":
            yield mark


def _proof(test: str, mark: ast.Call) -> Proof:
    try:
        ids = tuple(ast.literal_eval(argument) for argument in mark.args)
        options = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
    except ValueError:
        raise ValueError(f"{test}: a seed marker is made of literals") from None
    return Proof(test, ids, tuple(options.get("semantics", "").split()), options.get("how", RAW))


def problems(proofs: list[Proof]) -> list[str]:
    """Ids without a raw test or without one of a client under a semantics, reasons for the latter that do not hold (any
    more), and markers that name what does not exist."""
    wrong = [f"{p.test}: {i} is not a seed" for p in proofs for i in p.ids if i not in SEEDS]
    wrong += [
        f"{p.test}: semantics {p.semantics}" for p in proofs if not p.semantics or set(p.semantics) - set(SEMANTICS)
    ]
    for seed in SEEDS:
        for semantics in SEMANTICS:
            hows = {p.how for p in proofs if seed in p.ids and semantics in p.semantics}
            if RAW not in hows:
                wrong.append(f"{seed}: no raw test under {semantics}")
            by_client = bool(hows - {RAW, *OWN})
            if not by_client and unseen(seed, semantics) is None:
                wrong.append(f"{seed}: no client under {semantics}")
            if by_client and unseen(seed, semantics) is not None:
                wrong.append(f"{seed}: a client shows it under {semantics}, so there is no excuse")
    wrong += [f"{seed} is not a seed" for seed, _ in UNSEEN_BY_CLIENTS if seed not in SEEDS]
    return wrong


def page(proofs: list[Proof]) -> str:
    """benchmarks/results/seeds.md."""
    lines = [
        "# What the texts ask for, and what proves it",
        "",
        "Written by `python tests/support seeds` from the markers of the tests; a test compares. An id is of",
        "KIP-360, KIP-588, KIP-447 (with its blog post) or the note on spurious OutOfOrderSequence errors (`oos`).",
        "`raw` tests send bytes; the others drive a third-party client. For KIP-588 the loop is named: that of the",
        "text, with its callback and without flush (`tests/support/applications/sample_loop.py`,",
        "`tests/jvm/SampleLoop.java`), or one that flushes each record.",
        "",
        "| id | what must hold | where Apache Kafka 4.4 differs | under `kafka` | under `kip` |",
        "|---|---|---|---|---|",
    ]
    for name, seed in SEEDS.items():
        cells = [_cell(name, semantics, proofs) for semantics in SEMANTICS]
        lines.append(f"| {name} | {seed.holds} | {seed.kafka} | {cells[0]} | {cells[1]} |")
    lines += ["", "Rows without a client, which the check demands otherwise:", ""]
    lines += [
        f"- {seed} under {semantics.replace(' ', ' and ')}: {why}"
        for (seed, semantics), why in UNSEEN_BY_CLIENTS.items()
    ]
    return "\n".join(lines) + "\n"


def _cell(seed: str, semantics: str, proofs: list[Proof]) -> str:
    by_how: dict[str, list[str]] = {}
    for proof in proofs:
        if seed in proof.ids and semantics in proof.semantics:
            file, _, test = proof.test.partition("::")
            by_how.setdefault(proof.how, []).append(f"[{test}](../../{file})")
    return "<br>".join(f"{how}: {', '.join(sorted(tests))}" for how, tests in sorted(by_how.items()))


if __name__ == "__main__":
    PAGE.write_text(page(proofs()), encoding="utf-8")
    for line in problems(proofs()):
        print(line, file=sys.stderr)
