"""What one request costs as a broker fills up: ``python benchmarks/growth.py [--curve NAME] [--label NAME]``.

Each curve starts minibroker afresh, fills it step by step, and at every step measures the same request: latency (p50)
and CPU time of the broker. Flat is the aim; the last columns are shares of the curve's first step. A page and a plot
(SVG) go to benchmarks/results/. A machine with other work on it moves the latencies, much less the CPU times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in (".", "protocol", "storage", "tests/support/real_brokers")]

from plots import line_plot  # noqa: E402
from targets import MinibrokerTarget, commit, cpu_seconds, end_on_sigterm, machine  # noqa: E402
from wire import FETCH_VERSION, PRODUCE_VERSION, Connection, create_topic, encode_frame, fetch_frame  # noqa: E402

from minibroker.kernel.progress import ProgressLine  # noqa: E402
from minibroker_protocol.messages import (  # noqa: E402
    AddPartitionsToTxnRequest,
    ConsumerGroupHeartbeatRequest,
    EndTxnRequest,
    FetchResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)
from minibroker_protocol.records import Record, build_batch  # noqa: E402

SAMPLES = 2000
BLOCKS = 10
WARM_UP = 300
TOPIC = "growth"
IN_FLIGHT = 50

Step = tuple[int, Callable[[], None]]
"""How full the broker is, and the request to measure."""
Curve = Callable[[MinibrokerTarget, ExitStack], Iterator[Step]]


class Point(NamedTuple):
    size: int
    p50_us: float
    cpu_us: float


def frame_of(
    batch: bytearray, topic: str = TOPIC, partition: int = 0, transactional_id: str | None = None
) -> bytearray:
    data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(batch))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=topics)
    return encode_frame(request, PRODUCE_VERSION)


def one_record(producer_id: int = -1, sequence: int = -1, *, transactional: bool = False) -> bytearray:
    records = [Record(0, time.time_ns() // 1_000_000, None, b"x" * 100, [])]
    epoch = -1 if producer_id < 0 else 0
    return build_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


def produced(connection: Connection) -> None:
    answer = ProduceResponse.decode(connection.receive(True), PRODUCE_VERSION).responses[0].partition_responses[0]
    if answer.error_code:
        raise RuntimeError(f"Produce: error {answer.error_code} {answer.error_message}")


def produce(connection: Connection, frame: bytearray) -> None:
    connection.send(frame)
    produced(connection)


def patiently(action: Callable[[], int]) -> None:
    """Again until the error code is 0: what was just made may not have its leader at work yet."""
    deadline = time.monotonic() + 30
    while code := action():
        if time.monotonic() > deadline:
            raise RuntimeError(f"error {code}")
        time.sleep(0.02)


def fresh_topic(connection: Connection, name: str = TOPIC, partitions: int = 1) -> None:
    create_topic(connection, name, partitions)

    def first() -> int:
        connection.send(frame_of(one_record(), name, partitions - 1))
        response = ProduceResponse.decode(connection.receive(True), PRODUCE_VERSION)
        return response.responses[0].partition_responses[0].error_code

    patiently(first)


def connected(target: MinibrokerTarget, stack: ExitStack) -> Connection:
    connection = Connection(target.bootstrap)
    stack.callback(connection.close)
    return connection


def partitions(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """Produce to one partition beside others that have been written too."""
    connection = connected(target, stack)
    fresh_topic(connection)
    frame, there = frame_of(one_record()), 1
    yield there, lambda: produce(connection, frame)
    for size in (10, 100, 1000, 10_000):
        name = f"others-{size}"
        fresh_topic(connection, name, size - there)
        for index in range(size - there):
            produce(connection, frame_of(one_record(), name, index))
        there = size
        yield there, lambda: produce(connection, frame)


def metadata(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """Metadata of one topic beside partitions of others."""
    connection = connected(target, stack)
    fresh_topic(connection)
    request = encode_frame(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)]), 9)

    def ask() -> None:
        connection.send(request)
        connection.receive(True)

    there = 1
    yield there, ask
    for size in (10, 100, 1000, 10_000):
        fresh_topic(connection, f"others-{size}", size - there)
        there = size
        yield there, ask


def producer_ids(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """Idempotent produce to a partition that knows many producers."""
    connection = connected(target, stack)
    fresh_topic(connection)
    sequence, there = 0, 0

    def go_on() -> None:
        nonlocal sequence
        produce(connection, frame_of(one_record(1_000_000, sequence)))
        sequence += 1

    for size in (1, 10, 100, 1000, 10_000, 100_000):
        waiting = 0
        for number in range(there, size):
            connection.send(frame_of(one_record(2_000_000 + number, 0)))
            waiting += 1
            if waiting == IN_FLIGHT:
                produced(connection)
                waiting -= 1
        for _ in range(waiting):
            produced(connection)
        there = size
        yield size, go_on


class Producer:
    """A transactional producer on the wire."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.sequence = 0
        self.id = -1
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000)

        def init() -> int:
            # Makes the topic of the coordinator's state.
            connection.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
            answer = connection.call(request, 4)
            self.id = answer.producer_id
            return int(answer.error_code)

        patiently(init)

    def begin(self) -> None:
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
        patiently(
            lambda: (
                self.connection.call(request, 3)
                .results_by_topic_v3_and_below[0]
                .results_by_partition[0]
                .partition_error_code
            )
        )
        batch = one_record(self.id, self.sequence, transactional=True)
        self.sequence += 1
        produce(self.connection, frame_of(batch, transactional_id=self.name))

    def commit(self) -> None:
        request = EndTxnRequest(transactional_id=self.name, producer_id=self.id, producer_epoch=0, committed=True)
        patiently(lambda: self.connection.call(request, 3).error_code)


