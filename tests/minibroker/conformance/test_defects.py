"""The registry of deliberate defects."""

import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType

import pytest
from defects import DEFECTS, Defect, named, plant
from defects.coordinators import COORDINATORS
from defects.defect import broken, code_named
from defects.loading import LOADING
from defects.serving import SERVING
from defects.storage import STORAGE

from minibroker_protocol.errors import ApiError
from minibroker_storage.producer_append import check_epoch
from minibroker_storage.producer_entry import ProducerEntry

STALE = DEFECTS["accept-stale-epoch"]


def as_written(function: FunctionType) -> CodeType:
    """The code its file says; what runs may be pytest's, which rewrites the assertions of plugins."""
    module = sys.modules[function.__module__]
    assert module.__file__
    whole = SourceFileLoader(module.__name__, module.__file__).get_code(module.__name__)
    assert whole is not None
    code = code_named(whole, function.__qualname__)
    assert code is not None
    return code


def test_names_are_distinct() -> None:
    assert len(DEFECTS) == len(STORAGE) + len(COORDINATORS) + len(LOADING) + len(SERVING)


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=lambda defect: defect.name)
def test_every_defect_fits_the_source_and_changes_it(defect: Defect) -> None:
    function, code = broken(defect)
    assert code != as_written(function)
    nothing = Defect(defect.name, defect.breaks, defect.where, defect.old, defect.old)
    assert broken(nothing)[1] == as_written(function)


def test_a_planted_defect_is_there_until_the_block_ends() -> None:
    entry = ProducerEntry(1)
    entry.epoch = 5
    with plant(STALE):
        check_epoch(1, 4, entry)
    with pytest.raises(ApiError):
        check_epoch(1, 4, entry)


def test_a_defect_that_does_not_fit_is_named_and_the_others_go_too() -> None:
    code = check_epoch.__code__
    gone = Defect("gone", "nothing", STALE.where, "no such text", "")
    with pytest.raises(ValueError, match="gone: 'no such text' is 0 times"), plant(STALE, gone):
        pass
    assert check_epoch.__code__ is code


def test_a_constant_is_no_place_for_a_defect() -> None:
    with pytest.raises(ValueError, match="is no function"):
        broken(Defect("constant", "nothing", "minibroker_storage.producer_append:MAX_EPOCH", "1", "2"))


def test_a_defect_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="no such defect: no-such"):
        named(["no-such"])
