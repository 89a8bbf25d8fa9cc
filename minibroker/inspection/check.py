"""`minibroker check`: verify a data directory, minibroker's or a real Kafka broker's, without changing it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker_storage.check import Finding
    from minibroker_storage.disk import Disk

OK, WRONG, UNUSABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data_dir", metavar="DATA_DIR", help="one broker's directory, or that of several brokers")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quiet", action="store_true", help="leave out what is only worth a notice")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found: 0 when nothing is wrong, 1 when something is, 2 when there is no data directory."""
    from minibroker.inspection.progress import ProgressLine
    from minibroker_storage.check import ERROR, check_directory
    from minibroker_storage.disk import StorageError
    from minibroker_storage.os_disk import OsDisk

    progress = ProgressLine(sys.stderr)
    errors = notices = 0
    try:
        for prefix, root in _brokers(arguments.data_dir):
            disk = OsDisk(root, read_only=True)
            findings = [*check_directory(disk, progress=progress.show), *_journal(disk)]
            disk.close()
            progress.clear()
            for finding in findings:
                wrong = finding.severity == ERROR
                errors += wrong
                notices += not wrong
                if wrong or not arguments.quiet:
                    _print(finding, prefix, as_json=arguments.json)
    except StorageError as error:
        progress.clear()
        print(f"minibroker check: {error.filename or arguments.data_dir}: {error.strerror}", file=sys.stderr)
        return UNUSABLE
    except ValueError as error:
        print(f"minibroker check: {error}", file=sys.stderr)
        return UNUSABLE
    if not arguments.json:
        print(f"{errors} error(s), {notices} notice(s)")
    return WRONG if errors else OK


def _brokers(root: str) -> list[tuple[str, str]]:
    """(prefix of paths in findings, directory) of each broker whose data lies below `root`."""
    from minibroker.server.places import BROKER_DIR, META_FILE

    if not os.path.isdir(root):
        raise ValueError(f"{root} is not a directory")
    found: list[tuple[str, str]] = []
    while os.path.isdir(os.path.join(root, BROKER_DIR.format(len(found) + 1))):
        name = BROKER_DIR.format(len(found) + 1)
        found.append((f"{name}/", os.path.join(root, name)))
    if found:
        return found
    if not os.path.exists(os.path.join(root, META_FILE)):
        raise ValueError(f"{root} is not a data directory: it has no {META_FILE}")
    return [("", root)]


def _journal(disk: Disk) -> Iterator[Finding]:
    """The controller's journal, where there is one: whole JSON lines."""
    from minibroker.controller.journal import JOURNAL
    from minibroker.outside_json import parse_json
    from minibroker_storage.check import ERROR, NOTICE, Finding

    if not disk.exists(JOURNAL):
        return
    position = 0
    for line in disk.read_bytes(JOURNAL).splitlines(keepends=True):
        if not line.endswith(b"\n"):
            yield Finding(JOURNAL, "the last line is torn; opening the directory drops it", position, severity=NOTICE)
            return
        try:
            entry = parse_json(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or "type" not in entry:
            yield Finding(JOURNAL, "expected a JSON object with a type", position, severity=ERROR)
        position += len(line)


def _print(finding: Finding, prefix: str, *, as_json: bool) -> None:
    from dataclasses import replace

    placed = replace(finding, path=prefix + finding.path)
    print(json.dumps(asdict(placed), ensure_ascii=False) if as_json else str(placed))
