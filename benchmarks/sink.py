"""Writes the same table with Spark's own sink and with `kafka-exactly-once`, in turns.

    PYTHONPATH=tests/support/real_brokers python benchmarks/sink.py [--rows N] [--bytes N] [--rounds N]
        [--bootstrap HOST:PORT]

Without `--bootstrap` a broker of minibroker is started for it. Prints a line of JSON: seconds of each run (medians and
all), rows and MB of values a second, and the ratio. Spark's sink needs its connector (Maven), with at least once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONNECTOR = Path(__file__).parent.parent / "tests" / "pipeline" / "connector" / "pom.xml"
PARTITIONS = 4


@contextmanager
def served(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    from minibroker import Minibroker

    with Minibroker(process=True) as broker:  # in memory there is no room for all rounds
        yield broker.bootstrap_servers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bootstrap")
    arguments = parser.parse_args()
    from jvm import fetched_jars

    from minibroker_pipeline import session
    from minibroker_pipeline.topic_sink import exactly_once

    jars = ",".join(str(jar) for jar in fetched_jars(CONNECTOR, "Spark's Kafka connector", 120).glob("*.jar"))
    spark, _ = session.open_session("local[2]", ["spark.driver.memory=2g", f"spark.jars={jars}"])
    padding = "x" * (arguments.bytes - 12)
    table = spark.range(arguments.rows).selectExpr(
        "cast(id as string) key", f"concat(lpad(cast(id as string), 12, '0'), '{padding}') value"
    )
    table = table.persist()
    table.count()
    with served(arguments.bootstrap) as bootstrap:
        names = iter(f"sink-{int(time.time())}-{number}" for number in range(1000))

        def own() -> Any:
            return table.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", create())

        def ours() -> Any:
            return exactly_once(table, create(), bootstrap=bootstrap, sink=f"s{time.time_ns()}")

        def create() -> str:
            name = next(names)
            _create(bootstrap, name)
            return name

        ways: dict[str, Callable[[], Any]] = {"spark": own, "exactly_once": ours}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for round_number in range(arguments.rounds + 1):
            for name, way in ways.items():
                writer = way()
                begun = time.perf_counter()
                writer.save()
                if round_number:  # the first warms up
                    seconds[name].append(round(time.perf_counter() - begun, 2))
    spark.stop()
    report: dict[str, Any] = {"rows": arguments.rows, "bytes": arguments.bytes}
    for name, runs in seconds.items():
        median = statistics.median(runs)
        megabytes = arguments.rows * arguments.bytes / 1e6
        rate = {"rows_s": round(arguments.rows / median), "mb_s": round(megabytes / median, 1)}
        report[name] = {"seconds": runs, "median": median, **rate}
    report["ratio"] = round(report["exactly_once"]["median"] / report["spark"]["median"], 2)
    print(json.dumps(report))


def _create(bootstrap: str, name: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic(name, PARTITIONS)]).values()
    made.result(30)


if __name__ == "__main__":
    main()
