"""Whether a data directory is already fixed to one layout of the transaction state message.

Two layouts, Kafka's and KIP-360's, both have version 1, so a directory keeps one layout from the first record of that
version on. Version 0 is the same in both.
"""

from __future__ import annotations

from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import decode_records
from minibroker_storage.disk import Disk, join
from minibroker_storage.dump_decoders import TRANSACTIONS
from minibroker_storage.log_scan import scan

_FIRST_WITH_LAYOUT = 1


def is_bound(disk: Disk) -> bool:
    """Whether a log of ``__transaction_state`` has a record of version 1. Reads all of them, each up to a batch that a
    crash left incomplete."""
    folders = [name for name in disk.list() if name.rpartition("-")[0] == TRANSACTIONS and disk.is_dir(name)]
    return any(
        _has_layout(disk, join(folder, name))
        for folder in folders
        for name in disk.list(folder)
        if name.endswith((".log", ".log.swap"))
    )


def _has_layout(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    try:
        for _, header, data in scan(file, file.size):
            if not header.is_control and any(
                record.value is not None and int.from_bytes(record.value[:2], "big") >= _FIRST_WITH_LAYOUT
                for record in decode_records(data, 0, header)
            ):
                return True
    except Malformed:
        pass  # the check at start truncates the log here
    finally:
        file.close()
    return False
