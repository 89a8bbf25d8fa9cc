"""Scripts of failures: TOML files, the bundled ones in the folder `scripts`.

A script has ``about`` (one line), ``brokers`` (how many it needs, default 1; topics have a replica on each) and any
number of ``[[fault]]``: the fields of a rule as `minibroker.faults.rules` has them, and for the action ``hold`` on
request ``meanwhile``: once a request is held, with ``{ advance_ms = N }`` the broker clock moves on and the rule ends,
with ``{ until = "EndTxn", times = 2 }`` so many requests of this API (default 1) have been answered without an error
since the command began, with ``since_held = true`` since it is held, and then it is let go (`wait.py`: or some time
after one of them failed).
A fault with ``after_hold = true`` acts, and counts, once the last hold before it has a request.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from minibroker.faults.rules import rule_from, rule_to
from minibroker.handlers.table import rows
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near, reason

_SUFFIX = ".toml"
_MOST_BROKERS = 9
_BEFORE = ("close", "reset", "black_hole")
"""Actions that leave a request without an answer, and unapplied."""
_DEFAULTS = {"nth": 1, "times": 1, "probability": 1.0, "seed": 0}


class ScriptError(ValueError):
    """A script that cannot be; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rule as JSON has it.

    advance_ms: how far the clock moves while the rule holds a request.
    until, times: what it is held for.
    since_held: `times` leaves out what was answered before it was held.
    restart: the command is killed and started again while the rule holds a request, then given up.
    after_hold: the rule is there once the last hold before it has a request.

    Without any of these the request is never released.
    """

    rule: Mapping[str, Any]
    advance_ms: int = 0
    until: str = ""
    times: int = 1
    restart: bool = False
    since_held: bool = False
    after_hold: bool = False

    @property
    def holds(self) -> bool:
        return bool(self.rule["action"]["name"] == "hold")

    @property
    def applies(self) -> bool:
        """Whether a request that it leaves without an answer was applied."""
        action = self.rule["action"]
        let_go = (self.advance_ms or self.until) and not self.restart
        return action["name"] not in _BEFORE and (action["name"] != "hold" or action["when"] == "after" or bool(let_go))


@dataclass(frozen=True, slots=True)
class Script:
    """What is done to a broker while a client works with it.

    brokers: how many it needs.
    """

    name: str
    about: str
    steps: tuple[Step, ...]
    brokers: int = 1


def bundled() -> list[str]:
    """Names of the scripts that come with the package."""
    file_names = [file.name for file in files("minibroker_lab.judge").joinpath("scripts").iterdir()]
    return sorted(name.removesuffix(_SUFFIX) for name in file_names if name.endswith(_SUFFIX))


def load(name: str) -> Script:
    """A bundled script by its name, another one by its file. Raises ScriptError."""
    if name in bundled():
        text = files("minibroker_lab.judge").joinpath("scripts", name + _SUFFIX).read_text(encoding="utf-8")
        return parse(text, name)
    path = Path(name)
    if path.suffix != _SUFFIX:
        others = f"; there are {', '.join(bundled())}, or name a {_SUFFIX} file"
        raise ScriptError(f"there is no script {name!r}{near(name, bundled()) or others}")
    try:
        return replace(parse(path.read_text(encoding="utf-8"), name), name=path.stem)
    except OSError as error:
        raise ScriptError(reason(error)) from None
    except UnicodeDecodeError as error:
        raise ScriptError(f"{name}: {error}") from None


def parse(text: str, name: str) -> Script:
    """A script from TOML. Raises ScriptError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScriptError(f"{name}: {error}") from None
    about, faults, brokers = table.pop("about", ""), table.pop("fault", []), table.pop("brokers", 1)
    if table:
        raise ScriptError(f"{name}: a script has about, brokers and fault, not {next(iter(table))}")
    if type(brokers) is not int or not 1 <= brokers <= _MOST_BROKERS:
        raise ScriptError(f"{name}: brokers is a number from 1 to {_MOST_BROKERS}, not {brokers!r}")
    if not isinstance(about, str) or not isinstance(faults, list):
        raise ScriptError(f"{name}: about is a text, and each fault begins with [[fault]]")
    steps = []
    for number, fault in enumerate(faults, 1):
        try:
            steps.append(step(dict(fault)))
        except (FaultError, TypeError, ValueError) as error:
            raise ScriptError(f"{name}: fault {number}: {error}") from None
    if len(reachable(steps)) < len(steps):
        raise ScriptError(f"{name}: after_hold needs a fault with the action hold before it")
    return Script(name, about, tuple(steps), brokers)


