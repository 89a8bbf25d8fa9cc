"""Writes the golden directories of a release: `python tests/support write_golden tests/golden/minibroker-VERSION`.

Deterministic: time, ids and what is written come from here. Later versions must open them and serve the same.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from seed_client import ID, OK, SeedClient
from served import group_offsets, partition_state

from minibroker.releases.semantics import PRESETS
from minibroker.version import __version__
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.os_disk import OsDisk

TOPICS = {
    "rolled": {"internal.segment.bytes": "800", "retention.ms": "-1"},
    "compacted": {"cleanup.policy": "compact", "internal.segment.bytes": "800", "min.cleanable.dirty.ratio": "0.01"},
}
GROUP = "g"
WINDOW = (2, 12, 2)  # sequences of the batches that the kip directory's producer may retry


def create_topics(client: SeedClient) -> None:
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        for name, configs in TOPICS.items()
    ]
    answer = client.cluster.call(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 5)
    assert [topic.error_code for topic in answer.topics] == [0] * len(topics)


def plain(client: SeedClient, topic: str, key: bytes, value: bytes | None, compression: int = 0) -> None:
    record = Record(0, client.cluster.clock.now_ms(), key, value, [("h", b"1"), ("h", None)])
    batch = build_batch([record], compression=compression)
    data = ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
    )
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data])
    answer = client.cluster.call(request, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def write(client: SeedClient) -> tuple[int, int]:
    """Segments, codecs, compaction, transactions of every ending, offsets in them, a window of duplicates; the id and
    epoch of the producer whose window it is."""
    create_topics(client)
    for number in range(30):
        plain(client, "rolled", b"k%d" % (number % 3), b"v%d" % number, compression=number % 5)
        plain(client, "compacted", b"k%d" % (number % 4), None if number % 7 == 6 else b"v%d" % number)
        client.cluster.timers.advance(100)
    client.cluster.broker.partition("rolled", 0).log.delete_records(7)
    client.cluster.timers.advance(60_000)  # compaction, retention's sweep, checkpoints
    producer = client.new()
    for number, commit in enumerate((True, False, True)):
        assert client.add(producer) == OK
        assert client.produce(producer, 0, count=3).code == OK
        assert client.add_offsets(producer) == OK
        assert client.commit_offset(producer, 10 + number) == OK
        assert client.end(producer, commit=commit) == OK
        producer = client.claim(producer)
    assert client.add(producer, 1) == OK
    assert client.produce(producer, 0, partition=1).code == OK  # and stays open
    idempotent = client.new(name=None)
    for sequence in range(0, 12, 2):
        assert client.produce(idempotent, sequence, count=2, transactional=False).code == OK
    return idempotent


def facts(client: SeedClient) -> dict[str, Any]:
    """What later versions must find."""
    names = ["t-0", "t-1", *(f"{name}-0" for name in TOPICS)]
    request = DescribeTransactionsRequest(transactional_ids=[ID])
    (state,) = client.cluster.call(request, DescribeTransactionsResponse, 0).transaction_states
    image = client.cluster.broker.image
    return {
        "partitions": {name: partition_state(client.cluster, name) for name in names},
        "configs": {name: dict(image.topics[name].configs) for name in TOPICS},
        "topic_ids": {name: image.topics[name].topic_id.hex() for name in ("t", *TOPICS)},
        "offsets": group_offsets(client.cluster, GROUP),
        "transaction": [state.transaction_state, state.producer_id, state.producer_epoch],
    }


def pack(directory: Path, archive: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != ".lock":
                member = tarfile.TarInfo(path.relative_to(directory).as_posix())
                member.size = path.stat().st_size
                tar.addfile(member, io.BytesIO(path.read_bytes()))
    archive.write_bytes(gzip.compress(data.getvalue(), 9, mtime=0))


def main(target: Path) -> None:
    target.mkdir(parents=True)
    manifest: dict[str, Any] = {"minibroker": __version__, "idempotent": {}}
    for name, semantics, clean in (("clean", "kafka", True), ("killed", "kafka", False), ("kip", "kip", True)):
        with tempfile.TemporaryDirectory() as directory:
            client = SeedClient(PRESETS[semantics], disk=OsDisk(directory))
            manifest["idempotent"][name] = write(client)
            manifest[name] = facts(client)
            if clean:
                client.stop()
            else:
                client.cluster.broker.kill()
            pack(Path(directory), target / f"{name}.tar.gz")
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
