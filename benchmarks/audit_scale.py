"""How the audit grows: makes data directories of several shapes and sizes and times the audit of each on Spark.

    python benchmarks/audit_scale.py make DIR --gb 1 --record-bytes 100 [--producers 200] [--hot] [--transactions 100]
    python benchmarks/audit_scale.py run DIR... --master local[2] --depth headers [--rounds 3]
    python benchmarks/audit_scale.py run DIR... --workers 4      # a standalone cluster of four worker processes

Prints one line of JSON a run: wall seconds, MB/s, and the CPU seconds of the Python workers and driver.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 1 << 28
BATCH_BYTES = 16_384
MARKER_BYTES = 78
PARTITIONS = 8
TIMESTAMP = 1_795_000_000_000


def make(
    path: Path,
    gb: float,
    record_bytes: int,
    producers: int,
    hot: bool,
    transactions: int,
    uneven: bool,
    partitions: int = PARTITIONS,
    batch_bytes: int = BATCH_BYTES,
) -> None:
    """A directory of idempotent producers' batches without a fault; with `hot` one of them has half of the data, with
    `transactions` each commits after so many batches on a partition, with `uneven` records have 0.4 to 1.6 times their
    size, and keys of 1 to 20 bytes and a header."""
    from minibroker_protocol.records import Record, build_batch

    count = 10 if producers > 10_000 else max(1, batch_bytes // (record_bytes + 12))
    payload = os.urandom(record_bytes - 10)
    records = [Record(i, TIMESTAMP, b"k%08d" % i, payload) for i in range(count)]
    if uneven:
        rng = random.Random(7)
        for record in records:
            record.key, record.headers = rng.randbytes(rng.randint(1, 20)), [("trace", rng.randbytes(16))]
            record.value = rng.randbytes(rng.randint(record_bytes * 2 // 5, record_bytes * 8 // 5))
    who = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    template = bytearray(build_batch(records, transactional=bool(transactions), **who))
    path.mkdir(parents=True, exist_ok=True)
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (path / "cleaner-offset-checkpoint").touch()
    share = int(gb * (1 << 30)) // partitions
    for partition in range(partitions):
        _partition(path / f"load-{partition}", template, count, share, producers, hot, transactions)


def _partition(
    path: Path, template: bytearray, count: int, share: int, producers: int, hot: bool, transactions: int
) -> None:
    from crc32c import crc32c

    from minibroker_protocol.records import end_txn_marker

    path.mkdir(exist_ok=True)
    sent: dict[int, int] = {}
    offset = number = written = 0
    sequences: dict[int, int] = {}
    while written < share:
        stem, base, size = path / f"{offset:020d}", offset, 0
        index: list[bytes] = []
        since = 0
        with open(stem.with_suffix(".log"), "wb", buffering=1 << 22) as log:
            while size + len(template) <= SEGMENT_BYTES and written < share:
                producer = 7 if hot and number % 2 == 0 else number % producers + 10
                sequence = sequences.get(producer, 0)
                sequences[producer] = (sequence + count) & 0x7FFFFFFF
                struct.pack_into(">q", template, 0, offset)
                struct.pack_into(">qhi", template, 43, producer, 0, sequence)
                struct.pack_into(">I", template, 17, crc32c(memoryview(template)[21:]))
                if since > 4096:
                    index.append(struct.pack(">ii", offset + count - 1 - base, size))
                    since = 0
                log.write(template)
                offset += count
                number += 1
                for_all = len(template)
                size, written, since = size + for_all, written + for_all, since + for_all
                sent[producer] = sent.get(producer, 0) + 1
                if transactions and not sent[producer] % transactions:
                    who = {"producer_id": producer, "producer_epoch": 0, "base_offset": offset}
                    log.write(end_txn_marker(commit=True, coordinator_epoch=0, timestamp_ms=TIMESTAMP, **who))
                    offset, size, since = offset + 1, size + MARKER_BYTES, since + MARKER_BYTES
        stem.with_suffix(".index").write_bytes(b"".join(index))


def cpu_seconds() -> float:
    """CPU time of this process and all its descendants, Spark's JVM and Python workers included (Linux)."""
    return family_figures()[0]


