"""A marker that Apache Kafka drops because its partition has no leader: found, and repaired as was decided."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dropped_marker import AWAY, TOPIC, committed_values, drop_marker, start_offset
from free_ports import free_ports
from real_kafka import RealKafka

from minibroker.cli import main
from minibroker.client.transactions import TransactionsClient

pytestmark = pytest.mark.jvm
SECOND = """\
process.roles=broker
node.id=2
controller.quorum.voters=1@127.0.0.1:{port}
listeners=PLAINTEXT://127.0.0.1:{own}
"""


@pytest.fixture
def brokers() -> Iterator[tuple[RealKafka, RealKafka]]:
    first = RealKafka()
    (port,) = free_ports(1)
    second = RealKafka(SECOND.format(port=first.controller_port, own=port), port)
    try:
        for kafka in (first, second):
            kafka.start()
        for kafka in (first, second):
            kafka.wait()
        yield first, second
    finally:
        second.close()
        first.close()


def test_kafka_drops_the_marker_of_a_partition_without_a_leader(
    brokers: tuple[RealKafka, RealKafka], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records are committed by hand, the offsets of the group discarded."""
    first, second = brokers

    def start() -> None:
        second.start()
        second.wait()

    def audit() -> list[tuple[str, str, int]]:
        out = tmp_path / "audit.json"
        main(["audit", "--bootstrap", first.bootstrap, "--json", str(out)])
        shown = json.loads(out.read_text())["shown"]
        return sorted((one["rule"], one["topic"], one["partition"]) for one in shown if one["severity"] == "error")

    dropped = drop_marker(first.bootstrap, second.stop, start, commit=True)
    assert committed_values(first.bootstrap, AWAY) == []
    assert audit() == [("hanging-transaction", *place) for place in sorted(dropped.places)]
    capsys.readouterr()
    assert main(["transactions", "find-hanging", "--bootstrap", first.bootstrap, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((row["topic"], row["partition"]) for row in rows) == sorted(dropped.places)
    assert {(row["state"], row["decision"]) for row in rows} == {("CompleteCommit", "COMMIT")}
    status = {}
    with TransactionsClient(first.bootstrap) as client:
        for place in dropped.places:
            words = ["--bootstrap", first.bootstrap, "--topic", place[0], "--partition", str(place[1])]
            words += ["--start-offset", str(start_offset(client, dropped, place))]
            status[place] = [main(["transactions", "abort", *words])]
            ending = ["commit", *words] if place[0] == TOPIC else ["abort", *words, "--discard-committed"]
            status[place].append(main(["transactions", *ending]))
    assert list(status.values()) == [[1, 0], [1, 0]]
    assert committed_values(first.bootstrap, AWAY) == [b"a", b"b"]
    assert audit() == [("torn-transaction", *dropped.places[1])]
