"""A pytest plugin that collects the tests once and then forks a process for each defect that it is asked about.

Requests and answers are JSON, one a line, on two inherited pipes. A defect within functions is put into the functions
that the collected tests have already imported; the file on disk has it too, for the programs that tests start.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest

PIPES = "MUTANTS_PIPES"
MEMORY, FILE = 6 << 30, 1 << 30
_SUBREAPER, _DIES_WITH_PARENT = 36, 1


class NotInFunctions(Exception):
    """The defect is in a module's or class' own statements, which have run."""


def swaps(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions that differ; raises NotInFunctions."""
    if _own(old) != _own(new):
        raise NotInFunctions
    for before, after in zip(_nested(old), _nested(new), strict=True):
        if before.co_flags & 1:  # CO_OPTIMIZED: a function, and not the body of a class
            if not _same(before, after):
                yield before, after
        else:
            yield from swaps(before, after)


def _nested(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _own(code: CodeType) -> tuple[Any, ...]:
    constants = [(type(constant), constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_flags, len(_nested(code))


def _same(old: CodeType, new: CodeType) -> bool:
    return _own(old) == _own(new) and all(map(_same, _nested(old), _nested(new)))


class Server:
    def __init__(self) -> None:
        self._requests, self._answers = (int(number) for number in os.environ[PIPES].split(","))
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self._report_fd = -1  # where a forked process tells of its tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            os.write(self._answers, b'{"broken": true}\n')
            return True
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        gc.unfreeze()
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                code = thing.__code__
                self._functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(thing)
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        os.write(self._answers, (json.dumps({"ready": list(items)}) + "\n").encode())
        with os.fdopen(self._requests) as requests:
            for line in requests:
                request = json.loads(line)
                wanted = [(items[name], limit) for name, limit in request["tests"] if name in items]
                os.write(self._answers, (json.dumps(self._show(session, request, wanted)) + "\n").encode())
        return True

    def _show(self, session: pytest.Session, request: Any, wanted: list[tuple[pytest.Item, float]]) -> Any:
        """`seen` is how the tests saw it, `test` which did: the first that failed or did not end."""
        swaps: list[tuple[FunctionType, CodeType]] = []
        if not wanted:
            return {"seen": "", "test": ""}
        if request.get("after"):
            try:
                swaps = self._to_swap(request)
            except NotInFunctions:
                return {"fresh": True}
        reader, self._report_fd = os.pipe()
        process = os.fork()
        if not process:
            self._in_child(session, [item for item, _ in wanted], swaps)
        os.close(self._report_fd)
        answer = _watched(process, reader, [(item.nodeid, limit) for item, limit in wanted], request["most"])
        os.close(reader)
        _kill_all(process)
        return answer

    def _to_swap(self, request: Any) -> list[tuple[FunctionType, CodeType]]:
        path = os.path.abspath(request["path"])
        to_swap = []
        for before, after in swaps(compile(request["before"], path, "exec"), compile(request["after"], path, "exec")):
            functions = self._functions.get((path, before.co_qualname, before.co_firstlineno), [])
            loaded = any(getattr(module, "__file__", None) == path for module in list(sys.modules.values()))
            if (loaded and not functions) or after.co_freevars != before.co_freevars:
                raise NotInFunctions
            to_swap += [(function, after) for function in functions]
        return to_swap

    def _in_child(self, session: pytest.Session, items: list[Any], swaps: list[tuple[FunctionType, CodeType]]) -> None:
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
            for function, code in swaps:
                function.__code__ = code
            for item, following in zip(items, [*items[1:], None], strict=True):
                os.write(self._report_fd, f"start {item.nodeid}\n".encode())
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    os.write(self._report_fd, b"failed\n")
                    session._setupstate.teardown_exact(None)
                    break
            else:
                os.write(self._report_fd, b"passed\n")
        finally:
            os._exit(0)


def _watched(process: int, reader: int, tests: list[tuple[str, float]], most: float) -> Any:
    """most: seconds after which no further test is waited for.

    A test that does not end although it had the processor for a quarter of its time is not tried again.
    """
    began = time.monotonic()
    limits, text, test = dict(tests), "", ""
    deadline, worked = time.monotonic() + 30, 0.0
    while True:
        ready, _, _ = select.select([reader], [], [], max(0, min(1, deadline - time.monotonic())))
        if not ready:
            if busy := test in limits and _worked(process) - worked > limits[test] / 4:
                return {"seen": "timeout", "test": test, "busy": busy}
            if time.monotonic() >= deadline:
                return {"seen": "timeout", "test": test}
            continue
        got = os.read(reader, 65536).decode()
        text += got
        *lines, text = text.split("\n")
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "failed":
                return {"seen": "failed", "test": test}
            if word == "passed":
                return {"seen": "", "test": ""}
            if time.monotonic() - began > most:
                return {"seen": "", "test": ""}
            test, deadline, worked = rest, time.monotonic() + limits[rest], _worked(process)
        if not got:
            return {"seen": "died", "test": test}


def _worked(process: int) -> float:
    """Seconds of CPU that it has used."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _kill_all(process: int) -> None:
    """The forked process and whatever its tests left running."""
    end = time.monotonic() + 2
    while time.monotonic() < end:  # it may be tearing down
        if os.waitpid(process, os.WNOHANG)[0]:
            break
        time.sleep(0.005)
    else:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(number) for number in file.read().split()]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Server(), "mutants-server")
