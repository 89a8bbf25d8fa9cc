"""KIP-588's sample loop, its callback included and nothing flushed, through timeouts by the broker's clock.

A run is three transactions of one producer; the second one times out. `MEETS` names the request that meets the timeout.
The table of docs/reference/semantics.md is made of what `measured` counts: ``python tests/support sample_loop`` runs
every client RUNS times into each timeout at each transaction.version, and writes the counts and the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jvm import FAST_START, JVM_TIER, POMS, compile_java, kafka_libs
from toolchain import tool

from minibroker import Minibroker
from minibroker.config.keys import SEMANTICS_PREFIX
from minibroker.faults import Hold
from minibroker_protocol.records import ControlType, decode_records, iter_batches, parse_control, parse_header

ROOT = Path(__file__).resolve().parents[3]
COUNTS = ROOT / "tests" / "golden" / "sample-loop.json"
PAGE = ROOT / "docs" / "reference" / "semantics.md"
BEGIN, END = "<!-- begin sample loop -->", "<!-- end sample loop -->"
RUNS = 30
TRANSACTIONS = 3
PATIENCE = 20
LEVELS = (1, 2)
MEETS = {
    "produce": "Produce",
    "commit": "EndTxn, a commit",
    "partition": "a new partition",
    "offsets": "sendOffsets",
    "offset-commit": "TxnOffsetCommit",
}
"""What meets the timeout. The last one falls between AddOffsetsToTxn and TxnOffsetCommit, where a client has both."""
JAVA = {f"Java {release}": release for release in POMS}
CONFLUENT = "confluent-kafka 2.16"
CLIENTS = (CONFLUENT, *JAVA)

_TIMEOUT_MS = 60_000
_PAST_IT_MS = _TIMEOUT_MS + 15_000
_SECONDS = 60.0

Counts = dict[str, int]


# -- the loop ----------------------------------------------------------------------------------------------------------


def confluent_run(bootstrap: str, meets: str, run: int, pause: Callable[[], None]) -> str:
    """The text's loop over confluent-kafka: "lives", or "ends" and on what. pause() is called where the second
    transaction shall time out."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

    closing = (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    ended: list[str] = []

    def callback(error: Any, _: Any) -> None:
        if error is not None and error.code() in closing:
            ended.append(error.name())

    def send(partition: int, transaction: int, part: str) -> None:
        producer.produce("t", f"{run}:{transaction}:{part}", partition=partition, on_delivery=callback)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"x-{run}",
            "transaction.timeout.ms": _TIMEOUT_MS,
            "log_level": 0,
            "error_cb": lambda error: None,  # without one, a fatal error comes out of poll()
        }
    )
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{run}", "log_level": 0})
    transaction = aborted = 0
    try:
        producer.init_transactions(_SECONDS)
        while not ended and transaction < TRANSACTIONS and aborted < PATIENCE:
            try:
                producer.begin_transaction()
                send(0, transaction, "a")
                if transaction == 1 and not aborted:
                    pause()
                if meets in ("produce", "partition"):
                    send(int(meets == "partition"), transaction, "b")
                elif meets != "commit":
                    offsets = [TopicPartition("t", 0, transaction + 1)]
                    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _SECONDS)
                producer.commit_transaction(_SECONDS)
                transaction += 1
            except KafkaException as raised:
                error = raised.args[0]
                if error.fatal() or error.code() in closing:
                    ended.append(error.name())
                    break
                aborted += 1
                producer.abort_transaction(_SECONDS)
    except KafkaException as raised:
        ended.append(f"{raised.args[0].name()} out of abort_transaction")
    finally:
        consumer.close()
    if transaction == TRANSACTIONS:
        return "lives"
    return f"ends {'making no progress' if aborted == PATIENCE else ended[0]}"


