"""When a data directory is bound to its layout of the transaction state message, and what its identity says then."""

from __future__ import annotations

import pytest

from minibroker_protocol.records import Record, build_batch, end_txn_marker
from minibroker_storage.directory import LAYOUT_KEY, META_FILE, DataDirectory, WrongDirectory, properties_of
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.transaction_layout import is_bound

MARKER = end_txn_marker(producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp_ms=1)


def record(version: int | None) -> bytearray:
    """A batch of a record whose value has this version; of a tombstone for None."""
    value = None if version is None else version.to_bytes(2) + b"rest"
    return build_batch([Record(0, 1, b"key", value)])


@pytest.mark.parametrize(
    ("folder", "name", "log", "bound"),
    [
        ("__transaction_state-0", "0.log", [record(0), record(None), MARKER], False),
        ("__transaction_state-0", "0.log", [record(0), record(1)], True),
        ("__transaction_state-7", "0.log", [record(2)], True),
        ("__transaction_state-0", "0.log.swap", [record(1)], True),
        ("__transaction_state-0", "0.index", [record(1)], False),
        ("__consumer_offsets-0", "0.log", [record(1)], False),
        ("__transaction_state-0", "0.log", [record(0), record(1)[:-1]], False),  # a crash cut the batch
        ("__transaction_state-0", "0.log", [record(1), b"torn"], True),
        ("__transaction_state-0", "0.log", [b"\0" * 100], False),
    ],
)
def test_a_record_of_version_1_binds(folder: str, name: str, log: list[bytes], bound: bool) -> None:
    disk = MemoryDisk()
    disk.make_dir(folder)
    disk.write_atomic(f"{folder}/{name}", b"".join(log))
    assert is_bound(disk) is bound


def test_a_directory_that_is_not_bound_is_noted_with_the_layout_it_is_opened_with() -> None:
    disk = MemoryDisk()

    def opened(layout: str) -> str | None:
        directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22, transaction_state_layout=layout)
        directory.release()
        return properties_of(disk.read_bytes(META_FILE)).get(LAYOUT_KEY)

    assert [opened(layout) for layout in ("kip-360", "kafka", "kip-360")] == ["kip-360", "kafka", "kip-360"]
    disk.make_dir("__transaction_state-0")
    disk.write_atomic("__transaction_state-0/0.log", record(1))
    assert opened("kip-360") == "kip-360"
    with pytest.raises(WrongDirectory, match=r"'kip-360'.*'kafka'"):
        opened("kafka")
