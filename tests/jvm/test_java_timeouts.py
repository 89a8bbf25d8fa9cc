"""Kafka's Java client in a milder loop than KIP-588's (TimeoutLoop.java), and against brokers that forgot it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jvm import java_command

from minibroker import Minibroker
from minibroker.config.keys import SEMANTICS_PREFIX

pytestmark = pytest.mark.jvm

PAST_THE_TIMEOUT_MS = 75_000
SECONDS = 90.0
INPUT = [str(number) for number in range(6)]


def _loop(programs: Path, broker: Minibroker, place: str, disturb: Callable[[], object]) -> list[str]:
    """What the loop printed; `disturb` runs while it waits at `place`."""
    argv = java_command("TimeoutLoop", broker.bootstrap_servers, place, extra=(programs,))
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        try:
            assert child.stdout.readline() == "paused\n"
            disturb()
            said, _ = child.communicate("\n", SECONDS)
        finally:
            child.kill()
            child.wait()
    return said.splitlines()


def _committed(broker: Minibroker) -> list[str]:
    """Values of partition 0 of ``t`` in committed transactions."""
    from minibroker_protocol.records import ControlType, decode_records, iter_batches, parse_control, parse_header

    def read(cluster: object) -> bytes:
        log = cluster.brokers[1].partition("t", 0).log  # type: ignore[attr-defined]
        return bytes(log.read(log.log_start_offset, 1 << 20, bound=log.log_end_offset).records)

    data = broker.cluster.run(read)
    done: list[str] = []
    running: dict[int, list[str]] = {}
    for position, _ in iter_batches(data):
        header = parse_header(data, position)
        records = decode_records(data, position, header, max_bytes=1 << 20)
        if header.is_control:
            values = running.pop(header.producer_id, [])
            if parse_control(records[0]).type is ControlType.COMMIT:
                done += values
        else:
            running.setdefault(header.producer_id, []).extend(bytes(r.value or b"").decode() for r in records)
    return done


def _time_out(broker: Minibroker) -> None:
    broker.cluster.run(lambda cluster: cluster.clock.advance(PAST_THE_TIMEOUT_MS))


ABORTABLE = "aborts on TransactionAbortableException"
OLD_EPOCH = "aborts on InvalidProducerEpochException"
UNKNOWN = "aborts on UnknownProducerIdException"


@pytest.mark.parametrize(
    ("place", "level", "story"),
    [
        ("produce", 1, [OLD_EPOCH, UNKNOWN, "done"]),
        ("end", 1, [ABORTABLE, UNKNOWN, "done"]),
        ("produce", 2, [OLD_EPOCH, "done"]),
        ("end", 2, [ABORTABLE, "done"]),
    ],
)
@pytest.mark.seed("588-3", "588-5", "588-8", "588-9", semantics="kip", how="Java, a loop that flushes")
def test_java_lives_through_a_timeout(programs: Path, place: str, level: int, story: list[str]) -> None:
    """The abort succeeds. At 1 the next transaction is told to abort once more, and then the client claims the new
    epoch, which this loop takes; at 2 the answer to the abort has it."""
    with Minibroker(topics={"t": 1}, semantics="kip", transaction_version=level) as broker:
        said = _loop(programs, broker, place, lambda: _time_out(broker))
        # Noticed in Produce, the client may claim the new epoch with the abort already.
        assert said == story or (place == "produce" and said == [OLD_EPOCH, "done"])
        assert _committed(broker) == INPUT


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.seed("588-2", "588-6", "588-8", "588-9", semantics="kafka", how="Java, a loop that flushes")
def test_java_ends_fenced_below_transaction_version_2(programs: Path, level: int) -> None:
    for place in ("produce", "end"):
        with Minibroker(topics={"t": 1}, transaction_version=level) as broker:
            said = _loop(programs, broker, place, lambda broker=broker: _time_out(broker))  # type: ignore[misc]
            if place == "produce":
                assert said[0] == OLD_EPOCH
                assert said[1].startswith("ends on ProducerFencedException")
            else:
                assert said == ["closed on ProducerFencedException"]
            # Java asks in versions that know PRODUCER_FENCED.
            told = {(r.api, r.code) for r in broker.refusals() if r.api in ("EndTxn", "AddPartitionsToTxn")}
            assert {code for _, code in told} == {90}
            assert _committed(broker) == INPUT[:2]


@pytest.mark.seed("588-2", "588-5", "588-8", "588-9", semantics="kafka", how="Java, a loop that flushes")
def test_java_with_transaction_version_2(programs: Path) -> None:
    """Noticed in Produce, EndTxn v5 hands out the new epoch; noticed in the commit, the client ends."""
    with Minibroker(topics={"t": 1}) as broker:
        assert _loop(programs, broker, "produce", lambda: _time_out(broker)) == [OLD_EPOCH, "done"]
        assert _committed(broker) == INPUT
    with Minibroker(topics={"t": 1}) as broker:
        said = _loop(programs, broker, "end", lambda: _time_out(broker))
        assert said[0] == "aborts on InvalidTxnStateException"
        assert said[1].startswith("ends on KafkaException")
        assert _committed(broker) == INPUT[:2]


@pytest.mark.parametrize(
    ("cause", "story", "left"),
    [
        ("delete-records", ["done"], INPUT[2:]),
        ("lost-tail", [UNKNOWN, "done"], INPUT[2:]),
        ("expiration", [UNKNOWN, "done"], INPUT),
    ],
)
@pytest.mark.seed("oos-1", "oos-2", "oos-3", "360-10", "360-11", semantics="kip", how="Java")
def test_java_goes_on_after_its_state_is_gone(programs: Path, cause: str, story: list[str], left: list[str]) -> None:
    """Truncated, as the log start offset says, it sends again at once; otherwise it aborts."""
    with Minibroker(topics={"t": 1}, semantics="kip", transaction_version=1) as broker:
        offset = 0 if cause == "lost-tail" else None

        def lose() -> object:
            return broker.cluster.lose_producers("t", cause=cause, offset=offset)  # type: ignore[arg-type]

        assert _loop(programs, broker, "begin", lose) == story
        assert _committed(broker) == left
        assert [r.error for r in broker.refusals() if r.api == "Produce"] == ["UNKNOWN_PRODUCER_ID"]


@pytest.mark.parametrize(("cause", "left"), [("delete-records", INPUT[2:]), ("expiration", INPUT)])
@pytest.mark.seed("oos-1", semantics="kip", how="Java")
def test_java_begins_each_transaction_anew_with_transaction_version_2(
    programs: Path, cause: str, left: list[str]
) -> None:
    """Every end bumps the epoch: what the partition has forgotten between two transactions it is not asked for."""
    with Minibroker(topics={"t": 1}, semantics="kip") as broker:
        said = _loop(programs, broker, "begin", lambda: broker.cluster.lose_producers("t", cause=cause))  # type: ignore[arg-type]
        assert said == ["done"]
        assert _committed(broker) == left
        assert [r.error for r in broker.refusals() if r.api == "Produce"] == []


@pytest.mark.seed("360-17", "447-10", semantics="kafka kip", how="Java")
def test_java_resets_its_sequence_and_keeps_its_epoch(programs: Path) -> None:
    """Where the log start says that its records were truncated. Kafka since 2.4 forgets no producer for that."""
    forgets = {f"{SEMANTICS_PREFIX}forget_with_records": True}
    older: dict[str, Any] = {"as_version": "2.3"}
    for kind in (older, {"semantics": "kip", "transaction_version": 1, "config": forgets}):
        with Minibroker(topics={"t": 1}, **kind) as broker:

            def delete_records(broker: Minibroker = broker) -> object:
                return broker.cluster.run(lambda cluster: cluster.brokers[1].partition("t", 0).log.delete_records(-1))

            assert _loop(programs, broker, "begin", delete_records) == ["done"]
            assert _committed(broker) == INPUT[2:]
            assert [r.error for r in broker.refusals() if r.api == "Produce"] == ["UNKNOWN_PRODUCER_ID"]

            def left(cluster: Any) -> list[tuple[int, int]]:
                active = cluster.brokers[1].partition("t", 0).log.producers.active()
                return [(producer.producer_epoch, producer.last_sequence) for producer in active]

            assert broker.cluster.run(left) == [(0, 3)]


@pytest.mark.seed("360-13", semantics="kafka", how="Java")
def test_java_skips_its_bump_with_an_older_broker(programs: Path) -> None:
    """2.3 has no InitProducerId that takes an epoch: the client aborts and goes on at the epoch it has."""
    older: dict[str, object] = {"as_version": "2.3"}
    newer: dict[str, object] = {"semantics": "kip", "transaction_version": 1}
    for kind, bumps in ((older, False), (newer, True)):
        with Minibroker(topics={"t": 1}, **kind) as broker:  # type: ignore[arg-type]

            def lose(broker: Minibroker = broker) -> object:
                return broker.cluster.lose_producers("t", cause="expiration")

            def epochs(cluster: object) -> list[int]:
                log = cluster.brokers[1].partition("t", 0).log  # type: ignore[attr-defined]
                return [producer.producer_epoch for producer in log.producers.active()]

            assert _loop(programs, broker, "begin", lose) == [UNKNOWN, "done"]
            assert _committed(broker) == INPUT
            assert (max(broker.cluster.run(epochs)) > 0) == bumps
