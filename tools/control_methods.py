"""Writes `minibroker/control/state.py`, a method for each operation of `minibroker.faults.operations`, and
`minibroker/faults/names.py`, the names of the tables as types.

``PYTHONPATH=tools python -m control_methods``
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

from minibroker.faults.operations import OPERATIONS, ClusterOperation, parameters

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
STATE = ROOT / "minibroker" / "control" / "state.py"
NAMES = ROOT / "minibroker" / "faults" / "names.py"
_WIDTH = 120
_HEAD = '''"""The operations on a running cluster, as methods. Generated from `minibroker.faults.operations`:
``PYTHONPATH=tools python -m control_methods``."""

from __future__ import annotations

from typing import cast

from minibroker.control.command_group import CommandGroup
from minibroker.partitions.producer_loss import Cause

__tracebackhide__ = True  # pytest shows the line of the test


class State(CommandGroup):
    """Operations on what the brokers know: producer state, logs, epochs, markers, brokers, groups.

    Each returns once it is done. Raises FaultError for arguments that make no sense, ApiError for what the cluster
    refuses.
    """

    _OTHER_NAMES = {"delete_topic": "the broker's own reset(topics=True)", "records": "the broker's own records"}
'''

# Parameters whose values are the names of a table, which a type checker then knows.
_TYPES = {"cause": "Cause"}

_NAMES_HEAD = '''"""The names that rules and waits take, as types, for type checkers and editors.
Generated from the tables: ``PYTHONPATH=tools python -m control_methods``."""

from __future__ import annotations

from typing import Literal
'''


def names_module() -> str:
    """The source of the module, unformatted."""
    from minibroker.coordinators.transactions.states import BY_LABEL
    from minibroker.faults.actions import ACTIONS
    from minibroker.proxy.proxy_dispatcher import known_apis, no_handler
    from minibroker_protocol.errors import ErrorCode

    tables = {
        "ApiName": sorted(api.name for api in known_apis(no_handler).values()),
        "ActionName": list(ACTIONS),
        "ErrorName": list(ErrorCode.__members__),
        "OperationName": list(OPERATIONS),
        "TransactionStateName": list(BY_LABEL),
    }
    return _NAMES_HEAD + "".join(map(_literal, tables, tables.values()))


def _literal(name: str, values: list[str]) -> str:
    """As many values in a line as it has room for: no reader looks for one here."""
    listed = ", ".join(f'"{value}"' for value in values)
    lines = textwrap.fill(listed, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return f"\n{name} = Literal[\n{lines},\n]  # fmt: skip\n"


def state_module() -> str:
    """The source of the module, unformatted."""
    return _HEAD + "".join(_method(name, operation) for name, operation in OPERATIONS.items())


def formatted(text: str) -> str:
    """As `ruff format` has it; needs the extra `check`."""
    ruff = [sys.executable, "-m", "ruff", "format", "--config", str(PROJECT), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout


def returned(operation: ClusterOperation) -> str:
    """The type of an operation's result once it is done."""
    annotation = str(inspect.signature(operation).return_annotation)
    return annotation.removeprefix("Deferred[").removesuffix("]") if annotation.startswith("Deferred[") else annotation


def signature(operation: ClusterOperation) -> list[str]:
    """The keyword parameters of a command, as Python has them."""
    texts = []
    for name, parameter in parameters(operation).items():
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        texts.append(f"{name}: {_TYPES.get(name, parameter.annotation)}{default}")
    return texts


def positional(operation: ClusterOperation) -> int:
    """How many parameters may be given by position: the topic and its partition, which `records` takes so too."""
    known = [name for name, parameter in parameters(operation).items() if parameter.default is parameter.empty]
    return next((count for count in (2, 1) if known[:count] == ["topic", "partition"][:count]), 0)


def _method(name: str, operation: ClusterOperation) -> str:
    arguments, result = signature(operation), returned(operation)
    passed = ", ".join([f'"state.{name}"', *(f"{known}={known}" for known in parameters(operation))])
    body = f"self._ask({passed})"
    body = body if result == "None" else f'return cast("{result}", {body})'
    first = positional(operation)
    keywords = ["*", *arguments[first:]] if arguments[first:] else []
    head = f"def {name}({', '.join(['self', *arguments[:first], *keywords])}) -> {result}:"
    return f"\n    {head}\n{_docstring(operation)}\n        {body}\n"


def _docstring(operation: ClusterOperation) -> str:
    text = " ".join((operation.__doc__ or "").split())
    lines = textwrap.wrap(f'"""{text}"""', _WIDTH - 8)
    return textwrap.indent("\n".join(lines), " " * 8)


if __name__ == "__main__":
    STATE.write_text(formatted(state_module()), encoding="utf-8")
    NAMES.write_text(formatted(names_module()), encoding="utf-8")