def java_runs(
    libs: Path, programs: Path, bootstrap: str, meets: str, runs: int, pause: Callable[[int], None]
) -> list[str]:
    """SampleLoop.java in one JVM with the client of `libs`, in the words of `confluent_run`."""
    argv = [tool("java"), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", *FAST_START]
    argv += ["-cp", f"{programs}:{libs}/*", "SampleLoop", bootstrap, meets, str(runs)]
    verdicts: list[str] = []
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        try:
            for line in child.stdout:
                if line == "paused\n":
                    pause(len(verdicts))
                    child.stdin.write("\n")
                    child.stdin.flush()
                else:
                    verdicts.append(line.strip())
        finally:
            child.kill()
            child.wait()
    return verdicts


# -- what happens to it ------------------------------------------------------------------------------------------------


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the loop does not come to its timeout"
        time.sleep(0.002)


def _time_out(broker: Minibroker, run: int) -> None:
    """The run's transaction, which is open, is past its timeout."""

    def advance(cluster: Any) -> None:
        entry = cluster.brokers[1].coordinators.transactions.describe(f"x-{run}")
        assert entry.metadata.state.label == "Ongoing"
        cluster.clock.advance(_PAST_IT_MS)
        assert entry.metadata.timed_out

    broker.cluster.run(advance)


def _wait_until_open(broker: Minibroker, run: int) -> None:
    """The first record of the run's transaction is written."""

    def is_open(cluster: Any) -> bool:
        entry = cluster.brokers[1].coordinators.transactions.describe(f"x-{run}")
        producers = cluster.brokers[1].partition("t", 0).log.producers
        return bool(producers.has_open_transaction(entry.metadata.producer_id, entry.epoch))

    _wait_until(lambda: broker.cluster.run(is_open))


def _time_out_at_offset_commits(broker: Minibroker, runs: int) -> threading.Thread:
    """Each run's second TxnOffsetCommit is held until its transaction has timed out."""
    rules = [broker.faults.inject("TxnOffsetCommit", Hold(), transactional_id=f"x-{run}", nth=2) for run in range(runs)]

    def hold_each() -> None:
        for run, rule in enumerate(rules):
            rule.wait(times=1, timeout=_SECONDS)
            _time_out(broker, run)
            rule.release()

    thread = threading.Thread(target=hold_each, daemon=True)
    thread.start()
    return thread


def runs_of(
    client: str, meets: str, level: int, runs: int, programs: Path | None = None, *, codes: str = "recoverable"
) -> list[str]:
    """One verdict a run, under `kip` at transaction.version `level`. Asserts what no run may do to the data, whether it
    lives or ends. `programs`: compiled classes, for Java. `codes`: another table of timed_out_codes."""
    config = {f"{SEMANTICS_PREFIX}timed_out_codes": codes}
    with Minibroker(topics={"t": 2}, semantics="kip", transaction_version=level, config=config) as broker:
        thread = _time_out_at_offset_commits(broker, runs) if meets == "offset-commit" else None
        servers = broker.bootstrap_servers

        def pause(run: int) -> None:
            _wait_until_open(broker, run)
            if thread is None:
                _time_out(broker, run)

        if client == CONFLUENT:
            verdicts = [confluent_run(servers, meets, run, partial(pause, run)) for run in range(runs)]
        else:
            assert programs is not None
            libs = kafka_libs(JAVA[client])
            verdicts = java_runs(libs, programs, servers, meets, runs, pause)
        if thread is not None:
            thread.join(_SECONDS)
            assert not thread.is_alive(), "a TxnOffsetCommit did not meet its timeout"
        assert len(verdicts) == runs, verdicts
        _check_data(broker, meets, verdicts)
    return verdicts


def _check_data(broker: Minibroker, meets: str, verdicts: Sequence[str]) -> None:
    """Nothing lost, doubled or torn; nothing left open by a run that lives, nor by any after the next timeout."""
    living = {run for run, verdict in enumerate(verdicts) if verdict == "lives"}
    assert not living & _still_open(broker)
    broker.cluster.run(lambda cluster: cluster.clock.advance(_PAST_IT_MS))
    assert not _still_open(broker)
    committed = Counter(_committed(broker))
    assert set(committed.values()) <= {1}, "doubled"
    parts = ["a", "b"] if meets in ("produce", "partition") else ["a"]
    for run in range(len(verdicts)):
        done = {t for t in range(TRANSACTIONS) if f"{run}:{t}:a" in committed}
        assert done == set(range(len(done))), "lost in between"
        assert run not in living or len(done) == TRANSACTIONS, "lost"
        for transaction in range(TRANSACTIONS):
            there = [part for part in parts if f"{run}:{transaction}:{part}" in committed]
            assert there in ([], parts), "torn"
        if meets in ("offsets", "offset-commit"):
            assert _committed_offset(broker, run) == (len(done) or None), "offsets without records"


def _still_open(broker: Minibroker) -> set[int]:
    """Runs with an open transaction in any partition, or at the coordinator."""

    def look(cluster: Any) -> set[int]:
        node = cluster.brokers[1]
        runs = {}
        ongoing = set()
        for _, shard in node.coordinators.transactions.host.shards():
            for name, entry in shard.entries.items():
                runs[entry.metadata.producer_id] = int(name.removeprefix("x-"))
                if entry.metadata.state.label not in ("Empty", "CompleteCommit", "CompleteAbort"):
                    ongoing.add(int(name.removeprefix("x-")))
        logs = [node.partition("t", 0).log, node.partition("t", 1).log]
        return ongoing | {runs[p] for log in logs for p in log.producers.open_transactions().values()}

    _wait_until(lambda: not any(label.startswith("Prepare") for label in _labels(broker)))
    return set(broker.cluster.run(look))


def _labels(broker: Minibroker) -> list[str]:
    def look(cluster: Any) -> list[str]:
        shards = cluster.brokers[1].coordinators.transactions.host.shards()
        return [entry.metadata.state.label for _, shard in shards for entry in shard.entries.values()]

    return list(broker.cluster.run(look))


def _committed(broker: Minibroker) -> list[str]:
    """Values of committed transactions, of both partitions, as the log has them."""

    def read(cluster: Any) -> list[bytes]:
        logs = [cluster.brokers[1].partition("t", index).log for index in (0, 1)]
        return [bytes(log.read(0, 1 << 24, bound=log.log_end_offset).records) for log in logs]

    done: list[str] = []
    for data in broker.cluster.run(read):
        running: dict[int, list[str]] = {}
        for position, _ in iter_batches(data):
            header = parse_header(data, position)
            records = decode_records(data, position, header, max_bytes=1 << 20)
            if header.is_control:
                values = running.pop(header.producer_id, [])
                done += values if parse_control(records[0]).type is ControlType.COMMIT else []
            else:
                running.setdefault(header.producer_id, []).extend(bytes(r.value or b"").decode() for r in records)
    return done


def _committed_offset(broker: Minibroker, run: int) -> int | None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"g-{run}")]).values()
    offsets = [partition.offset for partition in answer.result(_SECONDS).topic_partitions]
    return offsets[0] if offsets else None


