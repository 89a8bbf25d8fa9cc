"""The command `minibroker replay`: sends recorded requests to any broker and compares the responses."""

from __future__ import annotations

import argparse
import base64
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from minibroker.client.connection import BrokerFailed, Connection
from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.addresses import parse_address
from minibroker.kernel.arguments import duration
from minibroker.kernel.words import counted, fail
from minibroker.output import say
from minibroker.trace.plain import plain, refusals
from minibroker.trace.saved import NoTrace, exchange_of
from minibroker_protocol.errors import ErrorCode, Malformed
from minibroker_protocol.registry import registry

_CORRELATION_BYTES = 4
_API_VERSIONS = 18
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = "Send the requests of a trace (`minibroker trace --frames`) again, in their order."
    parser.add_argument("file", metavar="FILE", help="JSON lines with frames; - for standard input")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="broker to send them to")
    parser.add_argument(
        "--timeout", type=duration, default=10.0, metavar="S", help="seconds to wait for each response (default: 10)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when every request had an answer of the same errors; 1 when not; 2 when the file is no trace with frames."""
    connections: dict[str, Any] = {}
    sent = different = without = 0
    try:
        with contextlib.ExitStack() as stack:
            for exchange in _exchanges(arguments.file, stack):
                if exchange["request_frame"] is None:  # it has a secret, or its records were left out
                    without += 1
                    continue
                frame = base64.b64decode(exchange["request_frame"])
                client = exchange["client"]
                if client not in connections:
                    address = parse_address(arguments.bootstrap)
                    connections[client] = stack.enter_context(Connection(address, arguments.timeout))
                sent += 1
                same, line = _again(connections, client, exchange, frame, arguments.timeout)
                different += not same
                say(line, flush=True)
    except BrokerFailed as error:
        return fail(error, EXIT_FAILED)
    except (NoTrace, OSError) as error:
        return fail(error, EXIT_USAGE)
    except (ValueError, KeyError, TypeError) as error:
        return fail(f"{type(error).__name__}: {error}", EXIT_USAGE)
    omitted = f"; {counted(without, 'request')} left out, whose bytes the trace does not have" if without else ""
    say(f"{counted(sent, 'request')} sent, {different} answered differently{omitted}")
    return EXIT_FAILED if different else EXIT_OK


def _exchanges(path: str, stack: contextlib.ExitStack) -> Iterator[dict[str, Any]]:
    file = sys.stdin if path == "-" else stack.enter_context(open(path, encoding="utf-8", errors="replace"))  # noqa: SIM115  (the stack closes it)
    for number, line in enumerate(file, start=1):
        exchange = exchange_of(line, number)
        if exchange.get("request_frame", "") == "":
            raise NoTrace("the trace has no frames: make it with --frames")
        yield exchange


def _again(
    connections: dict[str, Any], client: str, exchange: dict[str, Any], frame: bytes, timeout: float
) -> tuple[bool, str]:
    """Whether the errors are the same, and a line that says so."""
    head = f"{client} {exchange['api']} v{exchange['version']}"
    connection = connections[client]
    expected = exchange["errors"]
    answered = exchange["outcome"] == "answered"
    try:
        connection.send_frame(frame)
        if not answered and exchange["response_frame"] is None:
            return True, f"{head}: sent; there was no answer then either"
        body = bytes(connection.receive(timeout))
    except BrokerFailed as error:
        connections.pop(client).close()
        return not answered, f"{head}: {'as then, ' if not answered else ''}no answer ({error})"
    response_type = registry()[int.from_bytes(frame[:2], "big")][1]
    version = exchange["version"]
    is_api_versions = response_type.__api_key__ == _API_VERSIONS
    flexible = not is_api_versions and version >= response_type.__flexible__
    is_refusal = is_api_versions and body[_CORRELATION_BYTES : _CORRELATION_BYTES + 2] == _UNSUPPORTED
    try:
        # A refused version of ApiVersions is answered in version 0 (KIP-511).
        response = response_type.decode(body, 0 if is_refusal else version, _CORRELATION_BYTES + flexible)
    except Malformed as error:
        return False, f"{head}: unreadable answer: {error}"
    codes = refusals(response)
    if codes != expected:
        return False, f"{head}: {codes or 'no error'}, then {expected or 'no error'}"
    same = plain(response, version) == exchange["response"]
    return True, f"{head}: {'the same answer' if same else 'the same errors'}"
