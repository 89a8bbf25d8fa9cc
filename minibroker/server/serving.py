"""What `minibroker serve` and `minibroker proxy` share: options of control API and log, the loop, what ends them."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from minibroker.config.types import ConfigError
from minibroker.control import TOKEN_VARIABLE
from minibroker.exit_codes import EXIT_FAILED, EXIT_USAGE
from minibroker.kernel import logs
from minibroker.kernel.addresses import Address, format_address
from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.logs import get_logger
from minibroker.kernel.words import fail
from minibroker.output import say
from minibroker.server.signals import StopSignals

log = get_logger(__name__)


def add_token_file(parser: argparse.ArgumentParser) -> None:
    """The option with the control API's token."""
    parser.add_argument(
        "--control-token-file", metavar="FILE", help="file with the control API's token (default: a new one, on stderr)"
    )


def add_life(parser: argparse.ArgumentParser) -> None:
    """Options of the log, and of what ends the program."""
    parser.add_argument("--log-level", default="info", choices=logs.LEVELS, help="(default: info)")
    parser.add_argument(
        "--log-format", default="auto", choices=logs.FORMATS, help="auto: text on a terminal, JSON elsewhere (default)"
    )
    # For a program that starts a server and wants it to end with itself, however that ends.
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)


def control_address(arguments: argparse.Namespace) -> Address | None:
    """The address on which the control API listens; None without the API. Raises ConfigError."""
    if not arguments.control:
        return None
    from minibroker.control.server import parse_control

    return parse_control(arguments.control)


def control_token(path: str | None) -> str | None:
    """The control API's token: of the file, else of the environment; None for a new one. Raises ConfigError."""
    if path is None and not os.environ.get(TOKEN_VARIABLE):
        return None
    from minibroker.control.command import read_token

    try:
        return read_token(path)
    except FaultError as error:
        raise ConfigError(str(error)) from None


def say_control(service: Any) -> None:
    """Where the control API of a started service is, and its page; a new token on standard error."""
    control = service.control
    if control is None:
        return
    if service.options.control_token is None:
        say(f"minibroker: the control API's token is {control.token}", to=sys.stderr, flush=True)
    say(f"control={format_address(*control.address)}")
    if control.page is not None:
        say(f"page={control.page_url}")


def run_service(
    arguments: argparse.Namespace,
    make: Callable[[], Any],
    serve: Callable[[Any, argparse.Namespace], Coroutine[Any, Any, int]],
) -> int:
    """Run `serve` on a new event loop, with the service that `make` returns.

    Exit status: that of `serve`, 1 if the service could not start, 2 for an invalid configuration.
    """
    from minibroker.server.service import StartError

    logs.configure(arguments.log_level, arguments.log_format)
    try:
        service = make()
    except ConfigError as error:
        return fail(error, EXIT_USAGE)
    loop = new_event_loop(uvloop=service.settings.get_boolean("minibroker.uvloop"))
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(serve(service, arguments))
    except ConfigError as error:
        return fail(error, EXIT_USAGE)
    except StartError as error:
        return fail(error, EXIT_FAILED)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@asynccontextmanager
async def running(
    service: Any, arguments: argparse.Namespace, *, whole_start: bool = True
) -> AsyncIterator[asyncio.Event]:
    """Start a service, and stop it at the end. The event is set once the program should end: by a signal, or at the end
    of standard input with ``--until-stdin-closes``.

    whole_start: a signal waits until the service has started, whose start may change what is kept.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    signals = StopSignals(loop, stopping.set)
    signals.begun = whole_start
    # Before anything is opened: a signal during a long recovery must not leave it half done.
    signals.install()
    try:
        await service.start()
        signals.begun = True
        try:
            if arguments.until_stdin_closes:
                watch_stdin(loop, stopping)
            yield stopping
            log.info("stopping")
        finally:
            await service.stop()
    finally:
        signals.remove()


def watch_stdin(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Set `stopping` once standard input ends."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        if not loop.is_closed():
            loop.call_soon_threadsafe(stopping.set)

    # A thread, because Windows' event loop cannot wait for a pipe that another process created.
    threading.Thread(target=watch, name="minibroker-stdin", daemon=True).start()
