"""The command `minibroker control`: runs any command of a running broker's control API."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from minibroker.control import TOKEN_VARIABLE
from minibroker.control.http_client import ControlError, HttpCaller
from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.outside_json import parse_json
from minibroker.kernel.words import fail
from minibroker.output import say, write_out
from minibroker_protocol.errors import ApiError

DEFAULT_ADDRESS = "127.0.0.1:9094"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Ask a running broker to do something: `fault.add api=EndTxn action=drop_reply`, `clock.advance hours=1`, "
        "`state.move_leader topic=t partition=0 to=2`. Without a command it lists all, with their parameters, and asks "
        "no broker."
    )
    add_connection_arguments(parser)
    parser.add_argument("--describe", action="store_true", help="print the OpenAPI description of the API and exit")
    parser.add_argument(
        "command", nargs="?", metavar="COMMAND", help="such as fault.add; without it commands are listed"
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="NAME=VALUE",
        help='values are JSON, or plain text: action=\'{"name":"delay","ms":50}\'',
    )


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the broker is, and the token."""
    parser.add_argument(
        "--control",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help="address of the control API (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"file with the token (default: the variable {TOKEN_VARIABLE})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 when done, with the result as JSON on stdout; 1 when refused; 2 for invalid arguments."""
    try:
        if arguments.describe:
            write_out(json.dumps(_described(), indent=1) + "\n")
            return EXIT_OK
        if arguments.command is None:
            from minibroker.control.listing import listing

            say(*listing().splitlines())
            return EXIT_OK
        caller = connect(arguments)
        values = dict(parse_value(text) for text in arguments.arguments)
        write_out(json.dumps(caller.call(arguments.command, values), indent=2) + "\n")
    except FaultError as error:
        return fail(error, EXIT_USAGE)
    except (ApiError, ControlError) as error:
        return fail(error, EXIT_FAILED)
    return EXIT_OK


def _described() -> Any:
    from minibroker.control.commands import all_commands
    from minibroker.control.openapi import describe

    return describe(all_commands())


def connect(arguments: argparse.Namespace) -> Any:
    """An `HttpCaller` as the options say. Raises FaultError."""
    token = read_token(arguments.token_file)
    if not token:
        raise FaultError(
            f"no token: `minibroker serve --control {arguments.control}` says one; "
            f"set {TOKEN_VARIABLE} to it, or name a --token-file"
        )
    return HttpCaller(arguments.control, token)


def read_token(path: str | None) -> str:
    """The control API's token: of the file, else of the environment, where there may be none. Raises FaultError."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if path is not None:
        try:
            with open(path, encoding="latin-1") as file:
                token = file.read().strip()
        except OSError as error:
            raise FaultError(f"cannot read the control API's token from {path}: {error.strerror}") from None
        if not token:
            raise FaultError(f"{path} holds no token")
    if not all("!" <= character <= "~" for character in token):  # it goes into a header of HTTP
        raise FaultError(
            f"{path or TOKEN_VARIABLE} holds no token: it has other characters than those of ASCII, or a space"
        )
    return token


def parse_value(text: str) -> tuple[str, Any]:
    """``name=value``; the value is parsed as JSON where it is valid JSON, and is text elsewhere."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise FaultError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value
