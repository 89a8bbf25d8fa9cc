"""A dropped marker: what its coordinator decided, the commands that carry that out, and what the audit finds then."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dropped_marker import (
    AWAY,
    STOPPED,
    TOPIC,
    Dropped,
    committed_values,
    create_topic,
    drop_here,
    produce,
    start_offset,
    two_brokers,
)

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.hanging import find_hanging, open_transaction
from minibroker.client.topics import LATEST, READ_COMMITTED
from minibroker.client.transactions import TransactionsClient
from minibroker_protocol.errors import ApiError, ErrorCode

VERSIONS = (0, pytest.param(1, marks=pytest.mark.matrix), 2)
RECORDS = (TOPIC, AWAY)


def audited(bootstrap: str, out: Path) -> list[dict[str, Any]]:
    main(["audit", "--bootstrap", bootstrap, "--json", str(out)])
    return [one for one in json.loads(out.read_text())["shown"] if one["severity"] == "error"]


class Scene:
    """Two brokers on which a marker was dropped."""

    def __init__(self, broker: Minibroker, client: TransactionsClient, dropped: Dropped, out: Path) -> None:
        self.bootstrap = broker.bootstrap_servers
        self.client = client
        self.dropped = dropped
        self.out = out

    def end(self, action: str, place: tuple[str, int], *more: str) -> int:
        """The exit status of `minibroker transactions` for the transaction that is open there."""
        start = start_offset(self.client, self.dropped, place)
        words = ["--topic", place[0], "--partition", str(place[1]), "--start-offset", str(start)]
        return main(["transactions", action, "--bootstrap", self.bootstrap, *words, *more])

    def findings(self) -> list[dict[str, Any]]:
        return audited(self.bootstrap, self.out)

    def found(self) -> list[tuple[str, int, str, str]]:
        """What find-hanging says: partition, state and decision."""
        rows = find_hanging(self.client, [*self.client.leaders()], now_ms=0)
        return sorted((row.topic, row.partition, row.state, row.outcome) for row in rows)


Make = Callable[..., Scene]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Make]:
    opened: list[Any] = []

    def make(transaction_version: int = 2, *, commit: bool) -> Scene:
        broker = two_brokers(transaction_version).start()
        opened.append(broker.stop)
        dropped = drop_here(broker, commit=commit)
        client = TransactionsClient(broker.bootstrap_servers)
        opened.append(client.close)
        return Scene(broker, client, dropped, tmp_path / "audit.json")

    yield make
    for close in reversed(opened):
        close()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_committed_is_committed_by_hand(scene: Make, capsys: pytest.CaptureFixture[str], version: int) -> None:
    """Without a word of the records' age; an abort is refused, and lists what it would discard."""
    held = scene(version, commit=True)
    assert held.found() == [(*place, "CompleteCommit", "COMMIT") for place in sorted(held.dropped.places)]
    found = held.findings()
    assert [one["rule"] for one in found] == ["hanging-transaction"] * 2
    assert all("decided COMMIT" in one["message"] and "stop the producer" in one["message"] for one in found)
    capsys.readouterr()
    for place in held.dropped.places:
        assert held.end("abort", place, "--json") == 1
    said = capsys.readouterr()
    listed = [json.loads(line) for line in said.out.splitlines()]
    assert [(one["first_offset"], one["last_offset"], one["group_offsets"]) for one in listed] == [
        (0, 1, []),
        (0, 0, [f"{held.dropped.group}:{TOPIC}-0@1"]),
    ]
    assert said.err.count("--discard-committed") == 2
    assert held.end("commit", RECORDS, "--dry-run") == 0
    assert committed_values(held.bootstrap, AWAY) == []
    for place in held.dropped.places:
        assert held.end("commit", place) == 0
    assert committed_values(held.bootstrap, AWAY) == [b"a", b"b"]
    assert held.client.committed(held.dropped.group, TOPIC, 0) == (1, "")
    *_, (marker, _) = held.client.batches(*RECORDS, 0)
    decided = held.client.describe(held.dropped.producer.transactional_id)[1]
    assert (marker.is_control, marker.producer_epoch) == (True, decided.producer_epoch)
    assert (held.found(), held.findings()) == ([], [])
    next_transaction(held)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_aborted_is_aborted_by_hand(scene: Make, capsys: pytest.CaptureFixture[str], version: int) -> None:
    held = scene(version, commit=False)
    assert held.found() == [(*place, "CompleteAbort", "ABORT") for place in sorted(held.dropped.places)]
    assert [one["rule"] for one in held.findings()] == ["hanging-transaction"] * 2
    assert held.end("commit", RECORDS) == 1
    assert "its decision: ABORT" in capsys.readouterr().err
    for place in held.dropped.places:
        assert held.end("abort", place) == 0
    assert committed_values(held.bootstrap, AWAY) == []
    assert held.client.committed(held.dropped.group, TOPIC, 0) is None
    assert (held.found(), held.findings()) == ([], [])
    next_transaction(held)


