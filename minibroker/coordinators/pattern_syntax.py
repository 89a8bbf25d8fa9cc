"""The syntax of RE2 as far as `patterns` knows it: a pattern's text becomes a tree.

What is here: literals, ``.``, classes (ranges, Perl and POSIX classes, ``\\p{L}`` by general category), groups,
alternation, repetition, anchors, ``\\Q…\\E``, flags ``imsU``. Not here: Unicode scripts. Syntax and limits: RE2's
syntax page and RE2/J's Parser.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_REPEAT: Final = 1000
MAX_PARTS: Final = 5000
"""Parts of a text, and instructions that it becomes."""
MAX_DEPTH: Final = 200

Test = Callable[[str], bool]


class BadPattern(ValueError):
    """Not a pattern of RE2; the text says what is wrong with it."""


@dataclass(slots=True)
class Regexp:
    """kind: char (test), empty, concat, alternate, repeat (low, high; -1 no end), assert (op)."""

    kind: str
    parts: tuple[Regexp, ...] = ()
    test: Test | None = None
    low: int = 0
    high: int = -1
    op: str = ""


_EMPTY: Final = Regexp("empty")

_ESCAPED: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PERL: Final = {"d": _DIGITS, "w": _DIGITS | _LETTERS | {"_"}, "s": frozenset("\t\n\f\r ")}
WORD: Final = _PERL["w"]
_ASCII: Final = frozenset(map(chr, range(128)))
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_LOWER: Final = frozenset(c for c in _LETTERS if c.islower())
_POSIX: Final = {
    "alnum": _DIGITS | _LETTERS,
    "alpha": _LETTERS,
    "ascii": _ASCII,
    "blank": frozenset("\t "),
    "cntrl": frozenset(c for c in _ASCII if c < " " or c == "\x7f"),
    "digit": _DIGITS,
    "graph": _DIGITS | _LETTERS | _PUNCTUATION,
    "lower": _LOWER,
    "print": _DIGITS | _LETTERS | _PUNCTUATION | {" "},
    "punct": _PUNCTUATION,
    "space": frozenset("\t\n\v\f\r "),
    "upper": _LETTERS - _LOWER,
    "word": _PERL["w"],
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}


def _one_of(characters: frozenset[str], negated: bool = False) -> Test:
    return (lambda c: c not in characters) if negated else characters.__contains__


def _folded(test: Test) -> Test:
    return lambda c: test(c) or test(c.lower()) or test(c.upper())


class BracketClass:
    """What is between brackets: characters, ranges and named classes. cost: how many tests one character takes."""

    def __init__(
        self, characters: set[str], ranges: list[tuple[str, str]], named: list[Test], *, folds: bool, negated: bool
    ) -> None:
        self._characters = frozenset(characters)
        self._lows, self._highs = _merged(ranges)
        self._named = named
        self._folds = folds
        self._negated = negated
        self.cost = (2 + len(named)) * (3 if folds else 1)

    def __call__(self, c: str) -> bool:
        found = self._has(c) or (self._folds and (self._has(c.lower()) or self._has(c.upper())))
        return found != self._negated

    def _has(self, c: str) -> bool:
        at = bisect_right(self._lows, c)
        return c in self._characters or (at > 0 and c <= self._highs[at - 1]) or any(test(c) for test in self._named)


def _merged(ranges: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """First and last characters of ranges in order that share none."""
    lows: list[str] = []
    highs: list[str] = []
    for low, high in sorted(ranges):
        if highs and low <= highs[-1]:
            highs[-1] = max(high, highs[-1])
        else:
            lows.append(low)
            highs.append(high)
    return lows, highs


class Parser:
    """Recursive descent over the text; `flags` holds those of i, m, s, U that are on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.left = MAX_PARTS
        self.flags: frozenset[str] = frozenset()

    def count(self) -> None:
        """One more part; raises BadPattern where there are too many."""
        self.left -= 1
        if self.left < 0:
            raise BadPattern("the pattern is too large")

    def parse(self) -> Regexp:
        node = self.alternation()
        if self.at < len(self.text):
            raise BadPattern(f"unexpected ')' at {self.at}")
        return node

    def peek(self, expected: str) -> bool:
        return self.text.startswith(expected, self.at)

    def take(self, expected: str) -> bool:
        if self.peek(expected):
            self.at += len(expected)
            return True
        return False

    def next(self, where: str) -> str:
        if self.at >= len(self.text):
            raise BadPattern(f"the pattern ends within {where}")
        self.at += 1
        return self.text[self.at - 1]

    def alternation(self) -> Regexp:
        branches = [self.concatenation()]
        while self.take("|"):
            self.count()
            branches.append(self.concatenation())
        return branches[0] if len(branches) == 1 else Regexp("alternate", tuple(branches))

    def concatenation(self) -> Regexp:
        parts: list[Regexp] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self.take("\\Q"):
                end = self.text.find("\\E", self.at)
                quoted = self.text[self.at : end] if end >= 0 else self.text[self.at :]
                self.at = end + 2 if end >= 0 else len(self.text)
                parts.extend(self.literal(c) for c in quoted)
                if not parts or not quoted:
                    continue
            else:
                parts.append(self.atom())
            parts[-1] = self.repeated(parts[-1])
        return Regexp("concat", tuple(parts)) if parts else _EMPTY

    def repeated(self, node: Regexp) -> Regexp:
        bounds = self.bounds()
        if bounds is None:
            return node
        self.take("?")  # lazy: the same set of texts
        at = self.at
        if self.bounds() is not None:
            raise BadPattern(f"repetition of a repetition at {at}")
        return Regexp("repeat", (node,), low=bounds[0], high=bounds[1])

    def bounds(self) -> tuple[int, int] | None:
        """What a quantifier says, None when there is none; ``{`` that begins no quantifier is a literal."""
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        if not self.peek("{"):
            return None
        close = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(close, self.at + 1)].partition(",")
        if not _is_number(low) or (high and not _is_number(high)):
            return None
        self.at = close + 1
        bounds = (int(low), int(low) if not comma else int(high) if high else -1)
        if max(bounds) > MAX_REPEAT or 0 <= bounds[1] < bounds[0]:
            raise BadPattern(f"repetition {{{low}{comma}{high}}} is not possible, the limit is {MAX_REPEAT}")
        return bounds

    def atom(self) -> Regexp:
        self.count()
        c = self.next("an expression")
        if c == "(":
            return self.group()
        if c == "[":
            return Regexp("char", test=self.char_class())
        if c == ".":
            return (
                Regexp("char", test=lambda c: True) if "s" in self.flags else self.char(_one_of(frozenset("\n"), True))
            )
        if c in "*+?":
            raise BadPattern(f"nothing to repeat at {self.at - 1}")
        if c == "^":
            return Regexp("assert", op="line start" if "m" in self.flags else "start")
        if c == "$":
            return Regexp("assert", op="line end" if "m" in self.flags else "end")
        return self.escape() if c == "\\" else self.literal(c)

    def literal(self, c: str) -> Regexp:
        return self.char(c.__eq__)

    def char(self, test: Test) -> Regexp:
        return Regexp("char", test=_folded(test) if "i" in self.flags else test)

    def group(self) -> Regexp:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadPattern(f"groups are nested more than {MAX_DEPTH} deep")
        outer = self.flags
        if self.take("?"):
            if self.take("P<") or (self.peek("<") and not self.peek("<=") and not self.peek("<!") and self.take("<")):
                name = self.upto(">", "a group's name")
                if not name.isidentifier():
                    raise BadPattern(f"{name!r} is no name of a group")
            elif self.inline_flags():
                self.depth -= 1
                return _EMPTY
        node = self.alternation()
        if not self.take(")"):
            raise BadPattern("a group is not closed")
        self.flags = outer
        self.depth -= 1
        return node

    def inline_flags(self) -> bool:
        """After ``(?``: True for ``(?i)``, which holds for the rest of the group; False for ``(?i:``."""
        on, off, target = set(self.flags), False, 0
        while True:
            c = self.next("a group's flags")
            if c == "-" and not off:
                off = True
            elif c in "imsU":
                (on.discard if off else on.add)(c)
                target += 1
            elif c in ":)" and not (off and not target):
                self.flags = frozenset(on)
                return c == ")"
            else:
                raise BadPattern(f"(?{c} is not supported")

    def upto(self, end: str, what: str) -> str:
        close = self.text.find(end, self.at)
        if close < 0:
            raise BadPattern(f"the pattern ends within {what}")
        found, self.at = self.text[self.at : close], close + 1
        return found

    def escape(self) -> Regexp:
        c = self.next("an escape")
        assertions = {"A": "start", "z": "end", "b": "word boundary", "B": "no word boundary"}
        if c in assertions:
            return Regexp("assert", op=assertions[c])
        test = self.escaped_class(c)
        return self.char(test) if test is not None else self.literal(self.escaped_char(c))

    def escaped_class(self, c: str) -> Test | None:
        if c.lower() in _PERL:
            return _one_of(_PERL[c.lower()], c.isupper())
        if c not in "pP":
            return None
        name = self.upto("}", "a Unicode class") if self.take("{") else self.next("a Unicode class")
        negated = (c == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if len(name) > 2 or name[:1] not in "LMNPSZC":
            raise BadPattern(f"Unicode class {name!r} is not supported")
        from unicodedata import category  # a shared library that hardly any pattern needs

        return lambda c: category(c).startswith(name) != negated

    def escaped_char(self, c: str) -> str:
        if c in _ESCAPED:
            return _ESCAPED[c]
        if c == "x":
            digits = self.upto("}", "\\x{…}") if self.take("{") else self.next("\\x") + self.next("\\x")
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise BadPattern(f"\\x{digits} is no character") from None
        if c == "0" or (c in "1234567" and self.text[self.at : self.at + 1] in tuple("01234567")):
            digits = c
            while len(digits) < 3 and self.text[self.at : self.at + 1] in tuple("01234567"):
                digits += self.next("an octal escape")
            return chr(int(digits, 8))
        if c.isascii() and not c.isalnum():
            return c
        raise BadPattern(f"\\{c} is not supported")

    def char_class(self) -> BracketClass:
        negated = self.take("^")
        characters: set[str] = set()
        ranges: list[tuple[str, str]] = []
        named: dict[str, Test] = {}
        first = True
        while first or not self.take("]"):
            first = False
            self.count()
            at = self.at
            if self.take("[:"):
                name = self.upto(":", "a POSIX class")
                if not self.take("]") or name.removeprefix("^") not in _POSIX:
                    raise BadPattern(f"[:{name}:] is no class")
                named[name] = _one_of(_POSIX[name.removeprefix("^")], name.startswith("^"))
                continue
            c = self.next("a class")
            if c == "\\":
                c = self.next("a class")
                test = self.escaped_class(c)
                if test is not None:
                    named[self.text[at : self.at]] = test
                    continue
                c = self.escaped_char(c)
            high = self.end_of_range(c)
            if high == c:
                characters.add(c)
            else:
                ranges.append((c, high))
        return BracketClass(characters, ranges, list(named.values()), folds="i" in self.flags, negated=negated)

    def end_of_range(self, low: str) -> str:
        """The last character of the range that begins with `low`, itself where none does."""
        if not self.peek("-") or self.peek("-]"):
            return low
        self.at += 1
        high = self.next("a class")
        if high == "\\":
            high = self.escaped_char(self.next("a class"))
        if high < low:
            raise BadPattern(f"{low}-{high} is no range")
        return high


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
