"""The command `minibroker`: one table of subcommands, each loaded when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from minibroker.version import __version__

EXIT_USAGE = 2


class Command(NamedTuple):
    """A module with ``add_arguments(parser)`` and ``run(arguments) -> exit code``."""

    module: str
    help: str


COMMANDS = {
    "serve": Command("minibroker.server.command", "run a broker"),
    "trace": Command("minibroker.trace.command", "show what a broker and its clients say to each other"),
    "replay": Command("minibroker.trace.replay", "send the requests of a trace to a broker again"),
    "control": Command("minibroker.control.command", "faults, clock and state of a broker that runs"),
    "demo": Command("minibroker.demo.command", "run an exactly-once loop and check what came out of it"),
    "conformance": Command("minibroker.conformance.cli", "check any broker against recorded answers of Apache Kafka"),
    "dump": Command("minibroker.inspection.dump", "print the files of a data directory"),
    "check": Command("minibroker.inspection.check", "verify a data directory, also a real Kafka's, and change nothing"),
    "audit": Command(
        "minibroker.audit.command", "look for broken exactly-once promises in data directories and topics"
    ),
    "judge": Command("minibroker.judge.command", "run a client under failures and judge whether exactly-once held"),
    "transactions": Command("minibroker.transactions_command", "list, describe, abort transactions of any broker"),
    "simulate": Command("minibroker.simulation.command", "run the broker's code under seeded failures and judge it"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, 2 for arguments that make no sense."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return _run(name, arguments[1:])
    if name in ("--version", "-V"):
        print(f"minibroker {__version__}")
        return 0
    if name in ("--help", "-h"):
        print(_usage())
        return 0
    print(f"minibroker: unknown command {name!r}\n{_usage()}" if name else _usage(), file=sys.stderr)
    return EXIT_USAGE


def program() -> NoReturn:
    """`main` as a process of its own.

    A broker that has stopped has closed and removed what it had. Its process then ends at once: taking the interpreter
    apart, module by module, takes longer than the stop did, and whoever started it waits for that.
    """
    code = main()
    if sys.argv[1:2] == ["serve"] and not _watched():
        _end_now(code)
    sys.exit(code)


def _watched() -> bool:
    """Whether the program is traced or profiled: who does that writes what it found at the very end."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


def _end_now(code: int) -> None:
    import logging
    import os

    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it; the ordinary end says so in its own way
        return
    os._exit(code)


def _run(name: str, arguments: Sequence[str]) -> int:
    import argparse
    import gc
    from importlib import import_module

    gc.disable()  # imports leave next to no garbage, and looking for it is a twentieth of what they cost
    try:
        module = import_module(COMMANDS[name].module)
    finally:
        gc.enable()

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:  # one line, as for every other thing said wrong
            self.exit(EXIT_USAGE, f"minibroker: {message} ({self.prog} --help says more)\n")

    parser = Parser(prog=f"minibroker {name}", description=COMMANDS[name].help, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"minibroker {__version__}")
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(arguments))
    return code


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: minibroker COMMAND [OPTIONS]", "", *lines, "", "minibroker COMMAND --help says more."])


if __name__ == "__main__":
    sys.exit(main())
