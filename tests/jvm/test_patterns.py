"""Patterns, asked of RE2/J and of Java."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pattern_engines
import pytest
from pattern_engines import FILE, RE2_TOKENS, answers, encoded, random_rows

from minibroker.coordinators.pattern_classes import script_ranges
from minibroker.coordinators.pattern_syntax import BadPattern
from minibroker.coordinators.patterns import Pattern

pytestmark = pytest.mark.jvm

SAMPLES = 10_000


def matched(pattern: str, text: str) -> str:
    try:
        return "true" if Pattern(pattern).fullmatch(text) else "false"
    except BadPattern:
        return "refused"


@pytest.mark.parametrize("engine", json.loads(FILE.read_text()))
def test_they_answer_as_recorded(engine: str, programs: Path) -> None:
    rows = pattern_engines.read(engine)
    found = answers(((engine, pattern, text) for pattern, text, _ in rows), programs)
    assert [(row, now) for row, now in zip(rows, found, strict=True) if row[2] != now] == []


def test_re2j_answers_random_patterns_as_we_do(programs: Path) -> None:
    rows = random_rows(Random(664), RE2_TOKENS, SAMPLES)
    found = answers((("re2j", *row) for row in rows), programs)
    assert found.count("true") > SAMPLES // 50
    assert [(*row, answer) for row, answer in zip(rows, found, strict=True) if matched(*row) != answer][:10] == []


def test_re2j_knows_the_scripts_as_written(programs: Path) -> None:
    names = ["Greek", "Cyrillic", "Han", "Thai"]
    found = answers((("ranges", rf"\p{{{name}}}", "") for name in names), programs)
    assert [encoded(ranges) for ranges in found] == [script_ranges()[name] for name in names]
