"""Whether a text is a pattern of ``java.util.regex.Pattern`` (Java 17), in time linear to the text.

Nothing is matched: Kafka compiles the patterns of client metrics when they are set, and refuses a wrong one. What is
accepted was compared with Java's answers. Two things are not checked: whether a block or script of Unicode
(``\\p{InGreek}``, ``\\p{IsGreek}``) exists, and whether Java can tell how long a look-behind is at most.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

_MAX_DEPTH: Final = 100
_MAX_COUNT: Final = (1 << 31) - 1
_SPACES: Final = frozenset("\t\n\v\f\r ")
_LINE_ENDS: Final = frozenset("\n\r\x85\u2028\u2029")
_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_OCTAL: Final = frozenset("01234567")
_END: Final = ""
_ESCAPED: Final = {"a": "\a", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLASSES: Final = frozenset("DdHhSsVvWw")
_FLAGS: Final = ("i", "m", "s", "d", "u", "c", "x", "U")
_NAMED_BY: Final = frozenset({"sc", "script", "blk", "block", "gc", "general_category"})
_OUTSIDE_CLASSES: Final = frozenset("ABGRXZbz")
_PROPERTY_NAMES: Final = (
    "Cn Lu Ll Lt Lm Lo Mn Me Mc Nd Nl No Zs Zl Zp Cc Cf Co Cs Pd Ps Pe Pc Po Sm Sc Sk So Pi Pf L M N Z C P S "
    "LC LD L1 all ASCII Alnum Alpha Blank Cntrl Digit Graph Lower Print Punct Space Upper XDigit "
    "javaLowerCase javaUpperCase javaAlphabetic javaIdeographic javaTitleCase javaDigit javaDefined "
    "javaLetter javaLetterOrDigit javaJavaIdentifierStart javaJavaIdentifierPart javaUnicodeIdentifierStart "
    "javaUnicodeIdentifierPart javaIdentifierIgnorable javaSpaceChar javaWhitespace javaISOControl "
    "javaMirrored"
)
_PROPERTIES: Final = frozenset(_PROPERTY_NAMES.split())


class _Refused(Exception):
    """Not a pattern."""


def is_java_pattern(text: str) -> bool:
    """False also for groups or classes that are nested more than 100 deep, which Java takes."""
    try:
        _Parser(_unquoted(text)).parse()
    except _Refused:
        return False
    return True


def _unquoted(text: str) -> list[str]:
    """The characters, with an escape for each between ``\\Q`` and ``\\E`` that could mean something."""
    made: list[str] = []
    at, quoted = 0, False
    while at < len(text):
        c, following = text[at], text[at + 1 : at + 2]
        at += 1
        if c == "\\" and following == ("E" if quoted else "Q"):
            quoted = not quoted
            at += 1
            if quoted and text[at : at + 1] in _DIGITS:  # not part of an escape before it
                made += "\\x3"
        elif quoted:
            made += c if not c.isascii() or c in _LETTERS or c in _DIGITS else f"\\{c}"
        elif c == "\\":
            made += c + following
            at += 1
        else:
            made.append(c)
    return made


class _Parser:
    """Recursive descent; each method moves `at` past the text that it has read."""

    def __init__(self, characters: list[str]) -> None:
        self.characters = characters
        self.at = 0
        self.depth = 0
        self.comments = False
        self.names: set[str] = set()

    def parse(self) -> None:
        self.alternatives()
        if self.peek() != _END:
            raise _Refused

    def raw(self, further: int = 0) -> str:
        """The next character as it is; _END behind the last one."""
        at = self.at + further
        return self.characters[at] if at < len(self.characters) else _END

    def peek(self) -> str:
        """The next character that counts: with the flag x spaces and comments do not."""
        while self.comments and (self.raw() in _SPACES or self.raw() == "#"):
            if self.raw() == "#":
                while self.at < len(self.characters) and self.raw() not in _LINE_ENDS:
                    self.at += 1
            else:
                self.at += 1
        return self.raw()

    def read(self) -> str:
        c = self.peek()
        if c == _END:
            raise _Refused
        self.at += 1
        return c

    def take(self, expected: str) -> bool:
        if self.peek() == expected:
            self.at += 1
            return True
        return False

    def need(self, expected: str) -> None:
        if not self.take(expected):
            raise _Refused

    def enter(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Refused

    def alternatives(self) -> None:
        self.sequence()
        while self.take("|"):
            self.sequence()

    def sequence(self) -> None:
        while (c := self.peek()) not in ("|", ")", _END):
            if c in ("*", "+", "?"):
                raise _Refused
            if c != "{":  # a count repeats nothing where there is nothing before it
                self.at += 1
            if c == "(":
                if self.group():
                    self.quantifier()
                continue
            if c == "[":
                self.bracket(consume=True)
            elif c == "\\":
                self.escape()
            self.quantifier()

    def quantifier(self) -> None:
        c = self.peek()
        if c == "{":
            self.counts()
        elif c in ("*", "+", "?"):
            self.at += 1
        else:
            return
        if self.peek() in ("?", "+"):
            self.at += 1

    def counts(self) -> None:
        self.at += 1
        if self.raw() not in _DIGITS or self.raw() == _END:
            raise _Refused
        least = most = self.number()
        if self.take(","):
            most = _MAX_COUNT if self.peek() == "}" else self.number()
        self.need("}")
        if most < least:
            raise _Refused

    def number(self) -> int:
        """0 where there are no digits."""
        value = 0
        while (c := self.peek()) in _DIGITS and c != _END:
            value = 10 * value + int(c)
            if value > _MAX_COUNT:
                raise _Refused
            self.at += 1
        return value

    def group(self) -> bool:
        """After its parenthesis. False for flags alone, which cannot be repeated."""
        self.enter()
        comments = self.comments
        if self.take("?"):
            kind = self.raw()
            self.at += 1
            if kind == "<":
                self.look_behind_or_name()
            elif kind not in (":", "=", "!", ">"):
                self.at -= 1
                self.flags()
                if self.read() == ")":
                    self.depth -= 1
                    return False
                if self.raw(-1) != ":":
                    raise _Refused
        self.alternatives()
        self.need(")")
        self.comments = comments
        self.depth -= 1
        return True

    def look_behind_or_name(self) -> None:
        if self.peek() in ("=", "!"):
            self.at += 1
            return
        name = self.group_name()
        if name in self.names:
            raise _Refused
        self.names.add(name)

    def group_name(self) -> str:
        name = self.read()
        if name not in _LETTERS:
            raise _Refused
        letters = [name]
        while (c := self.read()) in _LETTERS or c in _DIGITS:
            letters.append(c)
        if c != ">":
            raise _Refused
        return "".join(letters)

    def flags(self) -> None:
        on = True
        while (c := self.peek()) in _FLAGS or (c == "-" and on):
            self.at += 1
            if c == "-":
                on = False
            elif c == "x":
                self.comments = on

    def escape(self, *, in_class: bool = False, in_range: bool = False) -> str | None:
        """After the backslash. The character that it means; None for a class or what is no character."""
        c = self.raw()
        self.at += 1
        if c == _END:
            raise _Refused
        if c in _ESCAPED:
            return _ESCAPED[c]
        if c == "v" and in_range:
            return "\v"
        if c in _CLASSES:
            return None
        if c in _SPELLED:
            return _SPELLED[c](self)
        if c in ("p", "P"):
            self.family()
        elif in_class and (c in _OUTSIDE_CLASSES or c in _DIGITS or c == "k"):
            raise _Refused
        elif c == "b":
            if self.peek() == "{" and self.raw(1) == "g":
                self.at += 2
                self.need("}")
        elif c == "k":
            self.need("<")
            if self.group_name() not in self.names:
                raise _Refused
        elif c not in _DIGITS and c not in _OUTSIDE_CLASSES:
            if c in _LETTERS:
                raise _Refused
            return c
        return None

    def octal(self) -> str:
        digits = ""
        while len(digits) < (3 if digits[:1] < "4" else 2) and self.peek() in _OCTAL and self.peek() != _END:
            digits += self.read()
        if not digits:
            raise _Refused
        return chr(int(digits, 8))

    def hexadecimal(self) -> str:
        if not self.take("{"):
            return self.hex_digits(2)
        value = 0
        while (c := self.read()) in _HEX:
            value = 16 * value + int(c, 16)
            if value > sys.maxunicode:
                raise _Refused
        if c != "}" or self.raw(-2) == "{":
            raise _Refused
        return chr(value)

    def hex_digits(self, count: int) -> str:
        digits = "".join(self.read() for _ in range(count))
        if not _HEX.issuperset(digits):
            raise _Refused
        return chr(int(digits, 16))

    def control(self) -> str:
        return chr(ord(self.read()) ^ 64)

    def named_character(self) -> str:
        self.need("{")
        try:
            from unicodedata import lookup  # a shared library that hardly any pattern needs

            return lookup(self.upto_brace())
        except KeyError:
            raise _Refused from None

    def upto_brace(self) -> str:
        name: list[str] = []
        while self.raw() != "}":
            if self.raw() == _END:
                raise _Refused
            name.append(self.raw())
            self.at += 1
        self.at += 1
        return "".join(name)

    def family(self) -> None:
        name = self.upto_brace() if self.take("{") else self.read()
        kind, equals, value = name.partition("=")
        if equals:
            known = kind.lower() in _NAMED_BY and bool(value)
        else:
            known = name in _PROPERTIES or (name[:2] in ("In", "Is") and len(name) > 2)
        if not known:
            raise _Refused

    def bracket(self, *, consume: bool) -> None:
        """After its bracket, or after ``&&``, where it ends before that of the whole."""
        self.enter()
        if consume and self.peek() == "^" and self.raw(-1) == "[":
            self.at += 1
        some = False
        while (c := self.peek()) != "]" or not some:
            if c == "[":
                self.at += 1
                self.bracket(consume=True)
            elif c == "&" and self.intersects():
                some = self.intersection() or some
                if not some:
                    raise _Refused
                continue
            else:
                self.range()
            some = True
        self.at += consume
        self.depth -= 1

    def intersects(self) -> bool:
        """Read two ampersands if they follow; whether they did."""
        self.at += 1
        if self.peek() == "&":
            self.at += 1
            return True
        self.at -= 1
        return False

    def intersection(self) -> bool:
        """Whether there is anything to the right of the ampersands."""
        some = False
        while (c := self.peek()) not in ("]", "&"):
            if c == "[":
                self.at += 1
                self.bracket(consume=True)
            else:
                self.bracket(consume=False)
            some = True
        return some

    def range(self) -> None:
        low: str | None = self.read()
        if low == "\\":
            low = self.escape(in_class=True, in_range=self.raw(1) == "-")
        if low is None or self.peek() != "-" or self.raw(1) in ("[", "]"):
            return
        self.at += 1
        high: str | None = self.read()
        if high == "\\":
            high = self.escape(in_class=True, in_range=True)
        if high is None or high < low:
            raise _Refused


_SPELLED: Final[dict[str, Callable[[_Parser], str]]] = {
    "0": _Parser.octal,
    "N": _Parser.named_character,
    "c": _Parser.control,
    "u": lambda parser: parser.hex_digits(4),
    "x": _Parser.hexadecimal,
}
