"""How a defect gets into running code: a function is compiled again with one place changed."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from defects.places import NoPlace, change

BODY = ""
"""As `old` of a defect: everything the function does."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One broken behaviour.

    breaks: the behaviour that is lost, as a sentence. where: ``module:Qualified.name`` of the function, method or
    property. old: what is changed in it: an expression, a statement, a keyword argument (``name=value``) or the head of
    an ``if`` (``if condition:``) that stands there exactly once; or BODY. new: what takes its place, of the same kind.
    """

    name: str
    breaks: str
    where: str
    old: str
    new: str


@contextmanager
def plant(*defects: Defect) -> Iterator[None]:
    """Have these defects in the whole process while the block lasts; what runs already keeps its code.

    Raises NoPlace when a defect does not fit the source (any more).
    """
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for defect in defects:
            function, code = broken(defect)
            before.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, original in reversed(before):
            function.__code__ = original


def broken(defect: Defect) -> tuple[FunctionType, CodeType]:
    """The function a defect is for, and its code with the defect. Raises NoPlace."""
    module_name, _, path = defect.where.partition(":")
    module = importlib.import_module(module_name)
    tree = ast.parse(_source(module))
    try:
        change(tree, path, defect.old, defect.new)
    except NoPlace as error:
        raise NoPlace(f"planted defect {defect.name} has no place in {module_name} any more: {error}") from None
    function = _function(module, path)
    # The whole module is compiled, so that closures, future imports and private names come out as they are now.
    whole = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    code = code_named(whole, function.__code__.co_qualname)
    if code is None or code.co_freevars != function.__code__.co_freevars:
        raise NoPlace(f"planted defect {defect.name}: {module_name}:{path} cannot be replaced")
    return function, code


@cache
def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


def _function(module: ModuleType, path: str) -> FunctionType:
    member: Any = module
    for name in path.split("."):
        member = inspect.getattr_static(member, name)
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    member = inspect.unwrap(member)
    assert isinstance(member, FunctionType)
    return member


def code_named(code: CodeType, qualname: str) -> CodeType | None:
    """The code in `code` with this qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualname:
                return constant
            inner = code_named(constant, qualname)
            if inner is not None:
                return inner
    return None
