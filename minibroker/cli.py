"""The command `minibroker`: one table of subcommands, each loaded when it is asked for."""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from minibroker.exit_codes import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.words import near
from minibroker.output import say
from minibroker.version import __version__

# What a Ctrl-C meets before `program` catches it is Python's own traceback: next to nothing is imported here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint
    from typing import NoReturn


class Command:
    """A module with ``add_arguments(parser)`` and ``run(arguments) -> exit code``.

    problem: why there is none.
    """

    def __init__(self, module: str, help: str, problem: str = "") -> None:
        self.module = module
        self.help = help
        self.problem = problem


COMMANDS = {
    "serve": Command("minibroker.server.command", "run a broker"),
    "proxy": Command("minibroker.server.proxy_command", "stand in front of a cluster, with the same faults"),
    "trace": Command("minibroker.control.trace_command", "print the exchanges of a broker and its clients"),
    "replay": Command("minibroker.client.replay_command", "send the requests of a trace to a broker"),
    "control": Command("minibroker.control.command", "control faults, clock and state of a running broker"),
    "dump": Command("minibroker.inspection.dump_command", "print the files of a data directory"),
    "check": Command(
        "minibroker.inspection.check_command", "verify a data directory, also a real Kafka's, without changing it"
    ),
    "transactions": Command(
        "minibroker.client.transactions_command", "list, describe, commit, abort transactions of any broker"
    ),
}


def commands() -> dict[str, Command]:
    """Every subcommand: the ones of this package, and what others announce as an entry point `minibroker.commands`."""
    return dict(sorted((COMMANDS | {name: _load(entry) for name, entry in _announced().items()}).items()))


def _announced() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="minibroker.commands")}


def _load(entry: EntryPoint) -> Command:
    """The command of an entry point; one with a `problem` when it cannot be loaded, whatever was raised."""
    from importlib.util import find_spec

    from minibroker.kernel.extras import is_executable_file

    try:
        command: Command = entry.load()
        if is_executable_file() and find_spec(command.module) is None:
            raise ModuleNotFoundError
    except Exception as error:
        problem = f"cannot be loaded: {' '.join(f'{type(error).__name__}: {error}'.split())}"
        if is_executable_file() and isinstance(error, ModuleNotFoundError):
            problem = "is not in the executable file: install minibroker with pip for it"
        return Command(entry.module, problem, problem=problem)
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, 2 for arguments that make no sense."""
    return _prepared(list(sys.argv[1:] if argv is None else argv))()


# As argparse says it.
_UNRECOGNIZED, _CHOICE = "unrecognized arguments: ", "invalid choice: "
_REQUIRED = "the following arguments are required: "


def program(*before: str) -> NoReturn:
    """A process of its own for the command of `sys.argv`, which the words `before` come before."""
    try:
        from minibroker.program import run

        arguments = [*before, *sys.argv[1:]]
        # A stopped broker has closed and removed everything, and its parent waits for its end.
        run(lambda: _prepared(arguments), quick_end=arguments[:1] == ["serve"])
    except KeyboardInterrupt:  # before `run` was ready for it
        say("minibroker: interrupted", to=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _version() -> str:
    """The version, and what walks the records of a batch."""
    try:
        from minibroker_protocol import _native  # noqa: F401
    except ImportError:
        return f"minibroker {__version__} (records are walked in Python)"
    return f"minibroker {__version__} (records are walked by compiled code)"


def _prepared(arguments: list[str]) -> Callable[[], int]:
    """A subcommand, its module loaded and its arguments understood; ends with SystemExit when they are not."""
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return _loaded(name, COMMANDS[name], arguments[1:])
    if name in ("--version", "-V"):
        return lambda: _say(_version())
    if name in ("--help", "-h"):
        return lambda: _say(_usage())
    announced = _announced()  # asked of the installed packages, which takes longer than to find a command of this one
    if name in announced:
        command = _load(announced[name])
        if not command.problem:
            return _loaded(name, command, arguments[1:])
        say(f"minibroker: the command {name!r} {command.help}", to=sys.stderr)
        return lambda: EXIT_USAGE

    wrong = [f"minibroker: unknown command {name!r}{near(name, COMMANDS | announced)}"] if name else []
    say(*wrong, *_usage().splitlines(), to=sys.stderr)
    return lambda: EXIT_USAGE


def _say(text: str) -> int:
    say(*text.splitlines())
    return EXIT_OK


def _loaded(name: str, command: Command, arguments: Sequence[str]) -> Callable[[], int]:
    import argparse

    gc.disable()  # imports leave next to no garbage, and looking for it is a twentieth of what they cost
    try:
        module = import_module(command.module)
    finally:
        gc.enable()

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:  # one line, as for every other mistake
            _, is_choice, rest = message.partition(_CHOICE)
            known = self._option_string_actions
            if message.startswith(_UNRECOGNIZED):
                words = message.removeprefix(_UNRECOGNIZED).split()
                message += near(words[0].split("=")[0], known) if words else "''"
            elif message.startswith(_REQUIRED) or is_choice:  # perhaps an option is there, mistyped
                options = [word.split("=")[0] for word in arguments if word.startswith("--")]
                hints = ((name, near(name, known)) for name in options if name not in known)
                chosen, _, names = rest.removesuffix(")").partition(" (choose from ")
                message += near(chosen.strip("'"), [name.strip("'") for name in names.split(", ")])
                message = next((f"{_UNRECOGNIZED}{name}{hint}" for name, hint in hints if hint), message)
            self.exit(EXIT_USAGE, f"minibroker: {message} (see {self.prog} --help)\n")

    parser = Parser(prog=f"minibroker {name}", description=command.help, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=_version())
    module.add_arguments(parser)
    # Positional arguments may stand on both sides of an option. argparse cannot do that with subcommands, or with a
    # command after "--".
    apart = parser._subparsers or "--" in arguments
    parsed = (parser.parse_args if apart else parser.parse_intermixed_args)(arguments)

    def run() -> int:
        code: int = module.run(parsed)
        return code

    return run


def _usage() -> str:
    known = commands()
    width = max(map(len, known))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in known.items()]
    return "\n".join(
        ["usage: minibroker COMMAND [OPTIONS]", "", *lines, "", "minibroker COMMAND --help lists options."]
    )
