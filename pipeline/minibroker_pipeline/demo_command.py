"""The command `minibroker pipeline demo`: orders become payments exactly once, through three failures."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.arguments import from_1
from minibroker.kernel.demo_progress import Progress
from minibroker.kernel.extras import hint, missing
from minibroker.kernel.words import fail
from minibroker.output import say

if TYPE_CHECKING:
    from minibroker.testing.embedded import Minibroker

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
SINK: Final = "payments-job"
PARTITIONS: Final = 3
_LEAST: Final = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument("what", choices=["demo"], help="orders to payments on Spark, exactly once, audited at the end")
    parser.add_argument(
        "--orders", type=from_1, default=3000, metavar="N", help="how many orders (default: %(default)s)"
    )
    parser.add_argument("--html", metavar="FILE", help="write the audit's report")


def run(arguments: argparse.Namespace) -> int:
    """Exit status. 0: each order became one payment, and the audit found nothing; 1: otherwise; 2: could not run."""
    if absent := missing(("pyspark", "pandas", "pyarrow", "numpy")):
        return fail(hint("the demo", *absent), EXIT_USAGE, "minibroker pipeline")
    if arguments.orders < _LEAST:
        return fail(f"--orders {arguments.orders}: at least {_LEAST}", EXIT_USAGE, "minibroker pipeline")
    from minibroker.program import whole
    from minibroker.server.temporary_directory import TemporaryDirectory
    from minibroker.testing.embedded import Minibroker
    from minibroker_pipeline.java import NoJava

    topics = {ORDERS: PARTITIONS, PAYMENTS: PARTITIONS}
    try:
        with (
            whole(
                Minibroker(ephemeral=True, brokers=3, topics=topics, config={"default.replication.factor": "3"})
            ) as broker,
            TemporaryDirectory() as directory,
            whole(_session()) as spark,
        ):
            return _Demo(broker, spark, Path(directory), arguments).run()
    except NoJava as error:
        return fail(error, EXIT_USAGE, "minibroker pipeline")


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    from minibroker_pipeline.session import open_session

    spark, _ = open_session("local[2]", ["spark.sql.shuffle.partitions=3"])
    spark.sparkContext.setLogLevel("OFF")  # a batch fails on purpose
    try:
        yield spark
    finally:
        spark.stop()


class _Demo:
    def __init__(self, broker: Minibroker, spark: Any, directory: Path, arguments: argparse.Namespace) -> None:
        self._broker = broker
        self._spark = spark
        self._directory = directory
        self._orders = arguments.orders
        self._html = arguments.html
        self._tell = Progress(sys.stdout).event

    def run(self) -> int:
        from minibroker.faults import Error

        thirds = [self._orders * part // 3 for part in range(4)]
        self._tell(f"three brokers at {self._broker.bootstrap_servers}, Spark {self._spark.version}")
        self._write_orders(thirds[0], thirds[1])
        self._write_orders(thirds[0], thirds[1])
        self._tell(f"{ORDERS}: a job that ran twice wrote {self._count(ORDERS)} records, in one transaction")
        self._copy()
        self._tell(f"{PAYMENTS}: {self._count(PAYMENTS)} records, in one transaction with the marker of their batch")

        self._write_orders(thirds[1], thirds[2])
        before = self._count(PAYMENTS)
        self._tell(f"{PAYMENTS}: the broker will refuse the next commit, on purpose")
        # The first EndTxn commits the marker again as the query starts, the second one ends the batch.
        with self._broker.faults.inject("EndTxn", Error("TRANSACTION_ABORTABLE"), transactional_id=SINK, nth=2):
            failed = self._copy()
        self._tell(f"{PAYMENTS}: the query {'failed' if failed else 'went on'}; "
                   f"{self._count(PAYMENTS) - before} of its records are visible")  # fmt: skip
        self._copy()
        self._tell(f"{PAYMENTS}: the query is started again: {self._count(PAYMENTS)} records")

        self._write_orders(thirds[2], thirds[3])
        restarts = threading.Thread(target=self._restart_brokers)
        restarts.start()
        self._copy()
        restarts.join()
        self._tell(f"{PAYMENTS}: each broker was killed and restarted in the meantime: {self._count(PAYMENTS)} records")
        self._forget_last_commit()
        self._copy()
        self._tell(f"{PAYMENTS}: the last commit is forgotten, its batch comes again: {self._count(PAYMENTS)} records")
        return self._judge()

    def _count(self, topic: str) -> int:
        return len(self._broker.records(topic, isolation="read_committed"))

    def _write_orders(self, first: int, end: int) -> None:
        from minibroker_pipeline.topic_sink import exactly_once

        rows = self._spark.range(first, end).selectExpr(
            "concat('order-', id) key", "to_json(struct(id as order, id % 90 + 10 as amount)) value"
        )
        servers = self._broker.bootstrap_servers
        exactly_once(rows, ORDERS, bootstrap=servers, sink="orders-job", jobId=f"from-{first}").save()

    def _copy(self) -> bool:
        """Run the query over new records; returns whether it failed."""
        from pyspark.errors import StreamingQueryException

        from minibroker_pipeline import topic_options, topic_source
        from minibroker_pipeline.topic_sink import exactly_once

        topic_source.register(self._spark)
        servers = self._broker.bootstrap_servers
        orders = self._spark.readStream.format(topic_options.NAME).option("bootstrap", servers)
        payments = (
            orders.option("subscribe", ORDERS).load().selectExpr("key", "concat('paid: ', cast(value as string)) value")
        )
        writer = exactly_once(payments, PAYMENTS, bootstrap=servers, sink=SINK)
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            return True
        return False

    @property
    def _checkpoint(self) -> str:
        return str(self._directory / "checkpoint")

    def _restart_brokers(self) -> None:
        for node_id in (1, 2, 3):
            self._broker.cluster.kill_broker(node_id)
            time.sleep(0.2)
            self._broker.cluster.start_broker(node_id)

    def _forget_last_commit(self) -> None:
        """Make the checkpoint look as if the driver had died after the end of the transaction and before it wrote this
        down."""
        commits = Path(self._checkpoint) / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        for path in (last, commits / f".{last.name}.crc"):
            path.unlink(missing_ok=True)

    def _judge(self) -> int:
        from minibroker_pipeline.audit_command import add_arguments, audit_path, plan_of
        from minibroker_pipeline.folder import write_file
        from minibroker_pipeline.report import lines, page

        counts = Counter(record.key for record in self._broker.records(PAYMENTS, isolation="read_committed"))
        once = len(counts) == self._orders and set(counts.values()) == {1}
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        arguments = ["--bootstrap", self._broker.bootstrap_servers, "--lineage", f"{ORDERS}={PAYMENTS}", "--quiet"]
        chosen = parser.parse_args(arguments)
        audit = audit_path(plan_of(chosen), chosen)
        say("")
        for line in lines(audit):
            say(line)
        if self._html is not None:
            write_file(self._html, page(audit))
        verdict = "each exactly once" if once else "NOT exactly once"
        say("", f"{self._orders} orders, {sum(counts.values())} payments: {verdict}")
        return EXIT_OK if once and not audit.exit_code else EXIT_FAILED
