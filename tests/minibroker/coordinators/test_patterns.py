"""Client patterns: RE2's syntax, and never more than linear time."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pattern_engines
import pytest
from calls import Calls
from hypothesis import given
from hypothesis import strategies as st
from sampling import search

from minibroker.coordinators.pattern_classes import case_key, cases
from minibroker.coordinators.pattern_syntax import BadPattern
from minibroker.coordinators.patterns import Pattern
from minibroker_protocol.errors import ApiError

MOST_CALLS = 500_000
"""Of functions, for one pattern; what is not limited makes more by powers of ten."""
MATCHES = [
    ("", ["", None, "a"]),
    ("abc", ["abc", None, "ab", "abcd", ""]),
    ("a|b|", ["a", "b", "", None, "ab"]),
    ("a*", ["", "a", "aaaa", None, "ab"]),
    ("a+?b", ["ab", "aab", None, "b"]),
    ("(ab)?c", ["c", "abc", None, "ababc"]),
    ("a{2}", ["aa", None, "a", "aaa"]),
    ("a{2,}", ["aa", "aaaa", None, "a"]),
    ("a{1,3}b", ["ab", "aaab", None, "b", "aaaab"]),
    ("a{,3}", ["a{,3}", None, "aa"]),
    ("x{", ["x{", None, "x"]),
    (".", ["a", "é", None, "\n", ""]),
    ("(?s).", ["\n"]),
    ("(?i)Order-[a-c]", ["ORDER-B", "order-c", None, "order-d"]),
    ("(?i:a)b", ["Ab", "ab", None, "AB"]),
    ("(?i)a(?-i)b", ["Ab", None, "AB"]),
    ("[^a-c]", ["d", None, "b"]),
    ("[]a]+", ["]a]", None, "b"]),
    ("[a-]", ["-", "a", None, "b"]),
    (r"[\d_.-]+", ["1_2.-", None, "a"]),
    ("[[:alpha:]]+", ["aZ", None, "a1"]),
    ("[[:^digit:]]", ["a", None, "1"]),
    (r"\d\D\w\W\s\S", ["1aa- x", None, "aaaaaa"]),
    (r"\.\*\\", [".*\\"]),
    (r"\x41\x{263a}\101\n", ["A☺A\n"]),
    (r"\0101", ["\b1", None, "A"]),
    (r"\pL+", ["aé", None, "a1"]),
    (r"\p{Lu}\P{Lu}", ["Aa", None, "aA"]),
    (r"\Qa.b*\E+", ["a.b*", "a.b**", None, "axb"]),
    (r"\Q(", ["("]),
    ("^a$", ["a"]),
    (r"\Aa\z", ["a"]),
    (r"(?m)a$\n^b", ["a\nb"]),
    (r"a\b-\bb", ["a-b"]),
    (r"a\Bb", ["ab"]),
    (r"a\bb", [None, "ab"]),
    ("(?P<name>a)(?<other>b)", ["ab"]),
    ("(a|b)*c", ["c", "ababc", None, "abab"]),
    ("(a*)*", ["", "aaa"]),
    ("[*+]order", ["+order", None, "order"]),
    (r"\++", ["+++"]),
    (r"a\\1", ["a\\1"]),
]


@pytest.mark.parametrize(("text", "samples"), MATCHES, ids=[text for text, _ in MATCHES])
def test_matches(text: str, samples: list[str | None]) -> None:
    pattern = Pattern(text)
    cut = samples.index(None) if None in samples else len(samples)
    assert [s for s in samples[:cut] if s is not None and not pattern.fullmatch(s)] == []
    assert [s for s in samples[cut:] if s is not None and pattern.fullmatch(s)] == []


@pytest.mark.parametrize(
    "text",
    [
        *("(", ")", "a)", "[", "[a", "[b-a]", "[[:nope:]]", "*", "+a", "a**", "a++", "a*+", "a{2}{3}", "\\", r"\1"),
        *("(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?>a)", "(?P=n)", "(?P<1 >a)", "(?z)", "(?i", "a{2,1}", "a{1001}"),
        *(r"\p{Klingon}", r"\x{110000}", r"\xg1", r"\y", "(?:a" * 101 + ")" * 101, "a" + "(?i)*" * 1000, "(?-)", "(?"),
    ],
)
def test_what_is_no_pattern_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadPattern, match=r"\w"):
        Pattern(text)


def test_re2j_accepts_and_matches_the_same() -> None:
    rows = pattern_engines.read("re2j")
    assert len(rows) > 1000

    def ours(pattern: str, text: str) -> str:
        try:
            return "true" if Pattern(pattern).fullmatch(text) else "false"
        except BadPattern:
            return "refused"

    assert [(p, t, ours(p, t), answer) for p, t, answer in rows if ours(p, t) != answer] == []


def test_characters_that_differ_in_case_only_are_found_from_each_of_them() -> None:
    alike: dict[str, set[str]] = {}
    for point in (
        *range(0x530),
        *range(0x1C80, 0x1CC0),
        *range(0x1E00, 0x2200),
        *range(0x2C00, 0x2D00),
        0xA64A,
        0xA64B,
    ):
        alike.setdefault(case_key(chr(point)), set()).add(chr(point))
    assert [c for group in alike.values() for c in group if not group <= set(cases(c))] == []


def work_of(pattern: str, texts: list[str]) -> int:
    """Calls to compile a pattern and to match texts."""
    with Calls() as calls:
        compiled = Pattern(pattern)
        for text in texts:
            compiled.fullmatch(text)
    return calls.count


CHARACTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 1600)))
GROWING: list[tuple[str, Callable[[int], tuple[str, list[str]]]]] = [
    ("a longer text", lambda n: ("(?:ab?c)*d", ["abcac" * n])),
    ("a text of characters that are all new", lambda n: (r"(?:\pL|[0-9])*z", [CHARACTERS[: 2 * n]])),
    ("more texts", lambda n: ("orders-[0-9]+", [f"orders-{number}" for number in range(n)])),
    ("a longer literal", lambda n: ("a" * n, ["a" * n])),
    (
        "more alternatives",
        lambda n: ("|".join(f"topic-{number:04}" for number in range(n // 2)), ["topic-1", "topic-0002"]),
    ),
    ("more parts that may be missing", lambda n: ("a?b" * n, ["ab" * 40])),
    ("more classes", lambda n: ("[a-cx]" * n, ["abcx" * 20])),
    ("a larger class", lambda n: (f"[{CHARACTERS[: 2 * n]}]+", ["abc"])),
    ("a larger count", lambda n: (f"(?:ab){{{n}}}", ["ab" * 20])),
    ("deeper groups", lambda n: ("(?:x" * (n // 10) + ")" * (n // 10), ["x" * 20])),
    ("a repetition in a repetition", lambda n: ("(?:x" * (n // 20) + "y)+" * (n // 20), ["xy" * 10])),
    ("quoted text", lambda n: (rf"\Q{'a.' * n}\E", ["a." * 20])),
    ("braces that are no counts", lambda n: ("{x" * n, ["{x"])),
    ("brackets that are no classes", lambda n: (f"[{'[:' * n}x]", ["["])),
]


@pytest.mark.parametrize(("what", "case"), GROWING, ids=[what for what, _ in GROWING])
def test_work_grows_with_the_pattern_and_the_text_and_not_faster(what: str, case: Callable[[int], Any]) -> None:
    work_of("a", ["a"])
    small, large = work_of(*case(200)), work_of(*case(800))
    assert large < 4.5 * small + 2000, what


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", ""]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(lambda t: f"(?:{t[0]}){t[1]}"),
    ),
    max_leaves=8,
)


@search(200)
@given(text=EXPRESSIONS, sample=st.text("abc", max_size=6))
def test_agrees_with_re(text: str, sample: str) -> None:
    assert Pattern(text).fullmatch(sample) == (re.fullmatch(text, sample) is not None)


def test_a_search_ends_at_its_limit_whatever_is_left_of_the_names() -> None:
    """Each name is of new characters, so that nothing is known of it."""
    names = ["".join(map(chr, range(0x4E00 + 40 * number, 0x4E00 + 40 * number + 40))) for number in range(400)]
    pattern = Pattern("|".join(rf"\pL{{1,{number}}}" for number in range(1, 40)))
    with Calls() as calls, pytest.raises(ApiError, match="more than 100000 steps"):
        pattern.matching(names)
    assert calls.count < MOST_CALLS


def test_the_tests_of_a_class_count_as_steps() -> None:
    """Every character of this name is a new one, and each class looks at it."""
    pattern = Pattern("|".join(rf"[\d\w\PZ{chr(97 + i)}]*" for i in range(20)))
    text = "".join(map(chr, range(0x4E00, 0x5A00)))
    with pytest.raises(ApiError, match="more than 100000 steps"):
        pattern.search()(text)


@pytest.mark.parametrize(
    "text",
    [
        *("a" * 32_767, "a|" * 16_383, "()" * 16_383, "(?i)" * 8_191, "[" + "ab" * 16_000 + "]", "a{1000}" * 4_681),
        *("\\Q" + "a" * 32_000, "a" + "\\Q\\E*" * 6_000),
    ],
    ids=lambda text: text[:12],
)
def test_a_text_of_any_length_is_refused_soon(text: str) -> None:
    with Calls() as calls, pytest.raises(BadPattern, match=r"too large|repeated more than"):
        Pattern(text)
    assert calls.count < MOST_CALLS


def test_what_is_known_of_a_pattern_is_limited() -> None:
    """Seven megabytes if all were kept, or what was forgotten were held by what is still read."""
    pattern = Pattern("(a|b)*a(a|b){12}")
    rounds = [f"{number:b}".replace("0", "a").replace("1", "b") for number in range(1 << 14)]
    tracemalloc.start()
    try:
        found = [name for name in rounds if pattern.fullmatch(name)]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [name for name in rounds if len(name) > 12 and name[-13] == "a"]
    assert held < 3_000_000


def test_ordinary_patterns_go_through_many_names() -> None:
    """Within the limit of steps: a character that leads from a known state to another is none."""
    names = [f"orders.of-{number}" for number in range(20_000)]
    assert len(Pattern(r"orders\..*").matching(names)) == 20_000
    assert len(Pattern(r"(orders|payments)[.-].*[05]").matching(names)) == 4000
    assert len(Pattern("|".join(names[:300])).matching(names)) == 300