def reachable(steps: Sequence[Step]) -> list[Step]:
    """Without those that wait for a hold, and none is before them."""
    first = next((at for at, step in enumerate(steps) if step.holds), len(steps))
    return [step for at, step in enumerate(steps) if at > first or not step.after_hold]


def step(fault: dict[str, Any]) -> Step:
    """A ``[[fault]]``. Raises FaultError, TypeError, ValueError."""
    meanwhile, after_hold = fault.pop("meanwhile", None), fault.pop("after_hold", False)
    if type(after_hold) is not bool:
        raise FaultError("after_hold is true or false")
    rule = rule_to(rule_from(fault))
    if meanwhile is None:
        return Step(rule, after_hold=after_hold)
    apis = [row.name for row in rows().values()]
    known = {"advance_ms", "until", "times", "since_held", "restart_client"}
    if not isinstance(meanwhile, dict) or not meanwhile or meanwhile.keys() - known:
        raise FaultError("meanwhile is a table with advance_ms, with until and times, or with restart_client")
    restart = meanwhile.get("restart_client", False)
    if restart is not True and "restart_client" in meanwhile:
        raise FaultError("meanwhile has restart_client = true, or does not have it")
    since_held = meanwhile.get("since_held", False)
    if "since_held" in meanwhile and (since_held is not True or "until" not in meanwhile):
        raise FaultError("meanwhile has since_held = true with until, or does not have it")
    numbers = [meanwhile.get("advance_ms", 1), meanwhile.get("times", 1)]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 1 for number in numbers):
        raise FaultError("meanwhile has advance_ms and times, numbers of 1 or more")
    if restart and ("until" in meanwhile or rule["times"] != 1):
        raise FaultError("meanwhile has restart_client without until, in a fault with times = 1")
    if (not restart and ("until" in meanwhile) == ("advance_ms" in meanwhile)) or (
        "times" in meanwhile and "until" not in meanwhile
    ):
        raise FaultError("meanwhile has either advance_ms or until, the latter with times")
    if "until" in meanwhile and meanwhile["until"] not in apis:
        raise FaultError(f"there is no API {meanwhile['until']!r}{near(str(meanwhile['until']), apis)}")
    if rule["action"]["name"] != "hold":
        raise FaultError("meanwhile needs the action hold")
    until, times = meanwhile.get("until", ""), meanwhile.get("times", 1)
    return Step(rule, meanwhile.get("advance_ms", 0), until, times, restart, since_held, after_hold)


def action_text(action: Mapping[str, Any] | str) -> str:
    """An action of a rule in a few words, as ``error NOT_COORDINATOR``."""
    if isinstance(action, str):
        return action
    return " ".join(str(action[name]) for name in ("name", "operation", "code", "ms") if name in action)


def as_toml(script: Script) -> str:
    """The file of a script, without what is the default."""
    lines = [f"about = {json.dumps(script.about)}", *([f"brokers = {script.brokers}"] if script.brokers > 1 else [])]
    for step in script.steps:
        held: dict[str, Any] = {"restart_client": True} if step.restart else {}
        held |= {"advance_ms": step.advance_ms} if step.advance_ms else {}
        held |= {"until": step.until, "times": step.times} if step.until else {}
        held |= {"since_held": True} if step.since_held else {}
        more: dict[str, Any] = {"meanwhile": held} if held else {}
        more |= {"after_hold": True} if step.after_hold else {}
        lines += ["", "[[fault]]"]
        lines += [
            f"{name} = {_value(value)}" for name, value in {**step.rule, **more}.items() if value != _DEFAULTS.get(name)
        ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """What a rule has: JSON's texts, numbers and lists are TOML's."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_value(item)}' for name, item in value.items())} }}"
    return json.dumps(value)
