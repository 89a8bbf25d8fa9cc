"""The audit of segments in S3, read and written by pyarrow: a server of moto on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from planting import Planted, write_files

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("pyarrow")
server = pytest.importorskip("moto.server")

import pyarrow.parquet as pq  # noqa: E402
from pyarrow import fs  # noqa: E402

from minibroker.cli import main  # noqa: E402

TOPICS = ["--topic", "append-time", "--topic", "txn-a", "--topic", "__transaction_state"]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"{host}:{port}"
    running.stop()


def test_segments_in_s3_give_what_they_give_on_disk(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=11)
    local = write_files(planted.files, tmp_path / "data")
    store = fs.S3FileSystem(scheme="http", endpoint_override=endpoint, allow_bucket_creation=True, region="us-east-1")
    store.create_dir("logs")
    store.create_dir("audits")
    fs.copy_files(str(local), "logs/data", destination_filesystem=store)
    where = f"?scheme=http&endpoint_override={endpoint}&region=us-east-1"
    out = f"s3://audits/monday{where}"
    assert main(["audit", f"s3://logs/data{where}", *TOPICS, "--out", out, "--json", "-"]) == 1
    there = json.loads(capsys.readouterr().out)
    assert main(["audit", str(local), *TOPICS, "--json", "-"]) == 1
    here = json.loads(capsys.readouterr().out)
    for name in ("logs", "files", "bytes", "batches", "records", "findings", "transactions"):
        assert there[name] == here[name]
    assert [one["rule"] for one in there["shown"]] == [one["rule"] for one in here["shown"]] == ["sequence-gap"]
    (found,) = pq.read_table("audits/monday/findings", filesystem=store).to_pylist()
    assert (found["rule"], found["topic"], found["first_offset"]) == ("sequence-gap", "append-time", 9)
