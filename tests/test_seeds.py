"""benchmarks/results/seeds.md is what the markers of the tests say, and every row has its proof."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import seeds
from seeds import PAGE, ROOT, SEEDS, Proof, page, problems


@cache
def proofs() -> list[Proof]:
    """What all tests say, read once."""
    return list(seeds.proofs())


def test_every_row_has_a_proof_under_both_semantics_and_every_marker_a_row() -> None:
    assert problems(proofs()) == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(proofs()), "run python tests/support seeds"


@pytest.mark.parametrize(
    ("proof", "problem"),
    [
        (Proof("t", ("360-99",), ("kafka",), "raw"), "t: 360-99 is not a seed"),
        (Proof("t", ("360-1",), (), "raw"), "t: semantics ()"),
        (Proof("t", ("360-1",), ("kafak",), "raw"), "t: semantics ('kafak',)"),
    ],
)
def test_what_is_wrong_with_a_marker(proof: Proof, problem: str) -> None:
    assert problem in problems([*proofs(), proof])


def test_a_row_without_a_proof_is_found() -> None:
    left = [proof for proof in proofs() if "360-3" not in proof.ids]
    assert problems(left) == [
        f"360-3: no {what} under {semantics}" for semantics in ("kafka", "kip") for what in ("raw test", "client")
    ]
    raw = [proof for proof in proofs() if "360-3" not in proof.ids or proof.how == "raw"]
    assert problems(raw) == ["360-3: no client under kafka", "360-3: no client under kip"]


def test_an_excuse_that_does_not_hold_is_found() -> None:
    shown = Proof("t", ("588-7",), ("kip",), "Java")
    assert problems([*proofs(), shown]) == ["588-7: a client shows it under kip, so there is no excuse"]


def test_markers_are_literals(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@pytest.mark.seed(SOME)\ndef test_y(): ...\n")
    with pytest.raises(ValueError, match="literals"):
        seeds.proofs(tmp_path)


def test_links_lead_to_tests() -> None:
    for proof in proofs():
        assert (ROOT / proof.test.partition("::")[0]).exists()
    assert len(SEEDS) == 44
