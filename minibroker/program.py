"""A command as a process: signals, standard streams and the exit status, in one way for all commands.

| what happens | the command | stderr | exit status |
|---|---|---|---|
| SIGINT, SIGTERM, SIGHUP | is unwound: ends its children, removes what it made | one line | 128 + the signal's number |
| the reader of stdout goes away (`| head`) | likewise | nothing | 141, as of a program that SIGPIPE ends |
| stdout takes nothing (a full disk) | likewise | one line | 1 |
| no file descriptor is left, a file is not for this user, or the current directory is gone | likewise | one line | 1 |
| another error that the command does not expect | likewise | one line | 70 |

Commands whose ordinary end is a signal end with a status of their own: `serve`, `trace` and `audit --follow`.
A signal that comes more than a second after the first ends the process at once, also during clean-up.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn, TypeVar

from minibroker.exit_codes import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_UNEXPECTED
from minibroker.output import say

T = TypeVar("T")

TRACEBACK_VARIABLE = "MINIBROKER_TRACEBACK"
SIGNALS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, n))
_STDOUT, _STDERR = 1, 2
# `timeout` sends its signal to the process and to its group, npm and make pass on what the terminal has sent already.
SAME_SECONDS = 1.0
_AGAIN_SECONDS = 0.01


class Interrupted(KeyboardInterrupt):
    """A signal asks the process to end. A KeyboardInterrupt, so that libraries clean up as on Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class OutputLost(SystemExit):
    """stdout takes nothing any more. A SystemExit, so that no command catches it as an OSError of its own files."""

    def __init__(self, error: OSError) -> None:
        super().__init__(EXIT_FAILED)
        self.error = error


class _Signals:
    """How far the process is: before a command is under way a signal ends it at once, then one unwinds it."""

    def __init__(self) -> None:
        self._begun = False
        self._postponed = 0
        self._signal: int | None = None
        self._raised = False
        self._since = 0.0

    def install(self) -> None:
        for number in SIGNALS:
            # What is ignored stays so: nohup, and a shell's jobs in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def begin(self) -> None:
        self._begun = True
        sys.unraisablehook = self._unraisable

    def postpone(self) -> None:
        self._postponed += 1

    def resume(self) -> None:
        self._postponed -= 1
        if not self._postponed and self._signal is not None and not self._raised:
            self._raise()

    def _arrived(self, number: int, frame: Any) -> None:
        if not self._begun:
            say_interrupted(number)
            os._exit(128 + number)
        if self._signal is None:
            self._signal, self._since = number, time.monotonic()
            if not self._postponed:
                self._raise()
        elif time.monotonic() - self._since > SAME_SECONDS:
            os._exit(128 + number)

    def _raise(self) -> NoReturn:
        assert self._signal is not None
        self._raised = True
        raise Interrupted(self._signal)

    def _unraisable(self, unraisable: Any) -> None:
        """An Interrupted that Python cannot propagate, such as one in a callback of the collector, is raised again a
        little later."""
        if not isinstance(unraisable.exc_value, Interrupted):
            sys.__unraisablehook__(unraisable)
            return
        import threading

        number, self._signal, self._raised = unraisable.exc_value.number, None, False
        threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()


