"""Classes of characters in a client's pattern: Perl's, POSIX' and Unicode's, and letters that differ in case only.

What is in them, and their names, is RE2/J 1.8's, but the general categories are those of Python's Unicode version.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from minibroker.kernel.package_data import package_text

Test = Callable[[str], bool]

DIGITS: Final = frozenset("0123456789")
LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
PERL: Final = {"d": DIGITS, "w": DIGITS | LETTERS | {"_"}, "s": frozenset("\t\n\f\r ")}
WORD: Final = PERL["w"]
_ASCII: Final = frozenset(map(chr, range(128)))
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_LOWER: Final = frozenset(c for c in LETTERS if c.islower())
POSIX: Final = {
    "alnum": DIGITS | LETTERS,
    "alpha": LETTERS,
    "ascii": _ASCII,
    "blank": frozenset("\t "),
    "cntrl": frozenset(c for c in _ASCII if c < " " or c == "\x7f"),
    "digit": DIGITS,
    "graph": DIGITS | LETTERS | _PUNCTUATION,
    "lower": _LOWER,
    "print": DIGITS | LETTERS | _PUNCTUATION | {" "},
    "punct": _PUNCTUATION,
    "space": frozenset("\t\n\v\f\r "),
    "upper": LETTERS - _LOWER,
    "word": WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}
_CATEGORIES: Final = frozenset(
    {
        *("C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No"),
        *("P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"),
    }
)
_MORE_CASES: Final = {
    "k": "\u212a", "s": "ſ", "μ": "\xb5", "å": "\u212b", "ß": "ẞ", "ι": "\u0345\u1fbe", "β": "ϐ", "ε": "ϵ", "θ": "ϑϴ",
    "κ": "ϰ", "π": "ϖ", "ρ": "ϱ", "σ": "ς", "φ": "ϕ", "ω": "\u2126", "в": "ᲀ", "д": "ᲁ", "о": "ᲂ", "с": "ᲃ", "т": "ᲄᲅ",
    "ъ": "ᲆ", "ѣ": "ᲇ", "ꙋ": "ᲈ", "ṡ": "ẛ",
}  # fmt: skip
"""Characters with the case key of a letter that neither its upper nor its title case leads to."""


def case_key(c: str) -> str:
    """The same character for all that differ in case only (Unicode's simple folding)."""
    folded = c.casefold()
    if len(folded) > 1:
        folded = c.lower()
    return folded if len(folded) == 1 else c


@lru_cache(maxsize=1024)
def cases(c: str) -> tuple[str, ...]:
    """`c` and the characters that differ from it in case only."""
    key = case_key(c)
    near = {c, key, key.upper(), key.title(), *_MORE_CASES.get(key, "")}
    return tuple(other for other in near if len(other) == 1 and case_key(other) == key)


@dataclass(frozen=True, slots=True)
class Named:
    """A class by name.

    folds: what differs in case only is in it, too.

    What is `negated` is folded first.
    """

    test: Test
    negated: bool
    folds: bool

    @property
    def cost(self) -> int:
        return 5 if self.folds else 2

    def __call__(self, c: str) -> bool:
        return self._has(c) != self.negated

    def _has(self, c: str) -> bool:
        return any(map(self.test, cases(c))) if self.folds else self.test(c)


class Ranges:
    """Characters between first and last ones."""

    def __init__(self, ranges: Iterable[tuple[str, str]]) -> None:
        self._lows: list[str] = []
        self._highs: list[str] = []
        for low, high in sorted(ranges):
            if self._highs and low <= self._highs[-1]:
                self._highs[-1] = max(high, self._highs[-1])
            else:
                self._lows.append(low)
                self._highs.append(high)

    def __call__(self, c: str) -> bool:
        at = bisect_right(self._lows, c)
        return at > 0 and c <= self._highs[at - 1]


class BracketClass:
    """What is between brackets: characters, ranges and named classes.

    cost: how many tests one character takes.
    """

    def __init__(
        self, characters: set[str], ranges: list[tuple[str, str]], named: list[Named], *, folds: bool, negated: bool
    ) -> None:
        self._characters = frozenset(characters)
        self._ranges = Ranges(ranges)
        self._named = named
        self._folds = folds
        self._negated = negated
        self.cost = (6 if folds else 2) + sum(each.cost for each in named)

    def __call__(self, c: str) -> bool:
        return self._has(c) != self._negated

    def _has(self, c: str) -> bool:
        alike = cases(c) if self._folds else c
        return any(each in self._characters or self._ranges(each) for each in alike) or any(
            named(c) for named in self._named
        )


def unicode_class(name: str) -> Test | None:
    """A general category, a script or ``Any``; None for another name."""
    if name == "Any":
        return lambda c: True
    if name in _CATEGORIES:
        from unicodedata import category  # a shared library that hardly any pattern needs

        if name == "C":
            return lambda c: category(c) in ("Cc", "Cf", "Co", "Cs")
        return lambda c: category(c).startswith(name)
    return _script(name)


@lru_cache(maxsize=1)
def script_ranges() -> dict[str, str]:
    """Script of Unicode → its ranges of characters, as RE2/J knows them: those of Unicode 6.0.

    A range is the distance from the end of the one before, in base 36, and after a dot its characters beside the first.
    """
    ranges: dict[str, str] = json.loads(package_text(__name__, "unicode_scripts.json"))
    return ranges


@lru_cache(maxsize=8)
def _script(name: str) -> Ranges | None:
    written = script_ranges().get(name)
    if written is None:
        return None
    ranges = []
    point = 0
    for each in written.split():
        distance, _, more = each.partition(".")
        first = point + int(distance, 36)
        point = first + int(more or "0", 36)
        ranges.append((chr(first), chr(point)))
    return Ranges(ranges)
