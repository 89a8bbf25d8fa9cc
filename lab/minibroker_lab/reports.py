"""Reports as files: the options that ask for them, JUnit's XML, and the frame of an HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from minibroker.kernel.arguments import directory
from minibroker.trace.view import base_style
from minibroker_storage.private_files import output_path, replace_private

ENDINGS: Final[Mapping[str, str]] = {"html": ".html", "junit": ".xml", "json": ".json"}
"""Kind of report → the ending of its file."""


def add_report_arguments(parser: argparse.ArgumentParser, name: str, offered: Sequence[str] = tuple(ENDINGS)) -> None:
    """`--report KIND,…` and `--report-dir DIR`.

    name: the name of the files without their ending.
    offered: the kinds.
    """

    def kinds(text: str) -> list[str]:
        named = text.split(",")
        if odd := [kind for kind in named if kind not in offered]:
            raise argparse.ArgumentTypeError(f"{odd[0]!r} is none of {', '.join(offered)}")
        return named

    files = ", ".join(f"{name}{ENDINGS[kind]}{' (junit)' if kind == 'junit' else ''}" for kind in offered)
    parser.add_argument("--report", type=kinds, default=[], metavar="KIND,…", help=f"write {files}")
    parser.add_argument(
        "--report-dir", type=directory, default=Path(), metavar="DIR", help="directory of the reports (.)"
    )


def write_reports(
    kinds: Sequence[str], directory: Path, name: str, makers: Mapping[str, Callable[[], str]]
) -> list[Path]:
    """Write the reports of these kinds, each made when it is wanted; returns their files. Raises OSError."""
    written = []
    for kind in kinds:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / (name + ENDINGS[kind])
        text = makers[kind]()
        try:
            _write_whole(output_path(path), text)
        except OSError as error:  # the error of a full disk does not name the file
            error.filename = str(path)
            raise
        written.append(path)
    return written


def _write_whole(path: Path, text: str) -> None:
    """In one step, so that a report is never half of one; what is no plain file (a pipe, a device, a link) as it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text, encoding="utf-8")
    else:
        replace_private(path, text, 0o644)


class JunitCase(NamedTuple):
    """A test case as JUnit has it.

    failure, skipped: the reason, or None.
    detail: the text below a failure.
    said: output of a case that passed.
    weight: the type of a failure.
    """

    suite: str
    name: str
    seconds: float
    failure: str | None = None
    skipped: str | None = None
    detail: str = ""
    said: str = ""
    weight: str = ""


def junit(cases: Sequence[JunitCase], classes: str, started: str) -> str:
    """JUnit's XML: one suite for each of the cases' `suite`.

    classes: before it in class names.
    started: ISO 8601.
    """
    suites: dict[str, list[JunitCase]] = {}
    for case in cases:
        suites.setdefault(case.suite, []).append(case)
    root = ElementTree.Element(
        "testsuites", tests=str(len(cases)), failures=str(sum(case.failure is not None for case in cases))
    )
    for name, own in sorted(suites.items()):
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(own)),
            failures=str(sum(case.failure is not None for case in own)),
            skipped=str(sum(case.skipped is not None for case in own)),
            timestamp=started,
        )
        for case in own:
            _case(suite, case, f"{classes}.{name}")
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, case: JunitCase, classname: str) -> None:
    entry = ElementTree.SubElement(suite, "testcase", classname=classname, name=case.name, time=f"{case.seconds:.3f}")
    if case.failure is not None:
        failure = ElementTree.SubElement(entry, "failure", message=_xml_text(case.failure))
        if case.weight:
            failure.set("type", case.weight)
        failure.text = _xml_text(case.detail)
    elif case.skipped is not None:
        ElementTree.SubElement(entry, "skipped", message=_xml_text(case.skipped))
    elif case.said:
        ElementTree.SubElement(entry, "system-out").text = _xml_text(case.said)


def _xml_text(text: str) -> str:
    """XML 1.0 has no control characters but tab and line ends; a broker's bytes may."""
    return "".join(c if c in "\t\n\r" or c >= " " else "\ufffd" for c in text)


_STYLE: Final = """
body{max-width:75em;margin:1.5em auto;padding:0 1em}h1{font-size:1.4rem}table{margin:1em 0}small{color:var(--quiet)}
.good{color:var(--commit)}.bad{color:var(--abort);font-weight:600}.neutral{color:var(--quiet)}"""


def page(title: str, body: str, style: str = "") -> str:
    """One HTML page without anything to load, light or dark as the reader's system is, as the page of a trace looks.

    body: HTML.
    title: text.

    Classes: good, bad, neutral.
    """
    return f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{base_style()}{_STYLE}{style}</style>
<h1>{escape(title)}</h1>
{body}
</html>
"""
