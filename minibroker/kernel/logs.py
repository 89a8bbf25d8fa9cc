"""Log lines on stderr: text where a person reads them, JSON elsewhere.

Modules log through the standard library's calls, so that an embedding program's own logging sees them as well.
A JSON line is made here. structlog, which takes as long to import as half of the broker, makes the text and is imported
by the first line of text that is really written.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import IO, Any, TextIO

from minibroker.output import printable, say

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("auto", "text", "json")

ROOT = "minibroker"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module; `name` is its ``__name__``."""
    return logging.getLogger(name)


def configure(level: str = "info", format: str = "auto", stream: IO[str] | None = None) -> None:
    """Send the broker's log lines at `level` and above to `stream` (stderr), as one of FORMATS.

    For the program that owns the process; a broker embedded in another program leaves logging to it.
    """
    stream = stream if stream is not None else sys.stderr
    if format == "auto":
        format = "text" if stream.isatty() else "json"
    handler = _Lines(stream)
    handler.setFormatter(JsonLine() if format == "json" else TextLine(colors=stream.isatty()))
    logger = logging.getLogger(ROOT)
    reset()
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def reset() -> None:
    """Undo `configure`."""
    logger = logging.getLogger(ROOT)
    for handler in list(logger.handlers):
        if isinstance(handler.formatter, JsonLine | TextLine):
            logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


NAMED_LEVELS = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
"""Kafka's levels and what they are to Python's loggers."""
_ROOT_NAME = "root"


def logger_levels() -> dict[str, str]:
    """Level of each of this program's loggers that log something, in Kafka's words; "root" is the parent of all."""
    levels = {_ROOT_NAME: _level_of(logging.getLogger(ROOT))}
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if name.startswith(f"{ROOT}.") and isinstance(logger, logging.Logger):
            levels[name] = _level_of(logger)
    return levels


def set_logger_level(name: str, level: str | None) -> None:
    """Give a logger of `logger_levels` one of NAMED_LEVELS, or that of its parent (None)."""
    logger = logging.getLogger(ROOT if name == _ROOT_NAME else name)
    logger.setLevel(logging.NOTSET if level is None else NAMED_LEVELS[level])


def _level_of(logger: logging.Logger) -> str:
    number = logger.getEffectiveLevel()
    return next((name for name, least in NAMED_LEVELS.items() if number >= least), "TRACE")


def load_ahead() -> None:
    """Import what the next line needs to be written to the present stream."""
    for handler in logging.getLogger(ROOT).handlers:
        if isinstance(handler.formatter, TextLine):
            import structlog  # noqa: F401
        elif isinstance(handler.formatter, JsonLine):
            import datetime  # noqa: F401
            import json  # noqa: F401


class _Lines(logging.StreamHandler[IO[str]]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A line that cannot be formatted is written plain: a formatter imports modules, for which it needs a file
        descriptor."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            say(f"minibroker: {record.getMessage()} ({sys.exc_info()[1]})", to=self.stream, flush=True)


class JsonLine(logging.Formatter):
    """One line a record, with the names that structlog gives: event, level, logger, timestamp (UTC), exception."""

    def format(self, record: logging.LogRecord) -> str:
        import datetime
        import json

        written = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {"event": record.getMessage()}
        if record.stack_info:
            line["stack_info"] = record.stack_info
        line["level"] = record.levelname.lower()
        line["logger"] = record.name
        line["timestamp"] = written.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLine(logging.Formatter):
    """One printable line a record, with exceptions below it, indented: no text from outside looks like a line."""

    def __init__(self, *, colors: bool = False) -> None:
        super().__init__()
        self._colors = colors
        self._inner: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._inner is None:
            self._inner = self._structlog_formatter()
        return self._inner.format(record)

    def _structlog_formatter(self) -> logging.Formatter:
        import structlog

        processors: list[Any] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ]
        final: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
        final.append(_printable_event)
        final.append(structlog.dev.ConsoleRenderer(colors=self._colors, exception_formatter=_write_traceback))
        return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=processors, processors=final)


def _printable_event(logger: Any, method: str, event: Any) -> Any:
    for key in ("event", "stack"):
        if key in event:
            event[key] = printable(event[key])
    return event


def _write_traceback(stream: TextIO, exception: Any) -> None:
    """exception: as of ``sys.exc_info()``."""
    import traceback

    # An error's text may have line ends; a part of the traceback may have two lines of its own.
    for part in traceback.format_exception(*exception):
        for line in part.rstrip("\n").split("\n"):
            stream.write(f"\n  {printable(line)}")
