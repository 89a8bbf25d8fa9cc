"""A broker in a child process that ends with its parent, however that ends."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING

from minibroker.config.settings import environment_of
from minibroker.control import TOKEN_VARIABLE
from minibroker.kernel.addresses import format_address
from minibroker.kernel.logs import get_logger
from minibroker.server.options import Options, behaviour_arguments
from minibroker.server.service import StartError

if TYPE_CHECKING:
    from minibroker.control.client import Caller

log = get_logger("minibroker.process")

_PREFIX = "bootstrap.servers="
_CONTROL_PREFIX = "control="
_METRICS_PREFIX = "metrics="
_PAGE_PREFIX = "page="
_STOP_SECONDS = 10.0
_TAIL_LINES = 20


class ChildRunner:
    """`minibroker serve` with a pipe as its standard input: closing it, or dying, ends the child.

    What the child logs appears in this process's logging under ``minibroker.process``.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._launched: Future[str] = Future()
        self._stopped: Future[None] = Future()
        self._child: subprocess.Popen[str] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._pump = threading.Thread(target=self._follow_log, name="minibroker-log", daemon=True)
        self._helpers: list[threading.Thread] = []
        self._control = ""
        self.metrics = ""
        self.page = ""
        self._token = secrets.token_urlsafe(24)

    def start(self) -> Future[str]:
        self._in_background(self._launch)
        return self._launched

    def stop(self) -> Future[None]:
        self._in_background(self._end)
        return self._stopped

    def join(self) -> None:
        for helper in self._helpers:
            helper.join()
        if self._pump.is_alive():
            self._pump.join()

    def caller(self) -> Caller:
        from minibroker.control.http_client import HttpCaller

        return HttpCaller(self._control, self._token)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def _in_background(self, work: object) -> None:
        helper = threading.Thread(target=work, name="minibroker-process", daemon=True)  # type: ignore[arg-type]
        self._helpers.append(helper)
        helper.start()

    def _launch(self) -> None:
        try:
            self._launched.set_result(self._spawn())
        except BaseException as error:  # handed to the waiting caller
            self._launched.set_exception(error)

    def _spawn(self) -> str:
        # The program's own variables for a Kafka are not meant for this broker; its settings go the way that other
        # users of the machine cannot see, because there can be passwords among them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        environment |= environment_of(self._options.config)
        # The child must find the same packages, installed or not.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment[TOKEN_VARIABLE] = self._token
        self._child = child = subprocess.Popen(
            # -P: no module of the current directory, which may be a shared one.
            [sys.executable, "-P", "-m", "minibroker", *_arguments(self._options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._pump.start()
        assert child.stdout is not None
        line = child.stdout.readline()
        self._control = child.stdout.readline().removeprefix(_CONTROL_PREFIX).strip()
        if self._options.page:
            page = child.stdout.readline().removeprefix(_PAGE_PREFIX).strip()
            self.page = f"{page}#token={self._token}" if page else ""
        if self._options.metrics is not None:
            self.metrics = child.stdout.readline().removeprefix(_METRICS_PREFIX).strip()
        child.stdout.close()
        if not line.startswith(_PREFIX):
            self._wait(child)
            raise StartError(self._tail[-1].removeprefix("minibroker: ") if self._tail else "the broker did not start")
        return line.removeprefix(_PREFIX).strip()

    def _end(self) -> None:
        try:
            if self._child is not None:
                self._wait(self._child)
            self._stopped.set_result(None)
        except BaseException as error:
            self._stopped.set_exception(error)

    def _wait(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.error("the broker did not end within %s s and is killed", _STOP_SECONDS)
            child.kill()
            child.wait()
        self._pump.join()

    def _follow_log(self) -> None:
        assert self._child is not None
        stream: IO[str] | None = self._child.stderr
        assert stream is not None
        with stream:
            for line in stream:
                text = line.rstrip()
                self._tail.append(text)
                log.info("%s", text)


def _arguments(options: Options) -> list[str]:
    """The options as the command line takes them."""
    ports = ",".join(map(str, options.ports)) if any(options.ports) else "0"
    arguments = ["serve", "--until-stdin-closes", "--control", "127.0.0.1:0"]
    arguments += ["--log-level", "warning", "--log-format", "text"]
    arguments += ["--host", options.host, "--port", ports, "--brokers", str(len(options.ports))]
    if options.data_dir is not None:
        arguments += ["--data-dir", options.data_dir]
    if options.ephemeral:
        arguments.append("--ephemeral")
    if options.page:
        arguments.append("--page")
    if options.metrics is not None:
        arguments += ["--metrics", format_address(*options.metrics)]
    return arguments + behaviour_arguments(options)
