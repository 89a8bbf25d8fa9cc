"""Writes small data directories of several releases of Apache Kafka, each stopped in good order and then killed:

    python tests/support write_releases tests/golden/releases [RELEASE...]

Needs Maven and confluent-kafka; nobody runs it in tests. Every file is kept, the controller's log too.
"""

from __future__ import annotations

import io
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from real_kafka import RealKafka
from write_healthy import data, producer, topic, wait, work

RELEASES = ("3.9.2", "4.0.2", "4.1.2", "4.2.1", "4.3.1", "4.4.0")
SETTINGS = """
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
offsets.topic.segment.bytes=1048576
transaction.state.log.segment.bytes=1048576
log.index.size.max.bytes=4096
log.cleaner.backoff.ms=300
log.initial.task.delay.ms=100
log.retention.check.interval.ms=300
log.cleaner.dedupe.buffer.size=8388608
min.insync.replicas=1
metadata.log.segment.bytes=8388608
"""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def opened(bootstrap: str, name: str) -> Any:
    """A transaction that is not ended; librdkafka says nothing when it goes."""
    client = producer(bootstrap, name)
    client.begin_transaction()
    client.produce("t", b"open", partition=1)
    client.flush()
    return client


def story(kafka: RealKafka) -> None:
    topic(kafka, "t", segment__ms="80")
    topic(kafka, "appended", 1, message__timestamp__type="LogAppendTime")
    topic(kafka, "codecs", 1)
    topic(kafka, "cut", 1)
    topic(
        kafka, "compacted", 1, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200"}
    )
    for _ in range(2):
        work(kafka.bootstrap)
    for codec in CODECS:
        settings = {"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "enable.idempotence": True}
        plain = confluent_kafka.Producer(settings)
        for number in range(60):
            plain.produce("codecs", f"{number}" * 40, key=f"{number}")
            plain.produce("cut", f"{number}", key=f"{number}")
            if not number % 10:
                plain.produce("appended", f"{number}", key=f"{number}")
                plain.flush()
        plain.flush()
    place = confluent_kafka.TopicPartition("cut", 0, 101)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})  # it must live as long as its answer is waited for
    admin.delete_records([place])[place].result(90)
    for number in range(12):
        idempotent = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        for key in range(5):
            idempotent.produce("compacted", f"{number}", key=f"{key}")
        idempotent.flush()
        time.sleep(0.1)
    checkpoint = data(kafka) / "cleaner-offset-checkpoint"
    wait(lambda: "compacted 0" in checkpoint.read_text(), "nothing was compacted")


def packed(archive: tarfile.TarFile, prefix: str, root: Path) -> None:
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != ".lock":
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{prefix}/{path.relative_to(root)}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for release in sys.argv[2:] or RELEASES:
        kafka = RealKafka(SETTINGS, release=release)
        path = target / f"kafka-{release}.tar.xz"
        try:
            kafka.start()
            kafka.wait()
            story(kafka)
            kafka.stop()
            kafka.start()  # the leader epochs rise
            kafka.wait()
            work(kafka.bootstrap)
            open_producer = opened(kafka.bootstrap, "left-open")
            kafka.stop()
            with tarfile.open(path, "w:xz") as archive:
                packed(archive, "clean", data(kafka))
                kafka.start()
                kafka.wait()
                work(kafka.bootstrap)
                busy = opened(kafka.bootstrap, "busy")
                kafka.kill()
                packed(archive, "killed", data(kafka))
            del open_producer, busy
            print(release, path.stat().st_size, flush=True)
        except Exception:
            print((kafka.directory / "broker.log").read_text(errors="replace")[-2000:])
            raise
        finally:
            kafka.close()


if __name__ == "__main__":
    main()
