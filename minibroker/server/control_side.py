"""Starts the control API of a service, with its page."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from minibroker.control.openapi import describe
from minibroker.control.server import ControlServer
from minibroker.kernel.loop_calls import call_in_loop

if TYPE_CHECKING:
    from minibroker.control.exchange_commands import Command, ExchangeCommands


def serve_control(
    loop: asyncio.AbstractEventLoop,
    commands: ExchangeCommands,
    described: Callable[[], Mapping[str, Command]],
    address: tuple[str, int],
    token: str | None,
    *,
    page: bool,
) -> ControlServer:
    """The API for `commands`, which run on the loop.

    described: those that its description lists.
    token: None for a new one.

    Raises OSError for the address.
    """
    live_page = None
    if page:
        from minibroker.control.live_page import LivePage

        live_page = LivePage(commands, lambda work: call_in_loop(loop, work))
    control = ControlServer(
        address,
        token or secrets.token_urlsafe(24),
        lambda name, arguments: call_in_loop(loop, lambda: commands.call(name, arguments)),
        lambda: describe(described()),
        live_page,
    )
    control.start()
    return control
