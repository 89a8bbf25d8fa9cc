"""KIP-588's sample loop, its callback included and nothing flushed, with confluent-kafka.

Each cell of the table in docs/reference/semantics.md: a few runs here, all of them under `slow`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sample_loop import CONFLUENT, LEVELS, MEETS, PAGE, RUNS, page, recorded, runs_of

pytestmark = pytest.mark.clients

CELLS = pytest.mark.parametrize(("meets", "level"), [(meets, level) for meets in MEETS for level in LEVELS])


@CELLS
@pytest.mark.seed("588-2", "588-3", "588-8", "588-9", semantics="kip", how="confluent-kafka, the loop of the text")
def test_the_loop_of_the_text(meets: str, level: int) -> None:
    pytest.importorskip("confluent_kafka")
    assert set(runs_of(CONFLUENT, meets, level, 2)) <= recorded()[CONFLUENT][meets][str(level)].keys() == {"lives"}


@pytest.mark.slow
@CELLS
def test_the_loop_of_the_text_every_run(meets: str, level: int) -> None:
    assert Counter(runs_of(CONFLUENT, meets, level, RUNS)) == {"lives": RUNS}


@pytest.mark.parametrize(("code", "lives"), [(47, False), (49, False), (59, True), (120, True)])
@pytest.mark.seed("588-2", semantics="kip", how="confluent-kafka, the loop of the text")
def test_which_codes_confluent_takes_from_offset_commits(code: int, lives: bool) -> None:
    table = f"TxnOffsetCommit:0={code},AddPartitionsToTxn:0=49,EndTxn:0=49"
    (verdict,) = runs_of(CONFLUENT, "offset-commit", 2, 1, codes=table)
    assert (verdict == "lives") == lives, verdict


def test_the_table_in_the_docs_is_what_was_counted() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python tests/support sample_loop --table"
