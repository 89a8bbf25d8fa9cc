"""The audit's results as DataFrames, and as Parquet tables of many audits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planting import Planted, changed, write_files

pytestmark = pytest.mark.filterwarnings("ignore")

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

import minibroker_pipeline  # noqa: E402
from minibroker.rules.rows import COMMIT, Run, Transaction  # noqa: E402
from minibroker_pipeline import frames  # noqa: E402
from minibroker_pipeline.engine import judge_rows  # noqa: E402
from minibroker_pipeline.folder import Folder  # noqa: E402
from minibroker_pipeline.plan import read_parts  # noqa: E402
from minibroker_pipeline.planning import plan_for  # noqa: E402

TOPICS = ("append-time", "txn-a", "__transaction_state")


def damaged(path: Path) -> str:
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=11)
    planted.change("txn-a-1", 41, lambda batch: changed(planted.find("txn-a-1", 62), base_offset=41))
    planted.change("append-time-1", 3, lambda batch: batch[:-1] + b"x")
    return str(write_files(planted.files, path))


@pytest.mark.spark
def test_the_frames_of_an_audit(spark: Any, tmp_path: Path) -> None:
    """Against the same rows judged in this process."""
    path = damaged(tmp_path / "data")
    plan = plan_for(path, topics=TOPICS)
    rows = [row for _, read in read_parts(plan, 0, plan.parts) for row in read.rows]
    judged = judge_rows(plan, rows)
    runs = [row for row in rows if isinstance(row, Run)]
    with minibroker_pipeline.audit(spark, path, topics=TOPICS, run_id="monday") as audited:
        found = audited.findings.collect()
        assert {(f.rule, f.topic, f.partition, f.first_offset, f.message) for f in found} == {
            (f.rule, f.log.topic, f.log.partition, f.first_offset, f.message) for f in judged.findings
        }
        assert {"sequence-gap", "checksum"} <= {row.rule for row in found}
        assert {(row.run_id, row.run_time.timestamp() > 0) for row in found} == {("monday", True)}
        assert audited.transactions.count() == len(judged.transactions)
        producers = {(row.root, row.producer_id): row for row in audited.producers.collect()}
        partitions = {(row.root, row.topic, row.partition): row for row in audited.partitions.collect()}
        assert set(partitions) == {tuple(fact.log) for fact in plan.facts}
        for kind, counted in (("records", "records"), ("bytes", "bytes"), ("batches", "batches")):
            assert sum(row[kind] for row in partitions.values()) == sum(getattr(run, counted) for run in runs)
        assert producers.keys() == {(run.log.root, run.producer_id) for run in runs if run.producer_id >= 0}
        assert sum(row.errors + row.notices for row in partitions.values()) == len(judged.findings)
        for rows_of in (producers, partitions):
            assert sum(row.committed for row in rows_of.values()) == sum(map(committed, judged.transactions))
        assert any(row.transactional_id for row in producers.values())


@pytest.mark.spark
@pytest.mark.slow
def test_tables_of_many_audits(spark: Any, tmp_path: Path) -> None:
    path = damaged(tmp_path / "data")
    for run_id, topics in (("monday", TOPICS), ("tuesday", ["codec-none"])):
        with minibroker_pipeline.audit(spark, path, topics=topics, run_id=run_id) as audited:
            audited.write(str(tmp_path / "tables"))
            if run_id == "monday":
                errors = audited.findings.where("severity = 'error'").count()
    # A dashboard: how many errors each audit found.
    trend = spark.sql(
        f"select a.run_id, a.errors, count(f.rule) found from parquet.`{tmp_path}/tables/audits` a "
        f"left join parquet.`{tmp_path}/tables/findings` f on a.run_id = f.run_id and f.severity = 'error' "
        "group by all order by 1"
    ).collect()
    assert errors > 1
    assert [tuple(row) for row in trend] == [("monday", errors, errors), ("tuesday", 0, 0)]
    assert spark.read.parquet(str(tmp_path / "tables" / "partitions")).groupBy("run_id").count().count() == 2


def committed(txn: Transaction) -> bool:
    return txn.first_offset >= 0 and txn.marker_offset >= 0 and txn.outcome == COMMIT


def test_a_file_for_each_task_and_one_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    schema = pa.schema([("rule", pa.string())])
    rows = pa.RecordBatch.from_pydict({"rule": ["duplicate", "checksum"]}, schema=schema)
    empty = rows.slice(0, 0)
    tasks = {0: [], 1: [rows, empty, rows], 2: [empty], 3: [rows]}

    def write(run: str) -> list[int]:
        counts = []
        for number, batches in tasks.items():
            monkeypatch.setattr("pyspark.TaskContext.get", lambda number=number: Context(number))
            written = frames._write_rows(Folder(str(tmp_path)), f"findings/{run}", schema, iter(batches))
            counts += [batch.column("rows")[0].as_py() for batch in written]
        return counts

    assert write("a") == [0, 4, 0, 2]
    assert sorted(path.name for path in (tmp_path / "findings").iterdir()) == [
        *("a-000000.parquet", "a-000001.parquet", "a-000003.parquet")
    ]
    write("a")  # tasks that are tried again
    write("b")
    assert pq.read_table(tmp_path / "findings").num_rows == 12


class Context:
    """Of a task of this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def partitionId(self) -> int:
        return self._number


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give either a source or bootstrap"),
        ({"source": "x", "bootstrap": "h:1"}, "give either a source or bootstrap"),
        ({"source": "x", "depth": "all"}, "depth 'all' is none of headers"),
        ({"source": "x", "run_id": "a/b"}, "run_id 'a/b': expected at most 100 letters"),
        ({"source": "x", "as_of": "soon"}, "expected 'now', ms"),
        ({"bootstrap": "h:1", "settings": {"ssl.x": "1"}}, "not known here"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        minibroker_pipeline.audit(None, **arguments)


def test_an_attribute_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'audits'"):
        minibroker_pipeline.audits  # noqa: B018


def test_a_run_id_that_is_there_already_is_refused(tmp_path: Path) -> None:
    """The files of both audits would be mixed."""
    again = object.__new__(frames.AuditFrames)
    again.run_id = "one"
    (tmp_path / "audits").mkdir()
    (tmp_path / "audits" / "one-000000.parquet").write_bytes(b"")
    with pytest.raises(FileExistsError, match="has an audit with the run_id one"):
        again.write(str(tmp_path))
    folder = Folder(str(tmp_path))
    assert (folder.has("audits/one-000000.parquet"), folder.has("audits/one-000001.parquet")) == (True, False)
    assert not folder.has("audits")