def open_transactions(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """A transaction of one record (begin, produce, commit) beside others that stay open in the same partition."""
    connection = connected(target, stack)
    fresh_topic(connection)
    measured, there = Producer(connection, "measured"), 0

    def transact() -> None:
        measured.begin()
        measured.commit()

    for size in (1, 10, 100, 1000, 10_000):
        for number in range(there, size):
            Producer(connection, f"open-{number}").begin()
        there = size
        yield size, transact


def committed_reads(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """A fetch of the first batch of a partition that grows."""
    connection = connected(target, stack)
    fresh_topic(connection)
    fetch, frame, there = fetch_frame(TOPIC, 0, 1), frame_of(one_record()), 1

    def read() -> None:
        connection.send(fetch)
        FetchResponse.decode(connection.receive(True), FETCH_VERSION)

    for size in (1, 10, 100, 1000, 10_000, 100_000):
        waiting = 0
        for _ in range(there, size):
            connection.send(frame)
            waiting += 1
            if waiting == IN_FLIGHT:
                produced(connection)
                waiting -= 1
        for _ in range(waiting):
            produced(connection)
        there = size
        yield size, read


def connections(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """Produce on one connection beside others that are idle."""
    connection = connected(target, stack)
    fresh_topic(connection)
    frame, there = frame_of(one_record()), 1
    for size in (1, 10, 100, 1000, 5000):
        for _ in range(there, size):
            connected(target, stack)
        there = size
        time.sleep(0.5)
        yield size, lambda: produce(connection, frame)


def group_members(target: MinibrokerTarget, stack: ExitStack) -> Iterator[Step]:
    """Heartbeat of a settled member of a consumer group (KIP-848) with many."""
    connection = connected(target, stack)
    fresh_topic(connection, partitions=100)
    epochs: dict[str, int] = {}

    def beat(member: str, *, joining: bool = False) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id="growth",
            member_id=member,
            member_epoch=0 if joining else epochs[member],
            rebalance_timeout_ms=600_000 if joining else -1,
            subscribed_topic_names=[TOPIC] if joining else None,
            topic_partitions=[] if joining else None,
        )

        def ask() -> int:
            if joining:
                connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["growth"]), 4)
            answer = connection.call(request, 0)
            if not answer.error_code:
                epochs[member] = answer.member_epoch
            return int(answer.error_code)

        patiently(ask)

    for size in (1, 10, 100, 1000, 2000):
        for number in range(len(epochs), size):
            beat(f"member-{number:04}", joining=True)
        for _ in range(3):
            for member in list(epochs):
                beat(member)
        yield size, lambda: beat("member-0000")


