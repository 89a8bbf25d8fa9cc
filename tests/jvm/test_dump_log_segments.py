"""Kafka's DumpLogSegments reads the files a minibroker leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from broker import start_minibroker
from golden import unpack
from jvm import run_java
from seed_client import SeedClient
from write_golden import write as write_everything

from minibroker.controller.kraft import read_kraft_metadata
from minibroker.releases.semantics import PRESETS
from minibroker_storage.os_disk import OsDisk

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = pytest.mark.jvm

SECONDS = 30.0
TRANSACTIONS = 6
RECORDS = 4


@pytest.fixture(scope="module")
def data(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory after some transactions, every third aborted, with offsets committed in each."""
    directory = tmp_path_factory.mktemp("dump")
    arguments = ("--data-dir", str(directory / "data"), "--topic", "dumped:1")
    broker = start_minibroker(directory / "broker.log", *arguments, "-c", "log.index.interval.bytes=1")
    try:
        write(broker.bootstrap)
    finally:
        broker.stop()
    return directory / "data"


def write(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "dumper"})
    producer.init_transactions(SECONDS)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "dumpers"})
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for record in range(RECORDS):
            producer.produce("dumped", f"{number}-{record}", f"key-{record}", partition=0)
        place = confluent_kafka.TopicPartition("dumped", 0, number)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), SECONDS)
        producer.flush(SECONDS)  # an abort drops what was not sent yet
        end: Any = producer.abort_transaction if number % 3 == 2 else producer.commit_transaction
        end(SECONDS)
    consumer.close()


def find(data: Path, pattern: str) -> list[Path]:
    found = sorted(path for path in data.rglob(pattern) if path.stat().st_size)
    assert found, f"no {pattern} in {sorted(str(path.relative_to(data)) for path in data.rglob('*'))}"
    return found


# What it says of the first offset of every file that does not begin at 0, and of compacted ones.
NO_COMPLAINT = re.compile(r"Non-consecutive offsets in \S+\n(  -1 is followed by \d+\n)+(?!  )")


def dump(*arguments: str) -> str:
    done = run_java("org.apache.kafka.tools.DumpLogSegments", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    done.stderr = NO_COMPLAINT.sub("", done.stderr)
    for complaint in ("Found timestamp mismatch", "Mismatches in", "Non-consecutive", "isvalid: false", "Exception"):
        assert complaint not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout


def test_log(data: Path) -> None:
    (log,) = find(data, "dumped-0/*.log")
    text = dump("--files", str(log), "--print-data-log", "--deep-iteration")
    assert text.count("endTxnMarker: COMMIT") == TRANSACTIONS - TRANSACTIONS // 3
    assert text.count("endTxnMarker: ABORT") == TRANSACTIONS // 3
    payloads = re.findall(r"payload: (\d-\d)", text)
    assert payloads == [f"{number}-{record}" for number in range(TRANSACTIONS) for record in range(RECORDS)]
    offsets = [int(offset) for offset in re.findall(r"\| offset: (\d+)", text)]
    assert offsets == list(range(TRANSACTIONS * (RECORDS + 1)))


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "snapshot"])
def test_files_beside_the_log(data: Path, kind: str) -> None:
    for path in find(data, f"dumped-0/*.{kind}"):
        text = dump("--files", str(path), "--verify-index-only") if kind == "index" else dump("--files", str(path))
        if kind == "txnindex":
            assert len(re.findall(r"producerId: \d+", text)) == TRANSACTIONS // 3
        if kind == "snapshot":
            assert len(re.findall(r"producerId: \d+", text)) == 1


def test_coordinators_logs(data: Path) -> None:
    (states,) = find(data, "__transaction_state-*/*.log")
    text = dump("--files", str(states), "--transaction-log-decoder")
    assert '"transactionalId":"dumper"' in text
    (offsets,) = find(data, "__consumer_offsets-*/*.log")
    text = dump("--files", str(offsets), "--offsets-decoder")
    assert text.count('"group":"dumpers"') == TRANSACTIONS


