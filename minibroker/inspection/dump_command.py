"""`minibroker dump`: print what the files of a data directory hold."""

from __future__ import annotations

import argparse
import os
import sys

from minibroker.kernel.progress import ProgressLine
from minibroker.kernel.words import fail
from minibroker.output import json_text, say, write_out
from minibroker_protocol.errors import Malformed
from minibroker_storage.disk import StorageError
from minibroker_storage.dump import as_text, dump
from minibroker_storage.os_disk import OsDisk

OK, BROKEN = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=".log, .index, .timeindex, .txnindex, .snapshot, .checkpoint (metadata), checkpoints, partition.metadata, "
        "meta.properties",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--records", action="store_true", help="also print the records inside the batches of a log")
    parser.add_argument(
        "--topic",
        metavar="NAME",
        help="topic of the records, if it is not in the directory's name: those of __transaction_state and "
        "__consumer_offsets are decoded",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print every file: 0, or 1 when one is broken or cannot be read; the others are printed all the same."""
    progress = ProgressLine(sys.stderr)
    return max(_dump(path, arguments, progress) for path in arguments.files)


def _dump(named_path: str, arguments: argparse.Namespace, progress: ProgressLine) -> int:
    if os.path.isdir(named_path):
        return fail(
            f"{named_path} is a directory: name files in it, or `minibroker check` all", BROKEN, "minibroker dump"
        )
    folder, name = os.path.split(os.path.abspath(named_path))
    root, folder_name = os.path.split(folder)
    path = f"{folder_name}/{name}" if folder_name else name
    disk = OsDisk(root, read_only=True)
    code = OK
    try:
        total = disk.size(path)
        if not arguments.json and len(arguments.files) > 1:
            say(f"# {named_path}")
        for row in dump(disk, path, records=arguments.records, topic=arguments.topic):
            if row["kind"] == "error" or row.get("valid") is False:
                code = BROKEN
            progress.show(named_path, row.get("position", 0), total)
            if arguments.json:
                write_out(json_text({"file": named_path, **row}) + "\n")
            else:
                say(as_text(row))
    except (Malformed, StorageError) as error:
        progress.clear()
        text = str(error.strerror if isinstance(error, StorageError) else error)
        text = text.removeprefix(path) if text.startswith(path) else f": {text}"
        code = fail(f"{named_path}{text}", BROKEN, "minibroker dump")
    finally:
        progress.clear()
        disk.close()
    return code
