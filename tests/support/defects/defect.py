"""How a defect gets into running code: a function's source is compiled again with one place changed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Defect:
    """One broken behaviour.

    breaks: the behaviour that is lost, as a sentence. where: ``module:Qualified.name`` of the function, method or
    property. old: text that stands in it exactly once; new: what takes its place.
    """

    name: str
    breaks: str
    where: str
    old: str
    new: str


@contextmanager
def plant(*defects: Defect) -> Iterator[None]:
    """Have these defects in the whole process while the block lasts; what runs already keeps its code.

    Raises ValueError when a defect does not fit the source (any more).
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
    """The function a defect is for, and its code with the defect. Raises ValueError."""
    module_name, _, path = defect.where.partition(":")
    module = importlib.import_module(module_name)
    function = _function(module, path)
    lines, first = inspect.getsourcelines(function)
    source = "".join(lines)
    if source.count(defect.old) != 1:
        raise ValueError(f"{defect.name}: {defect.old!r} is {source.count(defect.old)} times in {defect.where}")
    everything = inspect.getsource(module).splitlines(keepends=True)
    everything[first - 1 : first - 1 + len(lines)] = [source.replace(defect.old, defect.new)]
    filename = function.__code__.co_filename
    # The whole module is compiled, so that closures, future imports and private names come out as they are now.
    whole = compile("".join(everything), filename, "exec", dont_inherit=True)
    code = code_named(whole, function.__code__.co_qualname)
    if code is None or code.co_freevars != function.__code__.co_freevars:
        raise ValueError(f"{defect.name}: {defect.where} cannot be replaced")
    return function, code


def _function(module: ModuleType, path: str) -> FunctionType:
    found: Any = module
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise ValueError(f"{module.__name__}:{path} is no function")
    return found


def code_named(code: CodeType, qualname: str) -> CodeType | None:
    """The code in `code` with this qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualname:
                return constant
            found = code_named(constant, qualname)
            if found is not None:
                return found
    return None
