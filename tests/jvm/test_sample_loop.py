"""KIP-588's sample loop, its callback included and nothing flushed, with two releases of Kafka's client.

Each cell of the table in docs/reference/semantics.md: a run or two here, all of them under `slow`. At
transaction.version 1 it ends, and on what is in the table too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from sample_loop import JAVA, LEVELS, MEETS, RUNS, recorded, runs_of

pytestmark = pytest.mark.jvm

CELLS = pytest.mark.parametrize(
    ("client", "meets", "level"), [(client, meets, level) for client in JAVA for meets in MEETS for level in LEVELS]
)


@CELLS
@pytest.mark.seed("588-2", "588-3", "588-5", "588-8", "588-9", semantics="kip", how="Java, the loop of the text")
def test_the_loop_of_the_text(programs: Path, client: str, meets: str, level: int) -> None:
    verdicts = set(runs_of(client, meets, level, 2, programs))
    assert verdicts <= recorded()[client][meets][str(level)].keys()
    assert level == 1 or verdicts == {"lives"}


@pytest.mark.slow
@CELLS
def test_the_loop_of_the_text_every_run(programs: Path, client: str, meets: str, level: int) -> None:
    verdicts = Counter(runs_of(client, meets, level, RUNS, programs))
    assert verdicts.keys() <= recorded()[client][meets][str(level)].keys()
    assert level == 1 or verdicts == {"lives": RUNS}


@pytest.mark.parametrize(("level", "code", "lives"), [(2, 47, False), (2, 49, False), (2, 59, False), (2, 120, True)])
@pytest.mark.seed("588-2", semantics="kip", how="Java, the loop of the text")
def test_which_codes_java_takes_from_offset_commits(programs: Path, level: int, code: int, lives: bool) -> None:
    table = f"TxnOffsetCommit:0={code},EndTxn:5:commit=120,EndTxn:5:abort=0"
    (verdict,) = runs_of("Java 4.3.1", "offset-commit", level, 1, programs, codes=table)
    assert (verdict == "lives") == lives, verdict
