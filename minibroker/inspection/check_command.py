"""`minibroker check`: verify a data directory, minibroker's or a real Kafka broker's, without changing it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from minibroker.controller.journal import JOURNAL, MARK, MetadataJournal, topics_in, wrong_in_journal
from minibroker.kernel.progress import ProgressLine
from minibroker.kernel.words import fail
from minibroker.output import json_text, say, write_out
from minibroker.rules.compaction import policies_of
from minibroker.rules.directory import Progress, check_directory, check_partition, finding_of, metadata_of
from minibroker_storage.check_finding import DATA_DIRECTORY, ERROR, Finding
from minibroker_storage.directory import BROKER_DIR, CLEAN_FILE, META_FILE, partition_of
from minibroker_storage.disk import StorageError
from minibroker_storage.lost import DiskReader, may_be_of_a_copy
from minibroker_storage.os_disk import OsDisk

if TYPE_CHECKING:
    from minibroker_storage.disk import Disk

OK, WRONG, UNUSABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "data_dir",
        metavar="DATA_DIR",
        help="a data directory, a directory of data directories, or the directory of a partition",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--quiet", action="store_true", help="do not print notices")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found: 0 when nothing is wrong, 1 when something is, 2 when there is no data directory."""
    progress = ProgressLine(sys.stderr)
    errors = notices = 0
    try:
        for prefix, findings in _parts(arguments.data_dir, progress.show):
            progress.clear()
            for finding in findings:
                wrong = finding.severity == ERROR
                errors += wrong
                notices += not wrong
                if wrong or not arguments.quiet:
                    _print(finding, prefix, as_json=arguments.json)
    except StorageError as error:
        progress.clear()
        return fail(f"{error.filename or arguments.data_dir}: {error.strerror}", UNUSABLE, "minibroker check")
    except ValueError as error:
        return fail(error, UNUSABLE, "minibroker check")
    if not arguments.json:
        say(f"{errors} error(s), {notices} notice(s)")
    return WRONG if errors else OK


def _parts(root: str, progress: Progress) -> Iterator[tuple[str, list[Finding]]]:
    """(prefix of paths, findings) of each part of `root`: a partition, or every broker and the controller's journal."""
    folder, name = os.path.split(os.path.abspath(root))
    if partition_of(name) is not None and os.path.isdir(root) and any(n.endswith(".log") for n in os.listdir(root)):
        with _opened(folder) as disk:
            yield "", check_partition(disk, name, progress=progress)
        return
    # With one broker the controller's journal is in its directory, else beside those of all.
    with _opened(root) as together:
        topics, brokers = _topics(together), _brokers(root)
        policies = _policies(together, [path for _, path in brokers])
        topic_ids: dict[str, tuple[bytes, str]] = {}
        closed = True
        for prefix, broker in brokers:
            with _opened(broker) as disk:
                findings = check_directory(
                    disk, topics=topics | _topics(disk), policies=policies, topic_ids=topic_ids, progress=progress
                )
                yield prefix, findings
                clean = disk.exists(CLEAN_FILE)
                closed = closed and clean
                if prefix:
                    yield prefix, list(_journal(disk, closed=clean))
        yield "", list(_journal(together, closed=closed))


def _topics(disk: Disk) -> set[str]:
    return topics_in(_read_journal(disk))


def _read_journal(disk: Disk) -> bytes:
    return disk.read_bytes(JOURNAL) if disk.exists(JOURNAL) else b""


def _policies(together: Disk, directories: list[str]) -> dict[str, bool | None]:
    """Topic → whether cleanup.policy has compact, for directories of one cluster: the metadata may be in any of
    them."""
    images = []
    for path in directories:
        with _opened(path) as disk:
            images.append(metadata_of(disk))
    return policies_of(*images, journal=_read_journal(together))


def _opened(root: str) -> AbstractContextManager[Disk]:
    """The directory as a disk that nothing is written to."""
    return closing(OsDisk(root, read_only=True))


def _brokers(root: str) -> list[tuple[str, str]]:
    """(prefix of paths in findings, directory) of each data directory: `root`, or those in it, be it of several brokers
    or the log directories of one. Raises ValueError where there is none."""
    if not os.path.exists(root):
        raise ValueError(f"{root}: no such directory")
    if not os.path.isdir(root):
        raise ValueError(f"{root} is not a directory")
    directories: list[tuple[str, str]] = []
    while os.path.isdir(os.path.join(root, BROKER_DIR.format(len(directories) + 1))):
        name = BROKER_DIR.format(len(directories) + 1)
        directories.append((f"{name}/", os.path.join(root, name)))
    if directories:
        return directories
    if os.path.exists(os.path.join(root, META_FILE)):
        return [("", root)]
    directories = [(f"{name}/", os.path.join(root, name)) for name in sorted(os.listdir(root))]
    directories = [(prefix, path) for prefix, path in directories if os.path.exists(os.path.join(path, META_FILE))]
    if not directories:
        raise ValueError(f"{root} is not a data directory: it has no {META_FILE}, and no directory in it has")
    return directories


def _journal(disk: Disk, *, closed: bool) -> Iterator[Finding]:
    """The controller's journal, where there is one: whole JSON lines, and as many as were acknowledged.

    closed: its brokers were stopped cleanly.
    """
    both = disk.exists(JOURNAL) and disk.exists(MARK)
    copied = not closed and both and may_be_of_a_copy(DiskReader(disk), JOURNAL, MARK)
    lost = MetadataJournal(disk).lost(copied=copied)
    if lost is not None:
        yield finding_of(lost)
    for position, message, severity in wrong_in_journal(_read_journal(disk)):
        yield Finding(DATA_DIRECTORY, JOURNAL, message, position, severity=severity)


def _print(finding: Finding, prefix: str, *, as_json: bool) -> None:
    placed = replace(finding, path=prefix + finding.path)
    if as_json:
        write_out(json_text(asdict(placed)) + "\n")
    else:
        say(str(placed))
