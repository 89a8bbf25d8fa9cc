"""Where a defect goes in a module's syntax tree: a place is found by what it says, not by how it is written.

Layout, comments and the code around it do not matter. The function does: the
same words elsewhere mean something else.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_HEAD = re.compile(r"(?:el)?if\b(.*):", re.DOTALL)
_KEYWORD = re.compile(r"\w+=(?!=)")


class NoPlace(ValueError):
    """The source has no place, or several, for a defect: mend the defect. It says nothing about what the code does."""


@dataclass(frozen=True, slots=True)
class _Fragment:
    """Part of a function. kind: `ast.If` for the head of one, `ast.keyword`, `ast.expr` or `ast.stmt`."""

    kind: type[ast.AST]
    nodes: Sequence[ast.AST]

    @property
    def said(self) -> list[str]:
        return [ast.dump(node) for node in self.nodes]


@dataclass(frozen=True, slots=True)
class _Place:
    """Nodes of a function. at: where they begin in the parent's field, None for a field that is one node."""

    function: str
    parent: ast.AST
    field: str
    at: int | None

    def put(self, count: int, nodes: Sequence[ast.AST]) -> None:
        was = getattr(self.parent, self.field)
        for node in nodes:
            for part in ast.walk(node):
                ast.copy_location(part, was if self.at is None else was[self.at])
        if self.at is None:
            (node,) = nodes
            setattr(self.parent, self.field, node)
        else:
            was[self.at : self.at + count] = nodes


def change(tree: ast.Module, function: str, old: str, new: str) -> None:
    """Have `new` stand for `old` in `function`, or for its whole body when `old` is empty. Raises NoPlace."""
    known = dict(_functions(tree.body, ""))
    if function not in known:
        raise NoPlace(f"{function} is no function{_elsewhere(known, old)}")
    if not old:
        known[function].body = ast.parse(textwrap.dedent(new)).body
    else:
        was, will_be = _read(old, new)
        places = _find({function: known[function]}, was)
        if len(places) != 1:
            other = "" if places else _elsewhere(known, old)
            raise NoPlace(f"{old!r} is {len(places)} times in {function}{other}")
        places[0].put(len(was.nodes), will_be.nodes)
    ast.fix_missing_locations(known[function])


def _elsewhere(known: Mapping[str, FunctionNode], old: str) -> str:
    """In which functions of the module it may be now, for a message."""
    names = dict.fromkeys(place.function for place in _find(known, _read(old)[0])) if old else ()
    return f"; it is in {', '.join(names)}" if names else ""


def _functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, FunctionNode]]:
    for node in body:
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _read(*texts: str) -> list[_Fragment]:
    """These texts as fragments of the narrowest kind that all of them have."""
    for kind in (ast.If, ast.keyword, ast.expr, ast.stmt):
        try:
            return [_Fragment(kind, _nodes(kind, text.strip())) for text in texts]
        except SyntaxError:
            continue
    raise ValueError(f"no Python, or not of one kind: {texts}")


def _nodes(kind: type[ast.AST], text: str) -> Sequence[ast.AST]:
    if kind is ast.stmt:
        return ast.parse(text).body
    if kind is ast.If:
        head = _HEAD.fullmatch(text)
        if head is None:
            raise SyntaxError
        text = head[1].strip()
    elif kind is ast.keyword:
        if not _KEYWORD.match(text):
            raise SyntaxError
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return call.keywords
    return [ast.parse(text, mode="eval").body]


def _find(functions: Mapping[str, FunctionNode], wanted: _Fragment) -> list[_Place]:
    said, kind = wanted.said, wanted.kind
    places = []
    for name, function in functions.items():
        for parent in ast.walk(function):
            if kind is ast.If and not isinstance(parent, ast.If):
                continue
            for field, value in ast.iter_fields(parent):
                if kind is ast.If and field != "test":
                    continue
                if isinstance(value, list):
                    rows = [ast.dump(node) if isinstance(node, ast.AST) else None for node in value]
                    ends = range(len(rows) - len(said) + 1)
                    places += [_Place(name, parent, field, at) for at in ends if rows[at : at + len(said)] == said]
                elif isinstance(value, ast.AST) and [ast.dump(value)] == said:
                    places.append(_Place(name, parent, field, None))
    return places
