"""Writes a broker's answers into scenario files: only where they differ, and everything else stays as it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .paths import plain
from .runner import ScenarioRun
from .scenario import Step, every_step

PASSED, FAILED = 0, 1
_SHORTEST_NUMBER_TO_NAME = 1000


def record(runs: Sequence[ScenarioRun], files: Iterable[Path]) -> int:
    """Run the scenarios one by one and put what came back in place of what was expected; the exit status is 1 when one
    could not be run to its end. Only the first answer of a step inside a loop counts."""
    status = PASSED
    found: dict[tuple[str, int, str], str] = {}
    for run in runs:
        told: dict[tuple[int, str], str] = {}
        steps = {id(step): number for number, step in enumerate(every_step(run.scenario.steps))}

        def note(
            step: Step,
            path: str,
            answer: Any,
            told: dict[tuple[int, str], str] = told,
            steps: Mapping[int, int] = steps,
            run: ScenarioRun = run,
        ) -> None:
            told.setdefault((steps[id(step)], path), _flow(answer, run.variables))

        run.recorder = note
        why = run.run()
        if why:
            status = FAILED
            print(f"FAIL {run.scenario.name}: {why}")
            continue
        print(
            f"{'new' if told else 'ok'} {run.scenario.name}" + "".join(f"\n     {p}: {v}" for (_, p), v in told.items())
        )
        found |= {(run.scenario.name, number, path): text for (number, path), text in told.items()}
    for file in files:
        before = file.read_text(encoding="utf-8")
        after = rewritten(before, found)
        if after != before:
            file.write_text(after, encoding="utf-8")
            print(f"wrote {file}")
    return status


def rewritten(text: str, found: Mapping[tuple[str, int, str], str]) -> str:
    """A scenario file with other values: (scenario, number of the step counted through, path under `expect`) → YAML."""
    import yaml

    document = yaml.compose(text, Loader=yaml.SafeLoader)
    changes: list[tuple[int, int, str]] = []
    for scenario in document.value if document is not None else ():
        fields = _fields(scenario)
        for number, step in enumerate(_step_nodes(fields["steps"])):
            for key, value in _fields(step).get("expect", _NOTHING).value:
                new = found.get((fields["name"].value, number, key.value))
                if new is not None:
                    changes.append((value.start_mark.index, value.end_mark.index, new))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


class _Nothing:
    value: tuple[()] = ()


_NOTHING = _Nothing()


def _fields(node: Any) -> dict[str, Any]:
    return {key.value: value for key, value in node.value}


def _step_nodes(steps: Any) -> Iterator[Any]:
    for step in steps.value:
        if isinstance(step.value, list) and step.id == "sequence":
            yield from _step_nodes(step)
            continue
        yield step
        fields = _fields(step)
        for inner in ("steps", "pipeline"):
            if inner in fields:
                yield from _step_nodes(fields[inner])


def _flow(answer: Any, variables: Mapping[str, Any]) -> str:
    """The answer as YAML on one line; what differs in every run goes by its variable."""
    import yaml

    names: dict[Any, str] = {value: f"${name}" for name, value in variables.items() if isinstance(value, str)}
    names |= {
        value: f"${name}"
        for name, value in variables.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= _SHORTEST_NUMBER_TO_NAME
    }

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [named(inner) for inner in value]
        if isinstance(value, str | int) and not isinstance(value, bool) and value in names:
            text = names[value]
            return "${" + text[1:] + "}" if "." in text else text
        return value

    dumped: str = yaml.safe_dump(named(plain(answer)), default_flow_style=True, width=1 << 20, sort_keys=False)
    return dumped.removesuffix("...\n").strip()
