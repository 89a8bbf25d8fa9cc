"""The registry of deliberate defects."""

import ast
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType

import pytest
from defects import DEFECTS, Defect, named, plant
from defects.coordinators import COORDINATORS
from defects.defect import BODY, broken, code_named
from defects.loading import LOADING
from defects.places import NoPlace, change
from defects.serving import SERVING
from defects.storage import STORAGE
from sampling import thinned

from minibroker_protocol.errors import ApiError
from minibroker_storage.producer_append import check_epoch
from minibroker_storage.producer_entry import ProducerEntry

STALE = DEFECTS["accept-stale-epoch"]


def as_written(function: FunctionType) -> CodeType:
    """The code its file says; what runs may be pytest's, which rewrites the assertions of plugins."""
    code = code_named(module_as_written(function.__module__), function.__qualname__)
    assert code is not None
    return code


@cache
def module_as_written(name: str) -> CodeType:
    module = sys.modules[name]
    assert module.__file__
    whole = SourceFileLoader(module.__name__, module.__file__).get_code(module.__name__)
    assert whole is not None
    return whole


def says(code: CodeType) -> tuple[object, ...]:
    """What is run, without where it stands in the file."""
    constants = [says(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


def test_names_are_distinct() -> None:
    assert len(DEFECTS) == len(STORAGE) + len(COORDINATORS) + len(LOADING) + len(SERVING)


@pytest.mark.parametrize("defect", thinned([*DEFECTS.values()], 4), ids=lambda defect: defect.name)
def test_every_defect_has_its_place_and_changes_the_code_there_alone(defect: Defect) -> None:
    try:
        function, code = broken(defect)
    except NoPlace as error:
        pytest.fail(
            f"{error}\nThe code may be right: give the defect its new place in the package `defects`.",
            False,
        )
    assert says(code) != says(as_written(function))
    if defect.old != BODY:
        nothing = Defect(defect.name, defect.breaks, defect.where, defect.old, defect.old)
        assert says(broken(nothing)[1]) == says(as_written(function))


CODE = """
class A:
    @property
    def f(self, a, b=1):
        # Comments, quotes and layout are not compared.
        if a and (b
                  or "c"):
            self.g(x=a)
        return b

def g(a, b):
    return f(a, b)
"""


@pytest.mark.parametrize(
    ("function", "old", "new", "line"),
    [
        ("A.f", "if a and (b or 'c'):", "if False:", "if False:"),
        ("A.f", "b or 'c'", "b", "if a and b:"),
        ("A.f", "x=a", "y=a, z=0", "self.g(y=a, z=0)"),
        ("A.f", "return b", "b += 1\nreturn b", "b += 1"),
        ("A.f", "self.g(x=a)", "pass", "pass"),
        ("A.f", "", "return 7", "def f(self, a, b=1):\n        return 7\n\ndef"),
        ("g", "a", "b", "return f(b, b)"),
    ],
)
def test_a_place_is_found_by_what_it_says(function: str, old: str, new: str, line: str) -> None:
    tree = ast.parse(CODE)
    change(tree, function, old, new)
    assert line in ast.unparse(tree)
    compile(tree, "-", "exec")


@pytest.mark.parametrize(
    ("function", "old", "why"),
    [
        ("A.f", "b", "is 2 times in A.f"),
        ("A.f", "f(a, b)", "is 0 times in A.f; it is in g$"),  # the same words elsewhere may mean something else
        ("A.f", "q", "is 0 times in A.f$"),
        ("h", "return b", "h is no function; it is in A.f$"),
        ("h", "", "h is no function$"),
    ],
)
def test_no_place_and_several_are_named(function: str, old: str, why: str) -> None:
    with pytest.raises(NoPlace, match=why):
        change(ast.parse(CODE), function, old, "1")


def test_a_planted_defect_is_there_until_the_block_ends() -> None:
    entry = ProducerEntry(1)
    entry.epoch = 5
    with plant(STALE):
        check_epoch(1, 4, entry)
    with pytest.raises(ApiError):
        check_epoch(1, 4, entry)


def test_a_defect_that_does_not_fit_is_named_and_the_others_go_too() -> None:
    code = check_epoch.__code__
    gone = Defect("gone", "nothing", STALE.where, "no_such", "1")
    with pytest.raises(NoPlace, match=r"gone has no place in \S+ any more: 'no_such' is 0 times"), plant(STALE, gone):
        pass
    assert check_epoch.__code__ is code


def test_a_defect_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="no such defect: no-such"):
        named(["no-such"])
