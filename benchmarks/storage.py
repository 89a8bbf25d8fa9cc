"""What the partition log costs, median and 5th percentile: python benchmarks/storage.py [--partitions N --megabytes M].

The directory of many partitions is one partition's log linked under many names: opening looks at the end of each only.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / part) for part in ("protocol", "storage")]

from minibroker_protocol.records import Record, build_batch  # noqa: E402
from minibroker_storage.config import LogConfig  # noqa: E402
from minibroker_storage.directory import DataDirectory  # noqa: E402
from minibroker_storage.disk import Disk  # noqa: E402
from minibroker_storage.log import PartitionLog  # noqa: E402
from minibroker_storage.memory_disk import MemoryDisk  # noqa: E402
from minibroker_storage.origin import Origin  # noqa: E402
from minibroker_storage.os_disk import OsDisk  # noqa: E402
from minibroker_storage.producer_state import ProducerRules  # noqa: E402

NOW = 1_700_000_000_000
CONFIG = LogConfig(max_message_bytes=4 << 20)


def open_log(disk: Disk, partition: int = 0) -> PartitionLog:
    path = f"bench-{partition}"
    return PartitionLog.open(
        disk, path, topic="bench", partition=partition, config=CONFIG, rules=ProducerRules(), now_ms=NOW
    )


def batches(count: int, records: int, size: int, pid: int) -> list[bytearray]:
    rows = [Record(i, NOW, None, b"v" * size) for i in range(records)]
    epoch = 0 if pid >= 0 else -1
    return [
        build_batch(rows, producer_id=pid, producer_epoch=epoch, base_sequence=i * records if pid >= 0 else -1)
        for i in range(count)
    ]


def report(what: str, times: Iterable[float], unit: float = 1e6) -> None:
    ordered = sorted(times)
    print(f"{what:58} {ordered[len(ordered) // 2] * unit:10.1f} {ordered[len(ordered) // 20] * unit:10.1f}", flush=True)


def each(calls: Iterable[Callable[[], object]]) -> list[float]:
    times = []
    for call in calls:
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return times


def appends(name: str, disk: Disk) -> None:
    kinds = [
        ("1 record of 100 B", 20_000, 1, 100),
        ("100 records of 100 B", 1_000, 100, 100),
        ("1 MB", 100, 1000, 1000),
    ]
    for label, count, records, size in kinds:
        for pid in (-1, 7):
            log = open_log(disk)

            def append(data: bytearray, log: PartitionLog = log) -> None:
                log.append_as_leader(data, origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW, api_version=12)
                log.update_high_watermark(log.log_end_offset)

            data = batches(count, records, size, pid)
            times = each(lambda batch=batch: append(batch) for batch in data)
            report(f"append, {name}: {label}, {'idempotent' if pid >= 0 else 'plain'}, µs", times)
            log.abandon()
            log.delete()


def reads(disk: Disk) -> None:
    log = open_log(disk)
    count = 100_000
    for data in batches(count, 1, 100, -1):
        log.append_as_leader(data, origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW, api_version=12)
    end = log.log_end_offset
    report("read the newest batch, µs", each(lambda: log.read(end - 1, 1 << 20, bound=end) for _ in range(2000)))
    report("read 1 MB near the end, µs", each(lambda: log.read(end - 9000, 1 << 20, bound=end) for _ in range(200)))
    spots = [i * 7919 % count for i in range(2000)]
    report("read one batch anywhere, µs", each(lambda spot=spot: log.read(spot, 1, bound=end) for spot in spots))
    report("first offset by time, µs", each(lambda: log.offset_for_timestamp(NOW, end) for _ in range(200)))
    log.close()
    report("open after a clean end, 17 MB, ms", each(lambda: open_log(disk).abandon() for _ in range(5)), 1e3)
    log.delete()


def many(root: str, partitions: int, megabytes: int) -> None:
    disk = OsDisk(root)
    directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    log = open_log(disk)
    for data in batches(megabytes * 64, 16, 1000, 7):
        log.append_as_leader(data, origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW, api_version=12)
    log.close()
    directory.note([log])
    for i in range(1, partitions):
        os.mkdir(f"{root}/bench-{i}")
        for name in disk.list("bench-0"):
            os.link(f"{root}/bench-0/{name}", f"{root}/bench-{i}/{name}")
        for offsets in (directory.recovery_points, directory.high_watermarks):
            offsets["bench", i] = log.log_end_offset
    directory.close([log])
    directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    start = perf_counter()
    for topic, partition in directory.partitions():
        directory.open_log(topic, partition, config=CONFIG, rules=ProducerRules(), now_ms=NOW)
    print(f"open {partitions} partitions of {megabytes} MB after a clean end: {(perf_counter() - start) * 1e3:.0f} ms")
    directory.clean = False
    start = perf_counter()
    directory.open_log("bench", 0, config=CONFIG, rules=ProducerRules(), now_ms=NOW)
    print(f"open one of them after a crash: {(perf_counter() - start) * 1e3:.0f} ms")
    directory.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--dir", help="where the files go; default: the system's temporary directory")
    arguments = parser.parse_args()
    appends("memory", MemoryDisk())
    for name, work in (("disk", appends), ("", None)):
        root = tempfile.mkdtemp(dir=arguments.dir)
        try:
            if work is not None:
                work(name, OsDisk(root))
                reads(OsDisk(root))
            else:
                many(root, arguments.partitions, arguments.megabytes)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
