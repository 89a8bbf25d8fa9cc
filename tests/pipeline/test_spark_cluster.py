"""Source, sink and audit on executors that are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standalone_spark import standalone_spark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("pyspark")
confluent_kafka = pytest.importorskip("confluent_kafka")

from minibroker.testing.embedded import Minibroker  # noqa: E402

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "support" / "applications" / "spark_cluster_job.py"
SECONDS = 900
RECORDS = 200


@contextmanager
def broker_with_records() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, topics={"in": 2, "out": 2}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
        producer = confluent_kafka.Producer(settings)
        for number in range(RECORDS):
            producer.produce("in", key=f"key-{number}", value=str(number), headers=[("h", b"x")])
        producer.flush()
        yield broker


def copied_once(broker: Minibroker, output: str) -> list[list[str]]:
    """What the job has seen of its executors, once all that it did was held against the broker."""
    seen = json.loads(output)
    assert seen["findings"] == []
    assert seen["transactions"] == ["out-0 COMMIT", "out-1 COMMIT"]
    # A producer with Java's partitioner put each record into the partition where the sink must put it too.
    read, copied = (broker.records(topic, isolation="read_committed") for topic in ("in", "out"))
    assert len(copied) == RECORDS
    assert {where(record) for record in copied} == {where(record) for record in read}
    executors: list[list[str]] = seen["executors"]
    return executors


def where(record: Any) -> Any:
    return record.key, record.value, record.partition, record.headers, record.timestamp_ms


def run(argv: list[str], directory: Path, environment: dict[str, str], status: int = 0) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, cwd=directory, env=environment, timeout=SECONDS, check=False
    )
    assert done.returncode == status, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout


def test_a_job_on_a_local_cluster(tmp_path: Path) -> None:
    """Two executor JVMs, whose directories go with the job."""
    import pyspark

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment.pop("SPARK_HOME", None)
    beside_spark = set(Path(pyspark.__file__).parent.iterdir())
    with broker_with_records() as broker:
        argv = [sys.executable, str(JOB), "local-cluster[2,1,1024]", broker.bootstrap_servers]
        executors = copied_once(broker, run(argv, tmp_path, environment))
    assert len(executors) == 2
    assert all(directory.startswith(str(temporary)) for directory, _, _ in executors)
    assert list(temporary.iterdir()) == []
    assert set(Path(pyspark.__file__).parent.iterdir()) == beside_spark


def packed_environment(directory: Path) -> None:
    """`audit`, an environment with this package and without Spark, and `audit.tar.gz`, as the how-to makes them."""
    python = directory / "audit" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", f"{ROOT}[audit]", "pandas<3", "venv-pack2"]
    subprocess.run([sys.executable, "-m", "venv", str(directory / "audit")], check=True)
    done = subprocess.run(install, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"no environment could be made: {done.stderr[-500:]}")
    pack = [str(python.with_name("venv-pack")), "-q", "-p", "audit", "-o", "audit.tar.gz"]
    subprocess.run(pack, cwd=directory, check=True, timeout=SECONDS)


@pytest.mark.slow
def test_a_job_on_a_standalone_cluster_with_an_environment_of_its_own(tmp_path: Path) -> None:
    """A master and two workers; their executors have nothing but what the archive brings."""
    import pyspark

    from minibroker_pipeline import java

    packed_environment(tmp_path)
    java.prepare()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYSPARK_PYTHON"] = "./audit/bin/python"
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    where = ["--conf", "spark.driver.host=127.0.0.1", "--archives", "audit.tar.gz#audit"]
    with standalone_spark(tmp_path, workers=2) as url, broker_with_records() as broker:
        argv = [submit, "--master", url, *where, str(JOB), url, broker.bootstrap_servers]
        executors = copied_once(broker, run(argv, tmp_path, environment))
    workers = {Path(directory).relative_to(tmp_path).parts[0] for directory, _, _ in executors}
    assert workers == {"worker-1", "worker-2"}
    for directory, python, package in executors:
        assert python.startswith(directory), python
        assert package.startswith(f"{directory}/audit/"), package
