"""For all tests."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

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
TIERS = {Path(__file__).parent / name for name in ("clients", "container", "go", "jvm", "node")}
"""Directories in which every test has a marker that the default tests leave out; tests/test_architecture.py looks."""


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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The default tests read no directory of which they take nothing: that costs as much as many tests."""
    # A worker is given what is in `testpaths` as arguments.
    default = config.args == config.getini("testpaths") and config.option.markexpr == config.getini("addopts")[-1]
    return True if default and collection_path in TIERS else None


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of xdist's processes have the tests in the same order. Those that wait come first and so begin in one
    process: two that wait at the same time leave a core idle."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (item.get_closest_marker("waits") is None, item.path.parts))


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


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that sets up logging in the process of its test leaves it to others as it was."""
    logger = logging.getLogger("minibroker")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagate, handlers


@pytest.fixture(autouse=True)
def heeded_signals() -> Iterator[None]:
    """A process inherits which signals are ignored: SIGINT in a job that a script put into the background, SIGHUP under
    nohup. Commands honour that, so that a test of Ctrl-C would wait for ever."""
    ignored = [
        number
        for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGHUP"))
        if number is not None and signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
