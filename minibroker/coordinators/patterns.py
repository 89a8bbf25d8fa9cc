"""Regular expressions of clients, in RE2's syntax and in time linear to the text.

Kafka uses RE2/J (KIP-848, KIP-1152) because a pattern from outside must not be able to keep a broker busy; Python's
`re` backtracks. What is here: literals, ``.``, classes (ranges, Perl and POSIX classes, ``\\p{L}`` by general
category), groups, alternation, repetition, anchors, ``\\Q…\\E``, flags ``imsU``. Not here: Unicode scripts. A match is
one of the whole text. Syntax and limits: RE2's syntax page and RE2/J's Parser.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from minibroker_protocol.errors import ApiError, ErrorCode

MAX_REPEAT: Final = 1000
MAX_PROGRAM: Final = 5000
MAX_DEPTH: Final = 200
MAX_STEPS: Final = 100_000
"""Instructions that a pattern may visit while it goes through many names, some 30 ms, beside
`STEPS_A_CHARACTER` for each of their characters. Time linear to the text is not little time: the instructions of a
pattern such as ``((a?){10}){100}`` are all alive at each character."""
STEPS_A_CHARACTER: Final = 8

Test = Callable[[str], bool]


class BadPattern(ValueError):
    """Not a pattern of RE2; the text says what is wrong with it."""


@dataclass(slots=True)
class _Node:
    """kind: char (test), empty, concat, alternate, repeat (low, high; -1 no end), assert (op)."""

    kind: str
    parts: tuple[_Node, ...] = ()
    test: Test | None = None
    low: int = 0
    high: int = -1
    op: str = ""


_EMPTY: Final = _Node("empty")

_ESCAPED: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PERL: Final = {"d": _DIGITS, "w": _DIGITS | _LETTERS | {"_"}, "s": frozenset("\t\n\f\r ")}
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


class _Parser:
    """Recursive descent over the text; `flags` holds those of i, m, s, U that are on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.flags: frozenset[str] = frozenset()

    def parse(self) -> _Node:
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

    def alternation(self) -> _Node:
        branches = [self.concatenation()]
        while self.take("|"):
            branches.append(self.concatenation())
        return branches[0] if len(branches) == 1 else _Node("alternate", tuple(branches))

    def concatenation(self) -> _Node:
        parts: list[_Node] = []
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
        return _Node("concat", tuple(parts)) if parts else _EMPTY

    def repeated(self, node: _Node) -> _Node:
        bounds = self.bounds()
        if bounds is None:
            return node
        self.take("?")  # lazy: the same set of texts
        at = self.at
        if self.bounds() is not None:
            raise BadPattern(f"repetition of a repetition at {at}")
        return _Node("repeat", (node,), low=bounds[0], high=bounds[1])

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

    def atom(self) -> _Node:
        c = self.next("an expression")
        if c == "(":
            return self.group()
        if c == "[":
            return self.char(self.char_class())
        if c == ".":
            return (
                _Node("char", test=lambda c: True) if "s" in self.flags else self.char(_one_of(frozenset("\n"), True))
            )
        if c in "*+?":
            raise BadPattern(f"nothing to repeat at {self.at - 1}")
        if c == "^":
            return _Node("assert", op="line start" if "m" in self.flags else "start")
        if c == "$":
            return _Node("assert", op="line end" if "m" in self.flags else "end")
        return self.escape() if c == "\\" else self.literal(c)

    def literal(self, c: str) -> _Node:
        return self.char(c.__eq__)

    def char(self, test: Test) -> _Node:
        return _Node("char", test=_folded(test) if "i" in self.flags else test)

    def group(self) -> _Node:
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

    def escape(self) -> _Node:
        c = self.next("an escape")
        assertions = {"A": "start", "z": "end", "b": "word boundary", "B": "no word boundary"}
        if c in assertions:
            return _Node("assert", op=assertions[c])
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

    def char_class(self) -> Test:
        negated = self.take("^")
        tests: list[Test] = []
        first = True
        while first or not self.take("]"):
            first = False
            if self.take("[:"):
                name = self.upto(":", "a POSIX class")
                if not self.take("]") or name.removeprefix("^") not in _POSIX:
                    raise BadPattern(f"[:{name}:] is no class")
                tests.append(_one_of(_POSIX[name.removeprefix("^")], name.startswith("^")))
                continue
            c = self.next("a class")
            if c == "\\":
                c = self.next("a class")
                test = self.escaped_class(c)
                if test is not None:
                    tests.append(test)
                    continue
                c = self.escaped_char(c)
            tests.append(self.char_range(c))
        folded = [_folded(test) for test in tests] if "i" in self.flags else tests
        return lambda c: any(test(c) for test in folded) != negated

    def char_range(self, low: str) -> Test:
        if not self.peek("-") or self.peek("-]"):
            return low.__eq__
        self.at += 1
        high = self.next("a class")
        if high == "\\":
            high = self.escaped_char(self.next("a class"))
        if high < low:
            raise BadPattern(f"{low}-{high} is no range")
        return lambda c: low <= c <= high


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


