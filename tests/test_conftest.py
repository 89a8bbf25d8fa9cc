"""What the suite does to be quick changes nothing that a test finds."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> ModuleType:
    path = Path(__file__).with_name("conftest.py")
    plugins = request.config.pluginmanager.get_plugins()
    return next(one for one in plugins if getattr(one, "__file__", None) == str(path))


def test_what_is_compiled_is_written_elsewhere_and_ends_with_the_tests(
    ours: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    (tmp_path / "imported.py").touch()
    cleanups: list[Callable[[], object]] = []
    ours._compile_elsewhere(SimpleNamespace(add_cleanup=cleanups.append))
    compiled = Path(os.environ["PYTHONPYCACHEPREFIX"])
    subprocess.run([sys.executable, "-c", "import imported"], cwd=tmp_path, check=True)
    assert [*compiled.rglob("imported.*.pyc")]
    assert [path.name for path in tmp_path.iterdir()] == ["imported.py"]
    for cleanup in reversed(cleanups):
        cleanup()
    assert not compiled.exists()
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONPYCACHEPREFIX" not in os.environ


DEFAULT, MATRIX = [], [pytest.mark.matrix.mark]


@pytest.mark.parametrize(
    ("cases", "of_the_test", "made"),
    [
        ([DEFAULT, MATRIX, MATRIX, DEFAULT], [], [0, 3]),
        ([[pytest.mark.waits.mark], MATRIX], [], [0]),
        ([MATRIX, MATRIX], [], [0]),
        ([DEFAULT, DEFAULT], [pytest.mark.slow.mark], [0]),
        ([MATRIX], [], [0]),
    ],
)
@pytest.mark.parametrize("asked", ["all default tests", "a file", "a tier"])
def test_the_cases_of_other_tiers_are_not_made(
    ours: ModuleType, cases: list[Any], of_the_test: list[Any], made: list[int], asked: str
) -> None:
    """At least one stays, which pytest leaves out by its marker: a test without parameters would want fixtures."""
    default = "not matrix and not slow"
    config = SimpleNamespace(
        args=["tests"] if asked != "a file" else ["tests/test_conftest.py"],
        option=SimpleNamespace(markexpr=default if asked != "a tier" else "matrix"),
        getini={"testpaths": ["tests"], "addopts": [default]}.__getitem__,
    )
    calls = [SimpleNamespace(marks=marks, number=number) for number, marks in enumerate(cases)]
    definition = SimpleNamespace(iter_markers=lambda: of_the_test)
    metafunc = SimpleNamespace(config=config, _calls=calls, definition=definition)
    hook = ours.pytest_generate_tests(metafunc)
    next(hook)
    next(hook, None)
    expected = made if asked == "all default tests" else list(range(len(cases)))
    assert [call.number for call in metafunc._calls] == expected


def test_what_a_test_did_to_logging_and_signals_ends_with_it(ours: ModuleType) -> None:
    logger, handler = logging.getLogger("minibroker"), logging.NullHandler()
    before = logger.level, logger.propagate, list(logger.handlers)
    heeded = signal.signal(signal.SIGINT, signal.SIG_IGN)
    item = SimpleNamespace(stash={})
    try:
        setup, teardown = ours.pytest_runtest_setup(item), ours.pytest_runtest_teardown(item)
        next(setup)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        logger.setLevel(logging.CRITICAL)
        logger.propagate = not logger.propagate
        logger.addHandler(handler)
        next(teardown)
        next(teardown, None)
        assert (logger.level, logger.propagate, logger.handlers) == before
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, heeded)
        logger.removeHandler(handler)


def test_shuffled_tests_are_all_there_in_an_order_of_the_seed(ours: ModuleType) -> None:
    def order(seed: int | None) -> list[Any]:
        items = list(range(20))
        ours.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(shuffle=seed)), items)
        return items

    assert order(7) == order(7) != order(8)
    assert sorted(order(7)) == list(range(20)) != order(7)
