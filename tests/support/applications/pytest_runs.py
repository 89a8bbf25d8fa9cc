"""Runs of pytest, each in a process of its own that has imported already what all of them need.

A program: a line of standard input has a run, as JSON; a line of standard output its exit code, once it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys

IMPORTED = (
    *("pytest", "pdb", "unittest", "xml.etree.ElementTree"),
    *("minibroker.cluster.cluster", "minibroker.server.service", "minibroker.testing.in_thread"),
    *("minibroker.testing.embedded", "minibroker.testing.brokers_of_test", "minibroker.testing.running_cluster"),
    *("minibroker.control.commands", "minibroker.faults.engine", "minibroker.trace.recorder"),
    *("minibroker.coordinator_runtime.group_service", "minibroker.coordinator_runtime.transaction_service"),
)
"""Not the plugin itself, which pytest compiles in its own way."""
CLIENT = "confluent_kafka.admin"
LOST_SECONDS = 60


def run(folder: str, arguments: list[str], environment: dict[str, str]) -> int:
    """stdout and stderr go to files of these names in `folder`."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate(("stdout", "stderr"), start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.alarm(LOST_SECONDS)
    return importlib.import_module("pytest").main(arguments)


for name in IMPORTED:
    importlib.import_module(name)
with contextlib.suppress(ImportError):
    importlib.import_module(CLIENT)
gc.freeze()  # pytest searches all that there is for garbage, five times at its end
for line in sys.stdin:
    child = os.fork()
    if not child:
        sys.exit(run(**json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