# Directories with everything that minibroker writes: several segments, codecs, compaction, deleted records, open,
# committed and aborted transactions, offsets in them.


@pytest.fixture(scope="module", params=["clean", "killed", "kip"])
def written(request: pytest.FixtureRequest, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    client = SeedClient(PRESETS["kip" if request.param == "kip" else "kafka"], disk=OsDisk(str(directory)))
    write_everything(client)
    if request.param == "killed":
        client.cluster.broker.kill()
    else:
        client.stop()
    return directory


def dump_all(files: list[Path], *arguments: str) -> str:
    text = dump("--files", ",".join(map(str, files)), *arguments)
    assert text.count("Dumping ") == len(files)
    return text


def test_every_log_is_read_to_its_end(written: Path) -> None:
    logs = [log for topic in ("t", "rolled", "compacted") for log in find(written, f"{topic}-*/*.log")]
    assert len(logs) >= 8
    text = dump_all(logs, "--deep-iteration", "--print-data-log")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in text
    assert text.count("endTxnMarker: COMMIT") == 2
    assert text.count("endTxnMarker: ABORT") == 1
    ends = [int(size) for size in re.findall(r"position: (\d+) ", text)]
    assert len(ends) > 30


@pytest.mark.parametrize("check", ["--index-sanity-check", "--verify-index-only"])
def test_every_offset_index_is_sane(written: Path, check: str) -> None:
    dump_all(sorted(written.rglob("[rct]*-*/*.index")), check)


@pytest.mark.parametrize("kind", ["timeindex", "txnindex", "snapshot"])
def test_every_other_file_beside_a_log(written: Path, kind: str) -> None:
    files = [path for path in sorted(written.rglob(f"*.{kind}")) if path.stat().st_size or kind == "timeindex"]
    text = dump_all(files)
    if kind == "txnindex":
        assert len(re.findall(r"producerId: \d+ firstOffset", text)) == 2  # of the records, and of the offsets
    if kind == "snapshot" and any(path.parent.name == "t-1" for path in files):  # a killed broker wrote none
        assert re.search(r"currentTxnFirstOffset: OptionalLong\[\d+\]|currentTxnFirstOffset: \d+", text)


def test_every_coordinators_log(written: Path) -> None:
    text = dump_all(find(written, "__transaction_state-*/*.log"), "--transaction-log-decoder")
    assert '"transactionalId":"tx"' in text
    text = dump_all(find(written, "__consumer_offsets-*/*.log"), "--offsets-decoder")
    assert text.count('"group":"g"') == 3


def test_a_metadata_log_means_to_kafka_what_it_means_to_us(programs: Path, tmp_path: Path) -> None:
    unpack("kafka-4.3.1/directory/metadata.tar.gz", tmp_path)
    ours = read_kraft_metadata(OsDisk(str(tmp_path), read_only=True))
    assert ours is not None
    log = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    text = dump("--files", str(log), "--cluster-metadata-decoder")
    records = [json.loads(found) for found in re.findall(r"payload: (\{.*\})", text)]

    def of_type(name: str) -> list[dict[str, Any]]:
        return [record["data"] for record in records if record["type"] == name]

    assert {topic["name"] for topic in of_type("TOPIC_RECORD")} == ours.topics.keys()
    configs: dict[str, dict[str, str]] = {}
    for config in of_type("CONFIG_RECORD"):
        if config["resourceType"] == 2:
            configs.setdefault(config["resourceName"], {})[config["name"]] = config["value"]
    assert configs == {name: topic.configs for name, topic in ours.topics.items() if topic.configs}
    assert ours.next_producer_id == of_type("PRODUCER_IDS_RECORD")[-1]["nextProducerId"]
    assert ours.features == {level["name"]: level["featureLevel"] for level in of_type("FEATURE_LEVEL_RECORD")}
    assert sum(len(topic.partitions) for topic in ours.topics.values()) == len(of_type("PARTITION_RECORD"))
