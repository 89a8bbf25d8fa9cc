"""RE2/J and java.util.regex, asked about patterns (`tests/jvm/PatternChecks.java`).

Run as a program it asks both about the patterns in `FILE`, which keeps the answers for tests without a Java. A new row
has any answer before that. With ``--scripts`` it writes the table of Unicode's scripts anew, which takes two minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random

from jvm import JVM_TIER, compile_java, run_java

from minibroker.coordinators.pattern_classes import script_ranges

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests" / "golden" / "patterns-of-java.json"
SCRIPTS = ROOT / "minibroker" / "coordinators" / "unicode_scripts.json"
RE2_TOKENS = [
    *(
        "a",
        "b",
        "A",
        "k",
        "é",
        "-",
        ".",
        "|",
        "^",
        "$",
        "*",
        "+",
        "?",
        "{2}",
        "{1,2}",
        "{0,}",
        "{",
        "}",
        "(",
        "(",
        ")",
        ")",
    ),
    *(
        "[ab]",
        "[^a]",
        "[a-c]",
        "[[:alpha:]]",
        "[[:^digit:]]",
        r"[\d_]",
        r"[^\W]",
        "[",
        "]",
        "(?:",
        "(?i)",
        "(?s)",
        "(?m)",
    ),
    *(r"\d", r"\w", r"\W", r"\s", r"\pL", r"\PN", r"\p{Greek}", r"\p{^Latin}", r"\x41", r"\x{3b1}", r"\n", r"\."),
    *(r"\b", r"\B", r"\A", r"\z", r"\Q", r"\E", "(?i:", "(?-i)", "(?P<n>"),
]
JAVA_TOKENS = [
    *("a", "b", "1", " ", "#", "-", ".", "|", "^", "$", "*", "+", "?", "{2}", "{1,2}", "{0,}", "{", "}", "(", "(", ")"),
    *("[ab]", "[^a]", "[a-c&&b]", "&&", "[", "]", "[", "]", "(?:", "(?i)", "(?x)", "(?-x)", "(?>", "(?=", "(?!", ")"),
    *("(?<!", "(?<n>", r"\d", r"\w", r"\W", r"\s", r"\h", r"\v", r"\R", r"\pL", r"\p{Lu}", r"\p{IsGreek}", r"\p{Foo}"),
    *(r"\x41", r"\x{3b1}", r"\u0041", r"\07", r"\cA", r"\n", r"\.", r"\-", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G"),
    *(r"\Q", r"\E", "(?i:", r"\1", r"\k<n>", r"\y", r"\N{SPACE}", r"\b{g}", "\n"),
]
TEXT = "abAkKé-α1_\n ſΩ"


def random_rows(rng: Random, tokens: list[str], count: int) -> list[tuple[str, str]]:
    """Short patterns of a few tokens, with texts of a few characters."""
    return [
        ("".join(rng.choices(tokens, k=rng.randrange(1, 8))), "".join(rng.choices(TEXT, k=rng.randrange(5))))
        for _ in range(count)
    ]


def read(engine: str) -> list[tuple[str, str, str]]:
    """Pattern, text and answer."""
    return [(pattern, text, answer) for pattern, text, answer in json.loads(FILE.read_text())[engine]]


def answers(rows: Iterable[tuple[str, str, str]], programs: Path) -> list[str]:
    """rows: engine, pattern, text. programs: where `PatternChecks` is compiled. Raises Unavailable."""
    lines = "".join(f"{engine} {pattern.encode().hex()} {text.encode().hex()}\n" for engine, pattern, text in rows)
    done = run_java("PatternChecks", extra=(programs,), stdin=lines, seconds=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _base_36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
        if not number:
            return digits


def encoded(ranges: str) -> str:
    """``FIRST-LAST,…`` as the table has it."""
    parts, end = [], 0
    for range_ in ranges.split(","):
        first, last = (int(point, 16) for point in range_.split("-"))
        parts.append(_base_36(first - end) + (f".{_base_36(last - first)}" if last > first else ""))
        end = last
    return " ".join(parts)


def write_scripts(programs: Path) -> None:
    names = list(script_ranges())
    by_name = answers((("ranges", rf"\p{{{name}}}", "") for name in names), programs)
    rows = [f'"{name}": "{encoded(ranges)}"' for name, ranges in zip(names, by_name, strict=True)]
    SCRIPTS.write_text("{\n " + ",\n ".join(rows) + "\n}\n")


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        programs = compile_java([JVM_TIER / "PatternChecks.java"], Path(place))
        if "--scripts" in arguments:
            write_scripts(programs)
        lines = []
        for engine, rows in json.loads(FILE.read_text()).items():
            verdicts = answers(((engine, pattern, text) for pattern, text, _ in rows), programs)
            kept = [json.dumps([*row[:2], answer]) for row, answer in zip(rows, verdicts, strict=True)]
            lines.append(f'"{engine}": [\n' + ",\n".join(kept) + "\n]")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