def family_figures() -> tuple[float, int]:
    """(CPU seconds, largest memory in MB of a Python worker, mapped files left out) of this process and descendants."""
    ticks: dict[int, float] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    memory = 0
    for process in family - {os.getpid()}:
        try:
            status = (Path("/proc") / str(process) / "status").read_text()
        except OSError:
            continue
        if "python" in status.split("\n", 1)[0] and "RssAnon:" in status:
            memory = max(memory, int(status.split("RssAnon:")[1].split()[0]) // 1024)
    return sum(ticks.get(process, 0.0) for process in family), memory


class Tasks:
    """Of a session with `settings`: how long its tasks took (Linux: and how large a Python worker was meanwhile)."""

    def __init__(self, directory: str) -> None:
        self.settings = [
            "spark.eventLog.enabled=true",
            f"spark.eventLog.dir=file://{directory}",
            "spark.eventLog.compress=false",
            "spark.eventLog.rolling.enabled=false",
        ]
        self.largest_mb = 0
        self._directory = Path(directory)
        self._seen = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._end.wait(0.5):
            self.largest_mb = max(self.largest_mb, family_figures()[1])

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def since_last(self) -> dict[str, list[float]]:
        """Stage -> [tasks, seconds of the longest, of all], of the stages since the last call with the longest task."""
        time.sleep(2)  # Spark writes the events in a thread of its own
        lines = next(self._directory.iterdir()).read_text().splitlines()
        fresh, self._seen = lines[self._seen :], len(lines)
        self.largest_mb, stages = 0, dict[int, list[float]]()
        for event in map(json.loads, (line for line in fresh if '"SparkListenerTaskEnd"' in line)):
            stage = stages.setdefault(event["Stage ID"], [0, 0.0, 0.0])
            took = (event["Task Info"]["Finish Time"] - event["Task Info"]["Launch Time"]) / 1000
            stage[:] = stage[0] + 1, max(stage[1], took), round(stage[2] + took, 3)
        longest = sorted(stages.items(), key=lambda one: -one[1][1])[:6]
        return {str(number): figures for number, figures in sorted(longest)}


def forget(path: Path) -> None:
    """Drops the files below a directory from the page cache."""
    for file in path.rglob("*.log"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_on_workers(workers: int, *arguments: Any) -> None:
    """`run` on a standalone cluster that is started for it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support/real_brokers"))
    from standalone_spark import standalone_spark

    from minibroker_pipeline import java

    java.prepare()
    with tempfile.TemporaryDirectory() as directory, standalone_spark(Path(directory), workers) as url:
        paths, _, *others = arguments
        run(paths, url, *others)


def run(paths: list[Path], master: str, depth: str, rounds: int, batches: bool, cold: bool) -> None:
    from minibroker_pipeline.engine import SparkAudit
    from minibroker_pipeline.files import Files
    from minibroker_pipeline.listing import list_directory
    from minibroker_pipeline.plan import Plan
    from minibroker_pipeline.session import open_session

    events = tempfile.TemporaryDirectory()
    tasks = Tasks(events.name)
    settings = ["spark.driver.memory=2g", *tasks.settings]
    if not master.startswith("local"):
        settings += ["spark.executor.memory=768m", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    spark, java = open_session(master, settings)
    for number in range(rounds):
        for path in paths:
            if cold:
                forget(path)
            files = Files(str(path))
            listed = list_directory(files)
            out = f"{path}-tables" if batches else None
            plan = Plan(files, tuple(listed.facts), tuple(listed.parts), str(path), depth=depth, out=out)
            started, used = time.monotonic(), cpu_seconds()
            figures, findings, _ = SparkAudit(spark, plan).run()
            seconds, cpu = time.monotonic() - started, cpu_seconds() - used
            row: dict[str, Any] = {
                "data": path.name,
                "master": master,
                "depth": depth,
                "tables": batches,
                "cold": cold,
                "round": number,
                "gb": round(plan.bytes / (1 << 30), 2),
                "batches": figures.batches,
                "records": figures.records,
                "runs": figures.runs,
                "findings": len(findings),
                "seconds": round(seconds, 2),
                "cpu_seconds": round(cpu, 2),
                "mb_per_s": round(plan.bytes / 1e6 / seconds),
                "mb_per_cpu_s": round(plan.bytes / 1e6 / cpu),
                "load": round(os.getloadavg()[0], 1),
                "worker_mb": tasks.largest_mb,
                "driver_max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "java": java,
            }
            row["stages"] = tasks.since_last()
            print(json.dumps(row), flush=True)
    spark.stop()
    tasks.stop()
    events.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("path", type=Path)
    making.add_argument("--gb", type=float, default=1.0)
    making.add_argument("--record-bytes", type=int, default=100)
    making.add_argument("--producers", type=int, default=200)
    making.add_argument("--partitions", type=int, default=PARTITIONS)
    making.add_argument("--batch-bytes", type=int, default=BATCH_BYTES)
    making.add_argument("--hot", action="store_true")
    making.add_argument("--uneven", action="store_true", help="records of many sizes, with a header")
    making.add_argument(
        "--transactions", type=int, default=0, metavar="BATCHES", help="commit after so many of a producer"
    )
    running = commands.add_parser("run")
    running.add_argument("paths", type=Path, nargs="+")
    running.add_argument("--master", default="local[2]")
    running.add_argument("--workers", type=int, help="a standalone cluster of so many worker processes")
    running.add_argument("--depth", default="headers")
    running.add_argument("--rounds", type=int, default=3)
    running.add_argument("--cold", action="store_true", help="drop the files from the page cache first")
    running.add_argument("--tables", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(
            arguments.path,
            arguments.gb,
            arguments.record_bytes,
            arguments.producers,
            arguments.hot,
            arguments.transactions,
            arguments.uneven,
            arguments.partitions,
            arguments.batch_bytes,
        )
    else:
        common = arguments.depth, arguments.rounds, arguments.tables, arguments.cold
        if arguments.workers:
            run_on_workers(arguments.workers, arguments.paths, "", *common)
        else:
            run(arguments.paths, arguments.master, *common)


if __name__ == "__main__":
    main()
