"""For all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from sampling import SAMPLE, WHOLE

# How long one example takes says nothing about the code on a machine that does other things as well.
settings.register_profile(SAMPLE, deadline=None, derandomize=True, max_examples=20)
settings.register_profile(WHOLE, deadline=None, print_blob=True)
settings.load_profile(SAMPLE)

MOST_PROCESSES = 8  # each collects every test


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The default tests run on every core, when all of them are asked for and `-n` says nothing else."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # a worker comes by here too, and must not start workers of its own
        return
    defaults = config.getini("addopts")
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and config.option.markexpr == defaults[-1]
    if whole and not config.option.keyword and getattr(config.option, "numprocesses", 0) is None:
        config.option.numprocesses = "auto"
        config.option.maxprocesses = MOST_PROCESSES
        config.option.dist = "worksteal"


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that sets up logging in the process of its test leaves it to others as it was."""
    logger = logging.getLogger("minibroker")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagate, handlers