@dataclass(slots=True)
class _Instruction:
    """test: consume a character; op: an assertion; jumps: go on at each of them; none of these: the end."""

    jumps: tuple[int, ...] = ()
    test: Test | None = None
    op: str = ""


class Pattern:
    """A compiled pattern (Thompson's construction); `fullmatch` takes time linear to the text."""

    def __init__(self, text: str) -> None:
        """Raises BadPattern."""
        self.text = text
        self._program: list[_Instruction] = []
        self._emit(_Parser(text).parse())
        self._program.append(_Instruction())

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that match. Raises ApiError(INVALID_REGULAR_EXPRESSION) where that takes too long."""
        found = set()
        left = MAX_STEPS
        for name in names:
            matched, steps = self._run(name, left)
            left -= steps - STEPS_A_CHARACTER * len(name)
            if left < 0:
                reason = f"pattern {self.text!r}: it takes more than {MAX_STEPS} steps to match it with all names"
                raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
            if matched:
                found.add(name)
        return frozenset(found)

    def fullmatch(self, text: str) -> bool:
        return self._run(text)[0]

    def _run(self, text: str, most: int = sys.maxsize) -> tuple[bool, int]:
        """(whether it matches, instructions visited); ends once these are more than `most` and what the text adds."""
        most += STEPS_A_CHARACTER * len(text)
        program = self._program
        end = len(program) - 1
        current = self._closure([0], text, 0)
        steps = len(current)
        for position, c in enumerate(text):
            following = []
            for at in current:
                test = program[at].test
                if test is not None and test(c):
                    following.append(at + 1)
            if not following or steps > most:
                return False, steps
            current = self._closure(following, text, position + 1)
            steps += len(current)
        return end in current, steps

    def _closure(self, start: list[int], text: str, position: int) -> set[int]:
        """Every instruction that can be reached without consuming a character."""
        program = self._program
        seen: set[int] = set()
        stack = start
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            instruction = program[at]
            if instruction.jumps:
                stack.extend(instruction.jumps)
            elif instruction.op and _holds(instruction.op, text, position):
                stack.append(at + 1)
        return seen

    def _add(self, instruction: _Instruction) -> int:
        if len(self._program) >= MAX_PROGRAM:
            raise BadPattern("the pattern is too large")
        self._program.append(instruction)
        return len(self._program) - 1

    def _emit(self, node: _Node) -> None:
        if node.kind == "char":
            self._add(_Instruction(test=node.test))
        elif node.kind == "assert":
            self._add(_Instruction(op=node.op))
        elif node.kind == "concat":
            for part in node.parts:
                self._emit(part)
        elif node.kind == "alternate":
            self._emit_alternatives(node.parts)
        elif node.kind == "repeat":
            self._emit_repetition(node.parts[0], node.low, node.high)

    def _emit_alternatives(self, branches: tuple[_Node, ...]) -> None:
        exits = []
        for branch in branches[:-1]:
            split = self._add(_Instruction())
            self._emit(branch)
            exits.append(self._add(_Instruction()))
            self._program[split].jumps = (split + 1, len(self._program))
        self._emit(branches[-1])
        for leave in exits:
            self._program[leave].jumps = (len(self._program),)

    def _emit_repetition(self, node: _Node, low: int, high: int) -> None:
        for _ in range(low):
            self._emit(node)
        if high < 0:
            split = self._add(_Instruction())
            self._emit(node)
            self._add(_Instruction(jumps=(split,)))
            self._program[split].jumps = (split + 1, len(self._program))
            return
        splits = []
        for _ in range(high - low):
            splits.append(self._add(_Instruction()))
            self._emit(node)
        for split in splits:
            self._program[split].jumps = (split + 1, len(self._program))


def _holds(op: str, text: str, position: int) -> bool:
    before, after = text[position - 1 : position] if position else "", text[position : position + 1]
    if op == "start":
        return not before
    if op == "end":
        return not after
    if op == "line start":
        return before in ("", "\n")
    if op == "line end":
        return after in ("", "\n")
    boundary = (before in _PERL["w"]) != (after in _PERL["w"])
    return boundary if op == "word boundary" else not boundary


def compile_pattern(text: str | None) -> Pattern | None:
    """The pattern a client sent; None and "" stand for no pattern. Raises ApiError(INVALID_REGULAR_EXPRESSION)."""
    if not text:
        return None
    try:
        return _compiled(text)
    except BadPattern as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {text!r}: {error}") from None


@lru_cache(maxsize=64)
def _compiled(text: str) -> Pattern:
    return Pattern(text)
