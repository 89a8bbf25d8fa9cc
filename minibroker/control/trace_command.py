"""The command `minibroker trace`: the requests and answers of a broker and its clients; `trace view` makes a page of a
saved trace."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minibroker.control.command import add_connection_arguments, connect
from minibroker.control.http_client import ControlError
from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.arguments import duration, from_1, local_path
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import counted, fail
from minibroker.output import say, write_out
from minibroker_storage.private_files import output_path

_POLL_SECONDS = 0.2
_KEPT = 10_000

Wanted = Callable[[dict[str, Any]], bool]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = "Show the exchanges of a broker that was started with --control, until interrupted."
    add_connection_arguments(parser)
    parser.add_argument("--api", action="append", default=[], metavar="NAME", help="only this API; may be repeated")
    parser.add_argument("--client-id", metavar="ID", help="only this client")
    parser.add_argument("--containing", metavar="TEXT", help="only exchanges with this topic, group, id …")
    parser.add_argument("--errors", action="store_true", help="only exchanges that were refused or closed")
    parser.add_argument("--json", action="store_true", help="JSON lines with every field, instead of short ones")
    parser.add_argument("--frames", action="store_true", help="include the frames' bytes, for replay; implies --json")
    parser.add_argument("--pcapng", type=local_path, metavar="FILE", help="write a capture file for Wireshark instead")
    parser.add_argument("--count", type=from_1, metavar="N", help="stop after N exchanges")
    parser.add_argument("--seconds", type=duration, metavar="S", help="stop after S seconds")
    actions = parser.add_subparsers(dest="action", title="saved traces")
    view = actions.add_parser("view", help="write an HTML page of a saved trace")
    view.add_argument(
        "file",
        metavar="FILE",
        help="of `trace --json`, `judge --traces`, `museum --traces`, `simulate --trace`; - for stdin",
    )
    view.add_argument(
        "--out", type=local_path, metavar="PAGE", help="the page (default: FILE.html; - for standard output)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when it ended as asked; 1 when the broker does not answer; 2 for arguments that make no sense."""
    if arguments.action == "view":
        return _view(arguments.file, arguments.out)
    frames = arguments.frames or arguments.pcapng is not None
    try:
        caller = connect(arguments)
        with _sink(arguments) as write:
            caller.call("trace.record", {"kept": _KEPT, "frames": frames})
            say("minibroker: tracing", to=sys.stderr, flush=True)
            for exchange in _follow(caller, _wanted(arguments), frames, arguments.count, arguments.seconds):
                write(exchange)
    except FaultError as error:
        return fail(error, EXIT_USAGE)
    except (ControlError, OSError) as error:
        return fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def _view(file: str, out: str | None) -> int:
    from minibroker.trace.saved import NoTrace, read
    from minibroker.trace.view import page

    target = out or ("-" if file == "-" else f"{file}.html")
    try:
        with contextlib.nullcontext(sys.stdin) if file == "-" else open(file, encoding="utf-8") as lines:
            trace = read(lines)
        made = page(trace, "Standard input" if file == "-" else Path(file).name)
        if target == "-":
            write_out(made)
            return EXIT_OK
        output_path(target).write_text(made, encoding="utf-8")
    except (NoTrace, OSError, UnicodeDecodeError) as error:
        return fail(error if isinstance(error, OSError) else f"{file}: {error}", EXIT_USAGE)
    say(f"{target}: {counted(len(trace.exchanges), 'exchange')}")
    return EXIT_OK


def _follow(
    caller: Any, wanted: Wanted, frames: bool, count: int | None, seconds: float | None
) -> Iterator[dict[str, Any]]:
    deadline = None if seconds is None else time.monotonic() + seconds
    # Below every number, and yet not "all, those under way among them".
    after, shown = -1, 0
    while deadline is None or time.monotonic() < deadline:
        for exchange in caller.call("trace.last", {"count": _KEPT, "after": after, "frames": frames}):
            if exchange["number"] <= max(after, 0):
                continue
            after = exchange["number"]
            if wanted(exchange):
                yield exchange
                shown += 1
                if shown == count:
                    return
        time.sleep(_POLL_SECONDS)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    apis = {name.lower() for name in arguments.api}

    def wanted(exchange: dict[str, Any]) -> bool:
        if apis and exchange["api"].lower() not in apis:
            return False
        if arguments.client_id is not None and exchange["client_id"] != arguments.client_id:
            return False
        if arguments.errors and not exchange["errors"] and not exchange["outcome"].startswith("closed"):
            return False
        if arguments.containing is None:
            return True
        return arguments.containing in json.dumps([exchange["request"], exchange["response"]], ensure_ascii=False)

    return wanted


@contextlib.contextmanager
def _sink(arguments: argparse.Namespace) -> Iterator[Callable[[dict[str, Any]], None]]:
    from minibroker.trace.recorder import line_of

    if arguments.pcapng is not None:
        from minibroker.trace.pcapng import PcapngWriter

        with output_path(arguments.pcapng).open("wb") as file:
            yield PcapngWriter(file).write
        return
    if arguments.json or arguments.frames:
        yield lambda exchange: write_out(json.dumps(exchange) + "\n", flush=True)
    else:
        yield lambda exchange: say(line_of(exchange), flush=True)
