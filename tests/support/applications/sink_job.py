"""A driver of the exactly-once sink that works as Spark does, without Spark, and stops or dies at a named step.

    python sink_job.py BOOTSTRAP TOPIC SINK CHECKPOINT BATCHES [BATCH STEP KIND [DEFECT]]

It notes each batch in CHECKPOINT once it is committed, and replays one that was not noted, with its rows in another
order. Each batch has two tasks, each a process. At STEP of BATCH:

    driver   this process is killed (SIGKILL)
    task     the task is killed
    request  the connection breaks before the request is sent
    answer   the connection breaks before the answer is read
    wait     prints `at STEP` and goes on when a line comes in

DEFECT, one of DEFECTS, breaks the protocol at one place.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from minibroker.client.connection import Connection, ConnectionClosed
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker_pipeline import sink_task
from minibroker_pipeline.sink import MicroBatch, Sink, SinkDriver, SinkRefused
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response

PARTITIONS: Final = 3
ROWS: Final = 40
"""Rows of a batch in each partition."""
QUERY: Final = "query"
IN_TASK: Final = ("ListOffsets 1", "Produce 1", "Produce 2", "Produce 3")
REQUESTS: Final = ("InitProducerId 1", "OffsetFetch 1", *IN_TASK, "TxnOffsetCommit 1", "EndTxn 1")
"""Counted in their process."""
STEPS: Final = ("begin", *REQUESTS, "reports", "committed", "noted")
CASES: Final = (
    *((step, kind) for step in STEPS for kind in ("driver", "wait")),
    *((step, kind) for step in REQUESTS for kind in ("request", "answer")),
    *((step, "task") for step in IN_TASK),
)
_INPUT: Final = os.dup(0)
"""A forked task has no standard input."""


class Steps:
    """Does what was asked for, once, at its step."""

    def __init__(self, step: str, kind: str, batch: int) -> None:
        self.step, self.kind, self.batch = step, kind, batch
        self.current = -1
        self._seen: Counter[str] = Counter()
        self._ask = Connection.ask
        steps = self

        def ask(connection: Connection, request: Request, *rest: Any) -> Response:
            name = type(request).__name__.removesuffix("Request")
            steps._seen[name] += 1
            place = f"{name} {steps._seen[name]}"
            if steps.is_now(place) and steps.kind == "answer":
                steps.step = ""
                steps._ask(connection, request, *rest)  # the broker serves it; who asked never hears
                connection.shut()
                raise ConnectionClosed(f"{name}: no answer")
            steps.reach(place, connection)
            return steps._ask(connection, request, *rest)

        Connection.ask = ask  # type: ignore[method-assign]

    def new_batch(self, number: int) -> None:
        self.current = number
        self._seen.clear()

    def is_now(self, place: str) -> bool:
        return self.current == self.batch and place == self.step

    def reach(self, place: str, connection: Connection | None = None) -> None:
        if not self.is_now(place):
            return
        if self.kind in ("driver", "task"):
            parent = multiprocessing.parent_process()
            if self.kind == "driver" and parent is not None and parent.pid:
                os.kill(parent.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "request" and connection is not None:
            connection.shut()
        if self.kind == "wait":
            print(f"at {place}", flush=True)
            os.read(_INPUT, 1)
        self.step = ""


def _fence_nothing(note: Path) -> None:
    """The producer id of the first attempt is used by all."""
    file, original = note.with_suffix(".ids"), TransactionalClient.init_producer_id

    def init(client: TransactionalClient, *arguments: Any, **named: Any) -> Producer:
        if not file.exists():
            file.write_text(json.dumps(original(client, *arguments, **named)))
        return Producer(*json.loads(file.read_text()))

    TransactionalClient.init_producer_id = init  # type: ignore[method-assign]


def _mark_afterwards() -> None:
    """The marker is a commit of its own, after the transaction."""
    end, late = TransactionalClient.end, []

    def end_and_mark(client: TransactionalClient, producer: Producer, **named: Any) -> None:
        end(client, producer, **named)
        for group, topic, partition, offset, metadata in late:
            kind = m.OffsetCommitRequest
            entry = kind.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
            request = kind(
                group_id=group, member_id="", topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=[entry])]
            )
            client.ask(client.coordinator(group, 0)[1], request, m.OffsetCommitResponse, 8)

    TransactionalClient.end = end_and_mark  # type: ignore[method-assign]
    TransactionalClient.commit_offset = lambda client, producer, *arguments: late.append(arguments)  # type: ignore[method-assign,assignment]


def _no_transaction(number: int = 0) -> None:
    sink_task.TRANSACTIONAL_MASK = number  # type: ignore[misc]


def _compare_nothing() -> None:
    sink_task.is_new = lambda *_: True


def _commit_what_there_is() -> None:
    SinkDriver.abort = lambda driver, reports: driver.commit(list(reports), reports[0].batch.number)  # type: ignore[method-assign,index,assignment]


DEFECTS: Final[dict[str, Callable[[Path], None]]] = {
    "fence nothing": _fence_nothing,
    "mark afterwards": lambda _: _mark_afterwards(),
    "no transaction": lambda _: _no_transaction(),
    "compare nothing": lambda _: _compare_nothing(),
    "commit what there is": lambda _: _commit_what_there_is(),
}


def rows(number: int, partition: int, order: random.Random) -> Any:
    values = [f"{number}.{partition}.{row}" for row in range(ROWS)]
    order.shuffle(values)
    return pa.RecordBatch.from_pydict({"partition": pa.array([partition] * ROWS, pa.int32()), "value": values})


def task(out: Any, sink: Sink, attempt: Any, number: int, partitions: list[int]) -> None:
    order = random.Random(os.getpid())
    batches = [rows(number, partition, order) for partition in partitions]
    try:
        out.send(sink_task.write_task(sink, attempt, MicroBatch(QUERY, number), 0, os.getpid() % (ROWS // 2), batches))
    except SinkRefused as error:
        out.send(str(error))


def run_batch(steps: Steps, sink: Sink, number: int) -> None:
    driver = SinkDriver(sink)
    steps.reach("begin")
    attempt = driver.begin()
    reports: list[Any] = []
    fork = multiprocessing.get_context("fork")
    for partitions in ([0, 2], [1]):
        receiver, sender = fork.Pipe(duplex=False)
        # Steps in tasks are the first one's.
        worker = fork.Process(target=task, args=(sender, sink, attempt, number, partitions))
        worker.start()
        sender.close()
        try:
            reports.append(receiver.recv())
        except EOFError:
            reports.append(None)
        worker.join()
        if steps.step in IN_TASK and steps.current == steps.batch:
            steps.step = ""
    failed = [report for report in reports if report is None or isinstance(report, str)]
    if failed:
        with contextlib.suppress(SinkRefused):
            driver.abort([report for report in reports if report is not None and not isinstance(report, str)])
        sys.exit(f"batch {number}: {failed[0] or 'a task died'}")
    steps.reach("reports")
    driver.commit(reports, number)
    steps.reach("committed")


def main() -> None:
    bootstrap, topic, name, checkpoint, batches, *armed = sys.argv[1:]
    batch, step, kind, *defect = armed or ("-1", "", "")
    steps = Steps(step, kind, int(batch))
    for defect_name in defect:
        DEFECTS[defect_name](Path(checkpoint))
    sink = Sink(bootstrap, topic, name, PARTITIONS)
    note = Path(checkpoint)
    done = json.loads(note.read_text()) if note.exists() else -1
    for number in range(done + 1, int(batches)):
        steps.new_batch(number)
        try:
            run_batch(steps, sink, number)
        except SinkRefused as error:
            sys.exit(f"batch {number}: {error}")
        fresh = note.with_suffix(f".{os.getpid()}")
        fresh.write_text(str(number))
        fresh.replace(note)
        steps.reach("noted")


if __name__ == "__main__":
    main()