CURVES: dict[str, Curve] = {
    "partitions": partitions,
    "metadata": metadata,
    "producer-ids": producer_ids,
    "open-transactions": open_transactions,
    "batches": committed_reads,
    "connections": connections,
    "group-members": group_members,
}


def measure(target: MinibrokerTarget, request: Callable[[], None], samples: int) -> tuple[float, float]:
    """(p50 latency, broker CPU) of a request, both in µs; the CPU time is the median of blocks of requests."""
    for _ in range(WARM_UP):
        request()
    times: list[float] = []
    costs: list[float] = []
    for _ in range(BLOCKS):
        before = cpu_seconds(target.pid)
        for _ in range(samples // BLOCKS):
            begin = time.perf_counter()
            request()
            times.append(time.perf_counter() - begin)
        after = cpu_seconds(target.pid)
        if before is not None and after is not None:
            costs.append((after - before) / (samples // BLOCKS))
    return 1e6 * median(times), 1e6 * median(costs) if costs else float("nan")


def run_curve(name: str, curve: Curve, largest: int, samples: int, progress: ProgressLine) -> list[Point]:
    target = MinibrokerTarget()
    points: list[Point] = []
    try:
        target.start()
        with ExitStack() as stack:
            for size, request in curve(target, stack):
                point = Point(size, *measure(target, request, samples))
                points.append(point)
                progress.say(f"{name} {point.size:7}  p50 {point.p50_us:8.1f} µs  CPU {point.cpu_us:8.1f} µs")
                if size >= largest:
                    break
    finally:
        target.kill()  # an orderly end writes down thousands of logs, which is not what is measured
        target.close()
    return points


def report(curves: dict[str, list[Point]]) -> str:
    lines = ["# What a request costs as a broker fills up", "", f"{machine()}. Commit {commit()}.", ""]
    for name, points in curves.items():
        what = (CURVES[name].__doc__ or "").strip()
        lines += [f"## {name}", "", what, "", "| size | p50 µs | CPU µs | p50, share | CPU, share |", "|---:" * 5 + "|"]
        first = points[0]
        for point in points:
            shares = f"{point.p50_us / first.p50_us:.2f} | {point.cpu_us / first.cpu_us:.2f}"
            lines.append(f"| {point.size:,} | {point.p50_us:.1f} | {point.cpu_us:.1f} | {shares} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve", action="append", choices=list(CURVES), help="default: all")
    parser.add_argument("--largest", type=int, default=1 << 31, help="go no further than the step of this size")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--label", default="growth", help="name of the files under results/")
    options = parser.parse_args()
    end_on_sigterm()
    progress = ProgressLine(sys.stderr, at_once=True)
    curves: dict[str, list[Point]] = {}
    for name in options.curve or CURVES:
        progress.say(name)
        curves[name] = run_curve(name, CURVES[name], options.largest, options.samples, progress)
    progress.clear()
    page = report(curves)
    print(page)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / f"{options.label}.md").write_text(page, encoding="utf-8")
    shares = {
        name: [(point.size, point.cpu_us / points[0].cpu_us) for point in points] for name, points in curves.items()
    }
    plot = line_plot("Broker CPU per request, share of the first step", shares)
    (results / f"{options.label}.svg").write_text(plot, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
