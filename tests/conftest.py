"""For all tests."""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from random import Random

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from packages import PROJECT
from sampling import SAMPLE, WHOLE

# How long one example takes says nothing about the code on a machine that does other things as well.
settings.register_profile(SAMPLE, deadline=None, derandomize=True, max_examples=20)
settings.register_profile(WHOLE, deadline=None, print_blob=True)
settings.load_profile(SAMPLE)

if of_modules := getattr(providers, "_get_local_constants", None):
    # Hypothesis tries constants of the modules that are imported so far. The sample would depend on the order of the
    # tests, and each process would parse all modules of a fresh clone first.
    providers._get_local_constants = lambda: (
        of_modules() if settings.get_current_profile_name() == WHOLE else providers._local_constants
    )

HANGING_SECONDS = 300  # the slowest takes some seconds, on a machine that does nothing else
MOST_PROCESSES = 8  # each collects every test
BEFORE = pytest.StashKey[tuple[list[int], int, bool, list[logging.Handler]]]()
TIERS = {Path(__file__).parent / name for name in ("clients", "container", "go", "jvm", "node")}
"""Directories in which every test has a marker that the default tests leave out; tests/test_architecture.py looks."""
LEFT_OUT = set(re.findall(r"not (\w+)", PROJECT["tool"]["pytest"]["ini_options"]["addopts"]))
"""Markers of tests that are not default tests."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Commands are found in what is installed, and an editable install keeps those it was made with."""
    announced = PROJECT["project"]["entry-points"]["minibroker.commands"]
    installed = {entry.name: entry.value for entry in entry_points(group="minibroker.commands")}
    if installed and not announced.items() <= installed.items():
        raise pytest.UsageError("the commands in pyproject.toml are not installed: run `pip install --no-deps -e .`")
    # A default test that hangs is one failure, which shows where; what is slow by its marker has no such limit.
    if config.option.markexpr == config.getini("addopts")[-1] and getattr(config.option, "timeout", 0) is None:
        config.option.timeout = HANGING_SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The default tests run on every core, when all of them are asked for and `-n` says nothing else: half as many
    processes again as there are cores, since many tests wait for timers and child processes."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # a worker comes by here too, and must not start workers of its own
        return
    defaults = config.getini("addopts")
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and config.option.markexpr == defaults[-1]
    if whole and not config.option.keyword and getattr(config.option, "numprocesses", 0) is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        config.option.numprocesses = min((3 * cores + 1) // 2, MOST_PROCESSES)
        config.option.dist = "worksteal"
        if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
            _compile_elsewhere(config)


def _compile_elsewhere(config: pytest.Config) -> None:
    """PYTHONDONTWRITEBYTECODE keeps directories as they are, and lets each process compile all that it imports: with
    the children that tests start, a third of the time. What is compiled is written, but to a directory that ends with
    the tests."""
    directory = tempfile.mkdtemp(prefix="minibroker-compiled-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    for name, value in (("PYTHONDONTWRITEBYTECODE", ""), ("PYTHONPYCACHEPREFIX", directory)):
        config.add_cleanup(functools.partial(_set, name, os.environ.get(name)))
        _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The default tests read no directory of which they take nothing: that costs as much as many tests."""
    return True if collection_path in TIERS and _are_default(config) else None


def _are_default(config: pytest.Config) -> bool:
    # A worker is given what is in `testpaths` as arguments.
    return config.args == config.getini("testpaths") and config.option.markexpr == config.getini("addopts")[-1]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Nor do they make the cases of a table that they leave out, of which there are four thousand."""
    yield
    config, calls = metafunc.config, metafunc._calls
    if len(calls) > 1 and _are_default(config):
        own = {mark.name for mark in metafunc.definition.iter_markers()}
        kept = [call for call in calls if LEFT_OUT.isdisjoint(own.union(mark.name for mark in call.marks))]
        metafunc._calls = kept or calls[:1]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Each of xdist's processes begins elsewhere, and finds compiled what the others had before it. Otherwise each of
    them compiles every file after a fresh clone, all at the same time. No test's parameters may depend on what was
    imported before: xdist ends the run when they do."""
    report = yield
    if isinstance(collector, pytest.Directory) and "PYTEST_XDIST_WORKER" in os.environ:
        number, count = (os.environ[f"PYTEST_XDIST_WORKER{name}"] for name in ("", "_COUNT"))
        first = len(report.result) * int(number.removeprefix("gw")) // int(count)
        report.result = report.result[first:] + report.result[:first]
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in the random order of this seed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All of xdist's processes have the tests in the same order. Those that wait come first and so begin in one
    process: two that wait at the same time leave a core idle."""
    if config.option.shuffle is not None:
        Random(config.option.shuffle).shuffle(items)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (item.get_closest_marker("waits") is None, item.path.parts))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Nothing is wrong with a shuffled file all of whose tests are of tiers."""
    if session.config.option.shuffle is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A process of xdist reports what is shown: not each setup and teardown that passed, nor when a test begins. Of ten
    thousand quick tests that is a third of the time. Durations and `-v` need all of it. What is to be run again is
    reported as pytest-rerunfailures does, which runs it from here on."""
    options = item.config.option
    if "PYTEST_XDIST_WORKER" not in os.environ or options.durations is not None or options.verbose > 0:
        return None
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failed = next((report for report in reports if report.failed), None)
    if failed is not None and getattr(options, "reruns", None) and not _is_final(failed, options.rerun_except or []):
        failed.outcome = "rerun"  # type: ignore[assignment]
        for report in dict.fromkeys((failed, reports[-1])):  # the teardown ends its entry in a file of results
            item.ihook.pytest_runtest_logreport(report=report)
        item.add_marker(pytest.mark.flaky(reruns=options.reruns - 1))
        return None
    for report in reports:
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def _is_final(failed: pytest.TestReport, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, failed.longreprtext) for pattern in patterns)


gc.disable()  # collection leaves next to no garbage


def pytest_collection_finish() -> None:
    """What was collected is there until the end: no search for garbage goes through it."""
    gc.freeze()
    # What is frozen does not count as old, so that a full collection would come often, and find the same brokers alive.
    gc.set_threshold(*gc.get_threshold()[:2], 60)
    gc.enable()


_LOGGER = logging.getLogger("minibroker")
_INTERRUPTS = [getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """What a test finds. Two fixtures would do the same in ten times the time, and there are ten thousand tests.

    A process inherits which signals are ignored: SIGINT in a job that a script put into the background, SIGHUP under
    nohup. Commands honour that, so that a test of Ctrl-C would wait for ever.
    """
    ignored = [number for number in _INTERRUPTS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    item.stash[BEFORE] = ignored, _LOGGER.level, _LOGGER.propagate, list(_LOGGER.handlers)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A command that sets up logging in the process of its test leaves it to others as it was."""
    try:
        return (yield)
    finally:
        ignored, level, _LOGGER.propagate, _LOGGER.handlers[:] = item.stash[BEFORE]
        _LOGGER.setLevel(level)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