# -- the table ---------------------------------------------------------------------------------------------------------


def measured(programs: Path) -> dict[str, dict[str, dict[str, Counts]]]:
    """Client → what meets the timeout → level → verdict → how many of RUNS."""
    counts: dict[str, dict[str, dict[str, Counts]]] = {}
    for client in CLIENTS:
        for meets in MEETS:
            for level in LEVELS:
                verdicts = Counter(runs_of(client, meets, level, RUNS, programs))
                print(client, meets, level, dict(verdicts), flush=True)
                counts.setdefault(client, {}).setdefault(meets, {})[str(level)] = dict(verdicts.most_common())
    return counts


def recorded() -> dict[str, dict[str, dict[str, Counts]]]:
    """What `measured` gave when the table was made."""
    counts: dict[str, dict[str, dict[str, Counts]]] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return counts


def table() -> str:
    """The part of docs/reference/semantics.md."""
    lines = [
        "| client | the timeout meets | transaction.version 1 | transaction.version 2 |",
        "|---|---|---|---|",
    ]
    for client, cells in recorded().items():
        alike: dict[str, list[str]] = {}
        for meets, levels in cells.items():
            texts = [", ".join(f"{verdict}: {count}" for verdict, count in levels[str(v)].items()) for v in LEVELS]
            alike.setdefault(" | ".join(texts), []).append(MEETS[meets])
        lines += [f"| {client} | {'; '.join(meets)} | {texts} |" for texts, meets in alike.items()]
    return "\n".join(lines)


def page() -> str:
    """docs/reference/semantics.md with the table in its place."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str]) -> int:
    if "--table" not in arguments:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as classes:
            programs = compile_java([JVM_TIER / "SampleLoop.java"], Path(classes))
            COUNTS.write_text(json.dumps(measured(programs), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