@pytest.mark.parametrize(("version", "by_kafka"), [(0, False), (2, False), (0, True), (2, True)])
def test_what_an_abort_by_hand_discards_is_found_once(scene: Make, version: int, by_kafka: bool) -> None:
    """Kafka's tool writes the epochs that the leader has, not those of the decision."""
    held = scene(version, commit=True)
    place = RECORDS
    if by_kafka:
        kafka_abort(held, place)
    else:
        assert held.end("abort", place, "--discard-committed") == 0
    assert held.end("commit", held.dropped.places[1]) == 0
    (found,) = held.findings()
    assert (found["rule"], found["topic"], found["partition"]) == ("torn-transaction", *place)
    assert "offsets 0-1 are discarded" in found["message"]
    assert found["transactional_id"] == held.dropped.producer.transactional_id


def test_discarded_offsets_of_a_group_are_found_once(scene: Make) -> None:
    held = scene(commit=True)
    place = held.dropped.places[1]
    assert held.end("commit", RECORDS) == 0
    assert held.end("abort", place, "--discard-committed") == 0
    assert [(one["rule"], one["topic"], one["partition"]) for one in held.findings()] == [("torn-transaction", *place)]
    assert held.client.committed(held.dropped.group, TOPIC, 0) is None


def test_an_abort_that_kafkas_tool_carries_out_is_not_found(scene: Make) -> None:
    held = scene(commit=False)
    for place in held.dropped.places:
        kafka_abort(held, place)
    assert held.findings() == []


@pytest.mark.parametrize(("version", "commit"), [(0, False), (2, False), (2, True)])
def test_the_next_transaction_decides_about_the_records(scene: Make, version: int, commit: bool) -> None:
    """Why the runbook begins with stopping the producer."""
    held = scene(version, commit=commit)
    next_transaction(held, commit=not commit)
    assert committed_values(held.bootstrap, AWAY) == ([] if commit else [b"a", b"b", b"d"])


def kafka_abort(held: Scene, place: tuple[str, int]) -> None:
    """Admin.abortTransaction, with what DescribeProducers says."""
    start = start_offset(held.client, held.dropped, place)
    producer = open_transaction(held.client, *place, start).producer
    epochs = producer.producer_epoch, max(producer.coordinator_epoch, 0)
    held.client.write_marker(*place, producer.producer_id, *epochs, commit=False)


def next_transaction(held: Scene, *, commit: bool = True) -> None:
    """The producer goes on, in its next epoch where the first transaction raised it."""
    producer = held.dropped.producer
    _, known = held.client.describe(producer.transactional_id)
    bumped = known.producer_epoch > producer.producer_epoch
    going_on = producer._replace(producer_epoch=known.producer_epoch)
    produce(held.client, going_on, AWAY, b"d", sequence=0 if bumped else 2)
    held.client.end(going_on, commit=commit)
    held.client.patiently(lambda: _stable(held.client))


def _stable(client: TransactionsClient) -> None:
    if client.offset(TOPIC, AWAY, LATEST, READ_COMMITTED) < client.end_offset(TOPIC, AWAY):
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)


def test_a_commit_on_its_way_is_not_listed() -> None:
    """It is open when the leader is asked, and complete when the coordinator is."""
    asked: list[str] = []

    class Late(TransactionsClient):
        def list_transactions(self, *arguments: Any, **filters: Any) -> Any:
            if not asked:
                self.end(producer, commit=True)
                self.patiently(lambda: _stable(self))
            found = super().list_transactions(*arguments, **filters)
            asked.extend(one.transaction_state for _, one in found)
            return found

    with Minibroker(topics={TOPIC: 2}, ephemeral=True) as broker, Late(broker.bootstrap_servers) as client:
        producer = client.init_producer_id("checkout", 60_000)
        produce(client, producer, AWAY, b"a")
        assert find_hanging(client, [(TOPIC, AWAY)], older_than_ms=0, now_ms=1 << 60) == []
        assert asked == ["CompleteCommit"]


def test_a_partition_without_a_leader_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with two_brokers() as broker, TransactionsClient(broker.bootstrap_servers) as client:
        create_topic(client)
        broker.cluster.stop_broker(STOPPED)
        words = ["--bootstrap", broker.bootstrap_servers.split(",")[0], "--topic", TOPIC]
        assert main(["transactions", "find-hanging", *words]) == 0
        assert f"not asked, because they have no leader: {TOPIC}-{AWAY}" in capsys.readouterr().err
