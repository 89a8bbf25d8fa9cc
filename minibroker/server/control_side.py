"""Starts the control API of a service, with its page."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from minibroker.control.openapi import describe
from minibroker.control.server import ControlServer
from minibroker.kernel.loop_calls import call_in_loop
from minibroker.server.listeners import ListenError, why_not

if TYPE_CHECKING:
    from minibroker.control.exchange_commands import Command, ExchangeCommands
    from minibroker.proxy.options import ProxyOptions
    from minibroker.server.options import Options


def serve_control(
    loop: asyncio.AbstractEventLoop,
    commands: ExchangeCommands,
    described: Callable[[], Mapping[str, Command]],
    address: tuple[str, int],
    options: Options | ProxyOptions,
) -> ControlServer:
    """The API for `commands`, which run on the loop, with the token and the page of `options`.

    described: those that its description lists.

    Raises ListenError for the address.
    """
    live_page = None
    if options.page:
        from minibroker.control.live_page import LivePage

        live_page = LivePage(commands, lambda work: call_in_loop(loop, work))
    try:
        control = ControlServer(
            address,
            options.control_token or secrets.token_urlsafe(24),
            lambda name, arguments: call_in_loop(loop, lambda: commands.call(name, arguments)),
            lambda: describe(described()),
            live_page,
        )
    except OSError as error:
        raise ListenError(f"the control API: {why_not(error, *address)}") from None
    control.start()
    return control
