"""Regular expressions of clients, in RE2's syntax (`pattern_syntax`) and in time linear to the text.

Kafka uses RE2/J (KIP-848, KIP-1152) because a pattern from outside must not be able to keep a broker busy; Python's
`re` backtracks. A match is one of the whole text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from minibroker.coordinators.pattern_classes import WORD, BracketClass, Named, Test
from minibroker.coordinators.pattern_syntax import MAX_PARTS, BadPattern, Parser, Regexp
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import UNHURRIED, Pace

_MAX_EMITTED: Final = 4 * MAX_PARTS
MAX_STEPS: Final = 100_000
"""Instructions that a pattern may visit while it goes through many names, about 30 ms. Time linear to the text is not
little time: the instructions of a pattern such as ``((a?){10}){100}`` are all alive at each character. A character
that leads from a known state to another visits none."""
_LONG: Final = 200
_MANY_NAMES: Final = 1000
_MOST_AT_ONCE: Final = 20_000
MOST_KEPT: Final = 10_000
"""Instructions and transitions of known states that are kept, about a megabyte; beyond it all are forgotten."""


@dataclass(slots=True)
class _Instruction:
    """test: consume a character.
    op: an assertion.
    jumps: continue at each of them; none of these: the end.
    """

    jumps: tuple[int, ...] = ()
    test: Test | None = None
    op: str = ""


class _State:
    """What is alive after a character: `alive` has the instructions to go on at, `before` stands for that character
    where an assertion may look at it.

    after: the next character -> the state then, None where nothing is alive.
    """

    __slots__ = ("accepts", "after", "alive", "before")

    def __init__(self, alive: frozenset[int], before: str) -> None:
        self.alive = alive
        self.before = before
        self.after: dict[str, _State | None] = {}
        self.accepts: bool | None = None


class Pattern:
    """A compiled pattern (Thompson's construction), whose sets of live instructions are kept once they are known, so
    that most characters of most texts are one look-up."""

    def __init__(self, text: str) -> None:
        """Raises BadPattern."""
        self.text = text
        self._program: list[_Instruction] = []
        self._emitted = 0
        self._emit(Parser(text).parse())
        self._program.append(_Instruction())
        self._asserts = any(instruction.op for instruction in self._program)
        self._states: dict[tuple[frozenset[int], str], _State] = {}
        self._kept = 0
        self._start = self._state(frozenset((0,)), "")

    def search(self) -> Callable[[str], bool]:
        """Whether a name matches as a whole, for a pass over many names. All calls together may visit `MAX_STEPS`
        instructions; the one that goes beyond raises ApiError(INVALID_REGULAR_EXPRESSION)."""
        steps = MAX_STEPS

        def matches(name: str) -> bool:
            nonlocal steps
            matched, steps = self._run(name, steps)
            if steps < 0:
                reason = f"pattern {self.text!r}: it takes more than {MAX_STEPS} steps to match it with all names"
                raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
            return matched

        return matches

    def matching(self, names: Iterable[str], pace: Pace = UNHURRIED) -> frozenset[str]:
        """Those of `names` that match.

        pace: called at each.

        Raises as `search`.
        """
        matches = self.search()
        matching = set()
        for name in names:
            pace(1)
            if matches(name):
                matching.add(name)
        return frozenset(matching)

    def fullmatch(self, text: str) -> bool:
        """Without a limit."""
        return self._run(text, sys.maxsize)[0]

    def _run(self, text: str, budget: int) -> tuple[bool, int]:
        """(whether it matches, steps that are left); ends once there are none."""
        state: _State | None = self._start
        for c in text:
            assert state is not None
            if c in state.after:
                state = state.after[c]
            else:
                state, steps = self._step(state, c)
                budget -= steps
            if state is None or budget < 0:
                return False, budget
        assert state is not None
        if state.accepts is None:
            reached = self._closure(state, "")
            state.accepts = len(self._program) - 1 in reached
            budget -= len(reached)
        return state.accepts, budget

    def _step(self, state: _State, c: str) -> tuple[_State | None, int]:
        reached = self._closure(state, c)
        steps = len(reached)
        passed: dict[Test, bool] = {}
        alive = set()
        for at in reached:
            test = self._program[at].test
            if test is None:
                continue
            if test not in passed:  # a repetition has the same one many times
                passed[test] = test(c)
                steps += test.cost if isinstance(test, BracketClass | Named) else 0
            if passed[test]:
                alive.add(at + 1)
        following = self._state(frozenset(alive), _before(c) if self._asserts else "") if alive else None
        self._kept += 1
        state.after[c] = following
        return following, steps

    def _state(self, alive: frozenset[int], before: str) -> _State:
        state = self._states.get((alive, before))
        if state is None:
            if self._kept > MOST_KEPT:  # what is read now may end in states that are not found again
                self._states.clear()
                self._kept = 0
                self._start = self._states[self._start.alive, ""] = _State(self._start.alive, "")
            self._kept += len(alive)
            state = self._states[alive, before] = _State(alive, before)
        return state

    def _closure(self, state: _State, after: str) -> set[int]:
        """Every instruction that can be reached without consuming a character; `after` is the one to come."""
        program = self._program
        seen: set[int] = set()
        stack = list(state.alive)
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            instruction = program[at]
            if instruction.jumps:
                stack.extend(instruction.jumps)
            elif instruction.op and _holds(instruction.op, state.before, after):
                stack.append(at + 1)
        return seen

    def _add(self, instruction: _Instruction) -> int:
        if len(self._program) >= MAX_PARTS:
            raise BadPattern("the pattern is too large")
        self._program.append(instruction)
        return len(self._program) - 1

    def _emit(self, node: Regexp) -> None:
        self._emitted += 1
        if self._emitted > _MAX_EMITTED:  # what is empty may be repeated any number of times and adds nothing
            raise BadPattern("the pattern is too large")
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

    def _emit_alternatives(self, branches: tuple[Regexp, ...]) -> None:
        exits = []
        for branch in branches[:-1]:
            split = self._add(_Instruction())
            self._emit(branch)
            exits.append(self._add(_Instruction()))
            self._program[split].jumps = (split + 1, len(self._program))
        self._emit(branches[-1])
        for leave in exits:
            self._program[leave].jumps = (len(self._program),)

    def _emit_repetition(self, node: Regexp, low: int, high: int) -> None:
        again = 0
        for _ in range(low):
            again = len(self._program)
            self._emit(node)
        if high < 0 < low:  # the last copy is repeated: copying it twice would double the instructions at each depth
            split = self._add(_Instruction())
            self._program[split].jumps = (again, split + 1)
            return
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


def _before(c: str) -> str:
    """A character that assertions take as they take `c`."""
    return "a" if c in WORD else "\n" if c == "\n" else " "


def _holds(op: str, before: str, after: str) -> bool:
    """`before` and `after` are characters, or "" at an end of the text."""
    if op == "start":
        return not before
    if op == "end":
        return not after
    if op == "line start":
        return before in ("", "\n")
    if op == "line end":
        return after in ("", "\n")
    boundary = (before in WORD) != (after in WORD)
    return boundary if op == "word boundary" else not boundary


def takes_long(text: str | None, names: Collection[str]) -> bool:
    """Whether compiling a pattern and matching it with `names` is work for another thread, by what it may take at most:
    each character of a name visits as many instructions as the pattern has characters, or more where it counts."""
    if not text:
        return False
    if len(text) > _LONG or "{" in text or len(names) > _MANY_NAMES:
        return True
    return len(text) * sum(map(len, names)) > _MOST_AT_ONCE


def compile_pattern(text: str | None) -> Pattern | None:
    """The pattern a client sent; None and "" stand for no pattern. Raises ApiError(INVALID_REGULAR_EXPRESSION)."""
    if not text:
        return None
    try:
        return _compiled(text)
    except BadPattern as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deep"
    raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {text!r}: {reason}")


@lru_cache(maxsize=16)
def _compiled(text: str) -> Pattern:
    return Pattern(text)
