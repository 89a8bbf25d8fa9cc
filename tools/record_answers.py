"""Writes a broker's answers into scenario files: only where they differ, and everything else stays as it is written.

For a real Apache Kafka only: ``PYTHONPATH=tools python -m record_answers --bootstrap HOST:PORT [--expect R] FILE…``,
with the options of `minibroker conformance` that choose scenarios.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minibroker.client.security import read_security
from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.cluster import ClusterUnderTest
from minibroker_lab.conformance.paths import plain
from minibroker_lab.conformance.runner import Options, ScenarioRun
from minibroker_lab.conformance.scenario import KAFKA, Step, every_step, load
from minibroker_lab.conformance.session import wall_ms

PASSED, FAILED = 0, 1
_NEWEST = "expect"
_SHORTEST_NUMBER_TO_NAME = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run with these arguments (default: the process's); returns the exit status of `record`."""
    parser = argparse.ArgumentParser(prog="record_answers", description=__doc__)
    cli.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if not arguments.files:
        parser.error("name the files to write to")
    cluster = ClusterUnderTest(
        arguments.bootstrap,
        timeout=arguments.timeout,
        patience=arguments.until,
        security=read_security(arguments.command_config),
    )
    token = secrets.token_hex(3)
    cluster.warm_up(token)
    expectation = arguments.expect or KAFKA
    options = Options(timeout=arguments.timeout, patience=arguments.until, expectation=expectation)
    runs = [
        ScenarioRun(cluster, scenario, f"{token}-{number}", options, wall_ms)
        for number, scenario in enumerate(cli.selected(load(arguments.files), arguments, expectation))
    ]
    return record(runs, arguments.files, expectation)


def record(runs: Sequence[ScenarioRun], files: Iterable[Path], expectation: str = KAFKA) -> int:
    """Run the scenarios one by one and put what came back in place of what was expected, or beside it when the newest
    release is not what the broker is held against; the exit status is 1 when one could not be run to its end. Only the
    first answer of a step inside a loop counts."""
    status = PASSED
    texts: dict[tuple[str, int, str], str] = {}
    for run in runs:
        answers: dict[tuple[int, str], str] = {}
        steps = {id(step): number for number, step in enumerate(every_step(run.scenario.steps))}

        def note(
            step: Step,
            path: str,
            answer: Any,
            answers: dict[tuple[int, str], str] = answers,
            steps: Mapping[int, int] = steps,
            run: ScenarioRun = run,
        ) -> None:
            answers.setdefault((steps[id(step)], path), _flow(answer, run.variables))

        run.recorder = note
        why = run.run()
        if why:
            status = FAILED
            print(f"FAIL {run.scenario.name}: {why}")
            continue
        print(
            f"{'new' if answers else 'ok'} {run.scenario.name}"
            + "".join(f"\n     {p}: {v}" for (_, p), v in answers.items())
        )
        texts |= {(run.scenario.name, number, path): text for (number, path), text in answers.items()}
    for file in files:
        before = file.read_text(encoding="utf-8")
        after = rewritten(before, texts, _NEWEST if expectation == KAFKA else expectation)
        if after != before:
            file.write_text(after, encoding="utf-8")
            print(f"wrote {file}")
    return status


def rewritten(text: str, texts: Mapping[tuple[str, int, str], str], option: str = _NEWEST) -> str:
    """A scenario file with other values: (scenario, number of the step counted through, path under `option`) → YAML.
    Another option than `expect` is made, beside that one, where a step has it not yet."""
    import yaml

    document = yaml.compose(text, Loader=yaml.SafeLoader)
    changes: set[tuple[int, int, str]] = set()  # an alias shows the same step more than once
    for scenario, parts in _scenario_nodes(document.value if document is not None else ()):
        for number, step in enumerate(step for part in parts for step in _step_nodes(part)):
            named = (scenario, number)
            answers = {path: new for (name, at, path), new in texts.items() if (name, at) == named}
            if answers:
                changes |= set(_changes(step, answers, option))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _changes(step: Any, answers: Mapping[str, str], option: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, text) of what is written into a step."""
    options = _fields(step)
    known = _fields(options[option]) if option in options else {}
    for path in answers.keys() & known.keys():
        yield known[path].start_mark.index, known[path].end_mark.index, answers[path]
    rest = ", ".join(f"{_quoted(path)}: {answers[path]}" for path in answers if path not in known)
    if not rest or option == _NEWEST:
        return
    if known:
        end, separator = _last(options[option]), ", " if options[option].flow_style else _line(options[option])
        yield end, end, f"{separator}{rest}"
        return
    answer = options[_NEWEST]
    end = answer.end_mark.index if answer.flow_style else _last(answer)
    yield end, end, f"{', ' if step.flow_style else _line(step)}{option}: {{{rest}}}"


def _last(mapping: Any) -> int:
    """Where the last value of a mapping ends."""
    end: int = mapping.value[-1][1].end_mark.index
    return end


def _line(mapping: Any) -> str:
    """A new line of a block."""
    column: int = mapping.value[0][0].start_mark.column
    return "\n" + " " * column


def _quoted(path: str) -> str:
    return f"'{path}'" if set(path) & set("[]{},#:' ") else path


class _Nothing:
    value: tuple[()] = ()


_NOTHING = _Nothing()


def _fields(node: Any) -> dict[str, Any]:
    return {key.value: value for key, value in node.value}


def _scenario_nodes(entries: Iterable[Any]) -> Iterator[tuple[str, list[Any]]]:
    """(name, the lists of its steps) of each scenario; those of a matrix begin with the same one."""
    for entry in entries:
        fields = _fields(entry)
        if "matrix" not in fields:
            yield fields["name"].value, [fields["steps"]]
            continue
        before = [fields["before"]] if "before" in fields else []
        for cell, own in _fields(fields["cells"]).items():
            yield f"{fields['matrix'].value}-{cell}", [*before, _fields(own)["steps"]]


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


if __name__ == "__main__":
    raise SystemExit(main())
