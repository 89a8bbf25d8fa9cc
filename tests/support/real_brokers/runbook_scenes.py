"""The scenes of docs/how-to/runbooks.md: what is broken before its commands are run."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dropped_marker import drop_here, two_brokers
from planting import Planted, rewound, write_files

from minibroker import Minibroker
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.control.http_client import HttpCaller
from minibroker.server.options import make_options
from minibroker.testing.in_thread import ThreadRunner
from minibroker_protocol.records import Record, build_batch

Scene = AbstractContextManager[dict[str, str]]
"""The words of the page that stand for something of this run, and what that is."""
BOOTSTRAP, DATA_DIR = "127.0.0.1:9092", "DATA_DIR"
LATER = "1795780800000"
"""The time that the page's clock shows."""
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


def _late_batch(client: TransactionalClient, now_ms: int) -> None:
    """A transactional batch comes after its transaction's marker."""
    producer = client.init_producer_id("checkout", 60_000, transaction_version=0)
    client.add_partitions(producer, "orders", [0])
    client.produce(producer, "orders", 0, _batch(producer, 0, now_ms))
    client.end(producer, commit=True)
    client.produce(producer, "orders", 0, _batch(producer, 1, now_ms))


def _batch(producer: Producer, sequence: int, now_ms: int) -> bytes:
    who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    return bytes(build_batch([Record(0, now_ms, b"k", b"v")], base_sequence=sequence, transactional=True, **who))


@contextmanager
def hanging_transaction(_: Path) -> Iterator[dict[str, str]]:
    """A late batch, to a broker that does not verify (before KIP-890), an hour before another transaction ended."""
    topics = {"orders": 1, "other": 1}
    with Minibroker(ephemeral=True, topics=topics, transaction_version=0, config=UNVERIFIED) as broker:
        with TransactionalClient(broker.bootstrap_servers) as client:
            _late_batch(client, broker.clock.now_ms)
            broker.clock.advance(hours=1)
            later = client.init_producer_id("later", 60_000, transaction_version=0)
            client.add_partitions(later, "other", [0])
            client.produce(later, "other", 0, _batch(later, 0, broker.clock.now_ms))
            client.end(later, commit=True)
        yield {BOOTSTRAP: broker.bootstrap_servers}


@contextmanager
def rehearsal(path: Path) -> Iterator[dict[str, str]]:
    """A late batch a moment ago, and a control API. Its clock stands still, so that the time on the page is known."""
    token = path / "token"
    token.write_text("rehearsal")
    options = make_options(
        ephemeral=True,
        topics={"orders": 1},
        transaction_version=0,
        config=UNVERIFIED,
        control=("127.0.0.1", 0),
        control_token=token.read_text(),
    )
    runner = ThreadRunner(options)
    runner.start().result()
    try:
        assert runner.service.control is not None
        host, port = runner.service.control.address
        now_ms = int(HttpCaller(f"http://{host}:{port}", token.read_text()).call("clock.freeze", {})["now_ms"])
        with TransactionalClient(runner.service.bootstrap_servers) as client:
            _late_batch(client, now_ms)
        yield {
            BOOTSTRAP: runner.service.bootstrap_servers,
            "--token-file token": f"--token-file {token} --control {host}:{port}",
            LATER: str(now_ms + 3_600_000),
        }
    finally:
        runner.stop().result()
        runner.join()


@contextmanager
def dropped_marker(_: Path) -> Iterator[dict[str, str]]:
    """A committed transaction has no marker where a partition had no leader."""
    with two_brokers() as broker:
        dropped = drop_here(broker, commit=True)
        yield {BOOTSTRAP: broker.bootstrap_servers, "OFFSETS": str(dropped.offsets_partition)}


@contextmanager
def _directory(planted: Planted, path: Path) -> Iterator[dict[str, str]]:
    yield {DATA_DIR: str(write_files(planted.files, path / "data"))}


def lost_producer_state(path: Path) -> Scene:
    """A leader that had forgotten a producer took a batch again that it had, and has not been stopped since."""
    planted = Planted()
    # A clean stop would have written a snapshot at the log's new end.
    del planted.files[".kafka_cleanshutdown"]
    planted.append("append-time-0", planted.find("append-time-0", 3))
    return _directory(planted, path)


def offset_rewind(path: Path) -> Scene:
    """A member came back and committed half of what it had."""
    return _directory(rewound(60)[0], path)


def damaged_files(path: Path) -> Scene:
    """A flipped bit in a batch, and an index that points elsewhere."""
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))
    name = f"sized-0/{0:020d}.index"
    content = bytearray(planted.files[name])
    struct.pack_into(">i", content, 40, 30)
    planted.files[name] = bytes(content)
    return _directory(planted, path)


def lost_data(path: Path) -> Scene:
    """The end of a log was not on the disk when the power went; the checkpoint of the high watermark was."""
    planted = Planted()
    del planted.files[".kafka_cleanshutdown"], planted.files[planted.path("codec-none-0", ".snapshot")]
    planted.without_small_files("codec-none-0")
    planted.write("codec-none-0", planted.batches("codec-none-0")[:-2])
    synced = planted.files["recovery-point-offset-checkpoint"]
    planted.files["recovery-point-offset-checkpoint"] = synced.replace(b"codec-none 0 150", b"codec-none 0 0")
    return _directory(planted, path)


SCENES: dict[str, Callable[[Path], Scene]] = {
    scene.__name__.replace("_", "-"): scene
    for scene in (
        hanging_transaction,
        rehearsal,
        dropped_marker,
        lost_producer_state,
        offset_rewind,
        damaged_files,
        lost_data,
    )
}
