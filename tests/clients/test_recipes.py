"""The how-tos are programs; they must work as they stand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from samples_of_pages import run_recipe

pytestmark = pytest.mark.clients

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "docs" / "how-to" / "recipes").glob("test_*.py"))


def test_there_are_ten_recipes_and_they_are_short() -> None:
    (recipes,) = (path for path in RECIPES if "recipes" in path.stem)
    numbered = [
        node for node in ast.parse(recipes.read_text()).body if re.match(r"test_\d+_", getattr(node, "name", ""))
    ]
    assert [int(node.name.split("_")[1]) for node in numbered] == list(range(1, 11))  # type: ignore[attr-defined]
    assert max((node.end_lineno or 0) - node.lineno for node in numbered) <= 25


NIGHTLY = {"test_questions_confluent"}


def test_the_page_of_questions_names_every_test() -> None:
    page = (ROOT / "docs" / "how-to" / "questions.md").read_text(encoding="utf-8")
    (questions,) = (path for path in RECIPES if "questions" in path.stem)
    functions = [node for node in ast.parse(questions.read_text()).body if isinstance(node, ast.FunctionDef)]
    tests = [function.name for function in functions if function.name.startswith("test")]
    assert re.findall(r"^\| (\d+) \| .* \| `(\w+)` \|$", page, re.MULTILINE) == [
        (str(number), name) for number, name in enumerate(tests, 1)
    ]
    assert len(tests) == 10


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(one, id=one.stem, marks=[pytest.mark.slow] if one.stem in NIGHTLY else []) for one in RECIPES],
)
def test_recipe(recipe: Path) -> None:
    printed = run_recipe(recipe)
    assert " passed" in printed
    assert " skipped" not in printed
