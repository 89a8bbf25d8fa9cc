"""Parses the part of RE2's syntax that `patterns` supports: a pattern's text becomes a tree.

What is here: literals, ``.``, classes (ranges, Perl and POSIX classes, ``\\p{L}`` and ``\\p{Greek}`` by category and
script), groups, alternation, repetition, anchors, ``\\Q…\\E``, flags ``imsU``. What is accepted, and what it matches,
was compared with RE2/J 1.8.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Final

from minibroker.coordinators.pattern_classes import PERL, POSIX, BracketClass, Named, Test, cases, unicode_class

MAX_REPEAT: Final = 1000
MAX_PARTS: Final = 5000
"""Parts of a text, and instructions that it becomes."""
MAX_DEPTH: Final = 100
"""Groups within groups, and repetitions of one part, as in ``a*(?i)*``."""


class BadPattern(ValueError):
    """Not a pattern of RE2; the text says what is wrong with it."""


@dataclass(slots=True)
class Regexp:
    """kind: char (test), empty, concat, alternate, repeat (low, high; -1 no end), assert (op).
    height: repetitions of repetitions, without groups between them.
    """

    kind: str
    parts: tuple[Regexp, ...] = ()
    test: Test | None = None
    low: int = 0
    high: int = -1
    op: str = ""
    height: int = 0


_EMPTY: Final = Regexp("empty")


def _any(_c: str) -> bool:
    return True


_ESCAPED: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_NUMBER: Final = "0|[1-9][0-9]*"
_COUNTS: Final = re.compile(rf"\{{({_NUMBER})(?:(,)({_NUMBER})?)?\}}")
_GROUP_NAME: Final = re.compile("[0-9A-Za-z_]+")
_HEX: Final = re.compile("[0-9A-Fa-f]+")
_MOST_DIGITS: Final = 8
_OCTAL: Final = frozenset("01234567")


class Parser:
    """Recursive descent over the text; `flags` holds those of i, m, s, U that are on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.parts_left = MAX_PARTS
        self.flags: frozenset[str] = frozenset()
        self.names: set[str] = set()
        self.last_posix = len(text)

    def count(self) -> None:
        """One more part; raises BadPattern where there are too many."""
        self.parts_left -= 1
        if self.parts_left < 0:
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
                for c in quoted:
                    self.count()
                    parts.append(self.literal(c))
            elif (atom := self.atom()) is not None:
                parts.append(atom)
            # Also after what is nothing: a quantifier repeats what is before it.
            if parts:
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
        if node.height >= MAX_DEPTH:
            raise BadPattern(f"a part is repeated more than {MAX_DEPTH} times over")
        return Regexp("repeat", (node,), low=bounds[0], high=bounds[1], height=node.height + 1)

    def bounds(self) -> tuple[int, int] | None:
        """What a quantifier says, None when there is none; ``{`` that begins no quantifier is a literal."""
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        counts = _COUNTS.match(self.text, self.at)
        if counts is None:
            return None
        self.at = counts.end()
        low, comma, high = counts.groups()
        if max(len(low), len(high or "")) > _MOST_DIGITS:
            raise BadPattern(f"the limit of repetitions is {MAX_REPEAT}")
        bounds = (int(low), int(low) if not comma else int(high) if high else -1)
        if max(bounds) > MAX_REPEAT or 0 <= bounds[1] < bounds[0]:
            raise BadPattern(f"repetition {counts[0]} is not possible, the limit is {MAX_REPEAT}")
        return bounds

    def atom(self) -> Regexp | None:
        """None for flags, which are no part of the pattern."""
        self.count()
        c = self.next("an expression")
        if c == "(":
            return self.group()
        if c == "[":
            return Regexp("char", test=self.char_class())
        if c == ".":
            return Regexp("char", test=_any if "s" in self.flags else "\n".__ne__)
        if c in "*+?" or (c == "{" and _COUNTS.match(self.text, self.at - 1)):
            raise BadPattern(f"nothing to repeat at {self.at - 1}")
        if c == "^":
            return Regexp("assert", op="line start" if "m" in self.flags else "start")
        if c == "$":
            return Regexp("assert", op="line end" if "m" in self.flags else "end")
        if c == "{" and self.bounds() is not None:  # to RE2/J it was a quantifier that failed
            raise BadPattern("a brace is repeated")
        return self.escape() if c == "\\" else self.literal(c)

    def literal(self, c: str) -> Regexp:
        alike = cases(c) if "i" in self.flags else (c,)
        return Regexp("char", test=frozenset(alike).__contains__ if len(alike) > 1 else c.__eq__)

    def group(self) -> Regexp | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadPattern(f"groups are nested more than {MAX_DEPTH} deep")
        outer = self.flags
        if self.take("?"):
            if self.take("P<") or (self.peek("<") and not self.peek("<=") and not self.peek("<!") and self.take("<")):
                name = self.upto(">", "a group's name")
                if not _GROUP_NAME.fullmatch(name) or name in self.names:
                    raise BadPattern(f"{name[:50]!r} is no name of a group, or another group has it")
                self.names.add(name)
            elif self.inline_flags():
                self.depth -= 1
                return None
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
                off, target = True, 0
            elif c in "imsU":
                (on.discard if off else on.add)(c)
                target += 1
            # RE2 wants a flag after ``-``: ``(?i-)`` is no pattern, ``(?)`` is one.
            elif c in ":)" and not (off and not target):
                self.flags = frozenset(on)
                return c == ")"
            else:
                raise BadPattern(f"(?{c} is not supported")

    def upto(self, end: str, what: str) -> str:
        close = self.text.find(end, self.at)
        if close < 0:
            raise BadPattern(f"the pattern ends within {what}")
        text, self.at = self.text[self.at : close], close + 1
        return text

    def escape(self) -> Regexp:
        c = self.next("an escape")
        assertions = {"A": "start", "z": "end", "b": "word boundary", "B": "no word boundary"}
        if c in assertions:
            return Regexp("assert", op=assertions[c])
        test = self.escaped_class(c)
        return self.literal(self.escaped_char(c)) if test is None else Regexp("char", test=test)

    def escaped_class(self, c: str) -> Named | None:
        if c.lower() in PERL:
            return Named(PERL[c.lower()].__contains__, negated=c.isupper(), folds="i" in self.flags)
        if c not in "pP":
            return None
        name = self.upto("}", "a Unicode class") if self.take("{") else self.next("a Unicode class")
        # As in RE2, ``\P{^L}`` negates twice: it matches a letter.
        negated = (c == "P") != name.startswith("^")
        test = unicode_class(name.removeprefix("^"))
        if test is None:
            raise BadPattern(f"Unicode class {name[:50]!r} is not known")
        return Named(test, negated, folds="i" in self.flags)

    def escaped_char(self, c: str) -> str:
        if c in _ESCAPED:
            return _ESCAPED[c]
        if c == "x":
            digits = self.upto("}", "\\x{…}") if self.take("{") else self.next("\\x") + self.next("\\x")
            if not _HEX.fullmatch(digits) or len(digits.lstrip("0")) > 6 or int(digits, 16) > sys.maxunicode:
                raise BadPattern(f"\\x{digits[:50]} is no character")
            return chr(int(digits, 16))
        if c == "0" or (c in "1234567" and self.text[self.at : self.at + 1] in _OCTAL):
            digits = c
            while len(digits) < 3 and self.text[self.at : self.at + 1] in _OCTAL:
                digits += self.next("an octal escape")
            return chr(int(digits, 8))
        if not (c.isascii() and c.isalnum()):
            return c
        raise BadPattern(f"\\{c} is not supported")

    def char_class(self) -> BracketClass:
        negated = self.take("^")
        characters: set[str] = set()
        ranges: list[tuple[str, str]] = []
        named: dict[str, Named] = {}
        first = True
        while first or not self.take("]"):
            first = False
            self.count()
            at = self.at
            posix = self.posix_class()
            if posix is not None:
                named[self.text[at : self.at]] = posix
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

    def posix_class(self) -> Named | None:
        """``[:alpha:]`` within brackets; ``[:`` without an end is two characters."""
        if not self.peek("[:") or self.at > self.last_posix:
            return None
        close = self.text.find(":]", self.at + 2)
        if close < 0:
            self.last_posix = self.at  # nor is there one for those that follow
            return None
        name, self.at = self.text[self.at + 2 : close], close + 2
        if name.removeprefix("^") not in POSIX:
            raise BadPattern(f"[:{name[:50]}:] is no class")
        has = POSIX[name.removeprefix("^")].__contains__
        return Named(has, negated=name.startswith("^"), folds="i" in self.flags)

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