_SIGNALS = _Signals()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal inside the block unwinds the command at its end, when every started resource has an owner."""
    _SIGNALS.postpone()
    try:
        yield
    finally:
        _SIGNALS.resume()


@contextlib.contextmanager
def whole(resource: contextlib.AbstractContextManager[T]) -> Iterator[T]:
    """`with resource`, of which neither the beginning nor the end is interrupted half-way."""
    stack = contextlib.ExitStack()
    raised: BaseException | None = None
    try:
        with uninterrupted():
            value = stack.enter_context(resource)
        yield value
    except BaseException as error:
        raised = error
        raise
    finally:
        # With what was raised: a broker whose block was interrupted does not judge whether its rules have acted.
        with uninterrupted():
            stack.__exit__(*(type(raised), raised, raised.__traceback__) if raised else (None, None, None))


@contextlib.contextmanager
def ctrl_c_is_ours() -> Iterator[None]:
    """Processes that are started inside do not see Ctrl-C, which a terminal sends to all: their parent ends them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run(prepare: Callable[[], Callable[[], int]], *, quick_end: bool = False) -> NoReturn:
    """Prepare a command (load it, read its arguments), run it, and end the process with its exit status.

    quick_end: leave out taking the interpreter apart, module by module, which takes longer than a broker's stop.
    """
    _SIGNALS.install()
    sys.stdout, sys.stderr = _guarded(sys.stdout, _Stdout), _guarded(sys.stderr, _Stderr)
    _open_standard_streams()
    try:
        try:
            command = prepare()
            _SIGNALS.begin()
            code = command()
        finally:
            # Here, where the exit status and message are still ours; at the interpreter's end they would be 120 and
            # Python's.
            if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                sys.stdout.flush()
    except OutputLost as lost:
        code = _lost(lost.error)
    except SystemExit as ended:  # argparse's way
        code = ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except KeyboardInterrupt as interrupted:
        number = getattr(interrupted, "number", signal.SIGINT)
        # What was not written yet may never be: its reader need not take it any more, and must not hold up the end.
        _drop_output()
        say_interrupted(number)
        code = 128 + number
    except Exception as error:
        code = _unexpected(error)
    if quick_end and not _watched():
        _end_now(code)
    sys.exit(code)


def say_interrupted(number: int) -> None:
    """One line, which on a terminal replaces the command's progress line."""
    reason = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    start = "\r\033[K" if os.isatty(_STDERR) else ""
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"{start}minibroker: {reason}\n".encode())


def _lost(error: OSError) -> int:
    _drop_output()
    # Windows says "invalid argument" of a pipe that was closed.
    if error.errno in (errno.EPIPE, errno.EINVAL):
        return EXIT_BROKEN_PIPE
    say(f"minibroker: cannot write to stdout: {error.strerror}", to=sys.stderr)
    return EXIT_FAILED


def _unexpected(error: Exception) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        traceback.print_exception(error)
    if missing := _missing(error):
        say(f"minibroker: {missing}", to=sys.stderr)
        return EXIT_FAILED
    text = " ".join(str(error).split())
    say(f"minibroker: unexpected {type(error).__name__}: {text} ({TRACEBACK_VARIABLE}=1 shows where)", to=sys.stderr)
    return EXIT_UNEXPECTED


def _missing(error: BaseException | None) -> str | None:
    """The reason of an error if it lies in the environment: a file that is not for this user, too few file descriptors,
    no working or temporary directory; else None."""
    while error is not None:
        if isinstance(error, PermissionError) and error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return f"{error.strerror}: see `ulimit -n`"
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_directory():
            return "the current directory does not exist any more"
        if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
            return error.strerror
        error = error.__context__
    return None


def _has_directory() -> bool:
    with contextlib.suppress(FileNotFoundError):
        return bool(os.getcwd())
    return False


def _drop_output() -> None:
    """From now on stdout writes to the null device, the rest of its buffer included."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, _STDOUT)
        os.close(null)


# Standard streams


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed.

    Else the next file or socket would get its number, and what a child process writes to "stdout" would end up there.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > _STDERR:
            os.close(fd)
            break
    sys.stdin = sys.stdin or _null("r")
    sys.stdout = sys.stdout or _null("w")
    sys.stderr = sys.stderr or _null("w")


def _null(mode: str) -> IO[str]:
    return open(os.devnull, mode, encoding="utf-8")


class _Stdout(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLost(error) from None


class _Stderr(io.FileIO):
    """Progress and log lines: a command continues when their reader is gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _guarded(stream: Any, kind: type[io.FileIO]) -> Any:
    if not isinstance(stream, io.TextIOWrapper):  # none, or what another program has put there
        return stream
    if stream.isatty():  # Windows' console has a file of its own kind
        # A locale without a character of ours gets it as \u2026.
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    file = kind(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        file if stream.write_through else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


# The end of the process


def _watched() -> bool:
    """Whether the program is traced or profiled: such tools write their results at the very end."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


def _end_now(code: int) -> NoReturn:
    import logging

    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)
