"""Where a request's time goes: ``python benchmarks/stages.py [produce|small|fetch|commit …]`` (needs py-spy, Linux).

Each path is driven at full speed while py-spy samples the broker. Printed is the broker's CPU time per request, shared
out among stages by the innermost frame that is the broker's own, with system calls apart. A flame graph of each path
goes to benchmarks/results/profile-PATH.svg.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in ("protocol", "storage", "tests/support/real_brokers")]

from growth import TOPIC, Producer, connected, frame_of, fresh_topic, measure, one_record, produce  # noqa: E402
from scenarios import BULK_BATCH_RECORDS, RECORD_BYTES, now_ms  # noqa: E402
from targets import MinibrokerTarget, end_on_sigterm  # noqa: E402
from toolchain import Unavailable, tool  # noqa: E402
from wire import Connection, fetch_frame, produce_frame  # noqa: E402

SECONDS = 4
RATE = 200
SAMPLES = {"produce": 200, "small": 4000, "fetch": 1000, "commit": 1000}
IDLE = re.compile(r"epoll_p?wait|_queue_SimpleQueue_get|PyThread_acquire_lock|\bselect\b")
SYSTEM_CALLS = {
    "send": re.compile(r"^(write|writev|send|sendmsg) \("),
    "receive": re.compile(r"^(read|readv|recv|recvmsg) \("),
    "log file": re.compile(r"^(pwrite|pwrite64|pwritev|pread|pread64) \("),
}
STAGES = {
    "records and headers of batches": "minibroker_protocol/records/",
    "codec of requests and responses": "minibroker_protocol/|<(decoder|encoder) of",
    "log": "minibroker_storage/",
    "coordinators": "minibroker/(coordinators|coordinator_runtime)/",
    "partition and cluster": "minibroker/cluster/",
    "dispatch and handlers": "minibroker/(requests|handlers)/",
    "connection": "minibroker/server/",
}


def bulk(connection: Connection) -> Callable[[], None]:
    """One batch of a megabyte."""
    frame = produce_frame(TOPIC, [RECORD_BYTES] * BULK_BATCH_RECORDS, now_ms())
    return lambda: produce(connection, frame)


def small(connection: Connection) -> Callable[[], None]:
    """One record."""
    frame = frame_of(one_record())
    return lambda: produce(connection, frame)


def fetch(connection: Connection) -> Callable[[], None]:
    """A mebibyte."""
    frame = produce_frame(TOPIC, [RECORD_BYTES] * BULK_BATCH_RECORDS, now_ms())
    for _ in range(4):
        produce(connection, frame)
    request = fetch_frame(TOPIC, 1, 1 << 20)

    def ask() -> None:
        connection.send(request)
        connection.receive(True)

    return ask


def commit(connection: Connection) -> Callable[[], None]:
    """AddPartitionsToTxn, Produce of one record, EndTxn."""
    producer = Producer(connection, "profiled")

    def transact() -> None:
        producer.begin()
        producer.commit()

    return transact


PATHS = {"produce": bulk, "small": small, "fetch": fetch, "commit": commit}


def stage_of(stack: list[str]) -> str | None:
    """The stage of one sample, outermost frame first; None when the thread waited."""
    if any(IDLE.search(frame) for frame in stack[-4:]):
        return None
    for name, pattern in SYSTEM_CALLS.items():
        if pattern.match(stack[-1]):
            return f"system: {name}"
    for frame in reversed(stack):
        for name, text in STAGES.items():
            if re.search(text, frame):
                return name
    return "event loop"


def shares(raw: str) -> dict[str, float]:
    """Share of the busy samples by stage, from py-spy's raw format: frames;of;a;stack count."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        stage = stage_of(stack.split(";"))
        if stage is not None:
            counts[stage] += int(count)
    return {stage: count / counts.total() for stage, count in counts.most_common()}


def sample(target: MinibrokerTarget, request: Callable[[], None], arguments: list[str]) -> None:
    """Run py-spy while requests are made."""
    command = [tool("py-spy"), "record", "--native", "-p", str(target.pid), "-d", str(SECONDS), "-r", str(RATE)]
    spy = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while spy.poll() is None:
        request()


def profile(name: str, results: Path) -> None:
    target = MinibrokerTarget()
    try:
        target.start()
        with ExitStack() as stack, TemporaryDirectory() as scratch:
            connection = connected(target, stack)
            fresh_topic(connection)
            request = PATHS[name](connection)
            _, cost = measure(target, request, SAMPLES[name])  # before py-spy, which stops the broker for each sample
            raw = Path(scratch) / "samples"
            sample(target, request, ["-f", "raw", "-o", str(raw)])
            print(f"{name}: {PATHS[name].__doc__}  {cost:.0f} µs")
            for stage, share in shares(raw.read_text(encoding="utf-8")).items():
                print(f"  {share * cost:8.1f}  {share:5.1%}  {stage}")
            sample(target, request, ["-f", "flamegraph", "-o", str(results / f"profile-{name}.svg")])
    finally:
        target.kill()
        target.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="*", help="default: all", metavar="|".join(PATHS))
    options = parser.parse_args()
    end_on_sigterm()
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    try:
        tool("py-spy")
    except Unavailable as missing:
        print(f"SKIPPED: {missing}", file=sys.stderr)
        return 0
    for name in options.path or PATHS:
        profile(name, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
