"""The audit of a running cluster: batches as they are fetched, follow mode, and what cannot be read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline import command, topics
from minibroker_pipeline.command import plan_of
from minibroker_pipeline.follow import Follower
from minibroker_pipeline.topics import TopicClient, Topics
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import Record, build_batch


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Minibroker(ephemeral=True, topics={"good": 2, "bare": 1, "grows": 1}) as broker:
        client = TopicClient(broker.bootstrap_servers)
        for number in range(20):
            produce(client, "good", number % 2, number // 2 * 3)
        produce(client, "bare", 0, -1, producer_id=-1, producer_epoch=-1, transactional=True)
        yield broker.bootstrap_servers
        client.close()


def produce(client: TopicClient, topic: str, partition: int, sequence: int, **more: Any) -> None:
    """Three records of an idempotent producer."""
    fields: dict[str, Any] = {"producer_id": 4242, "producer_epoch": 0, "base_sequence": sequence, **more}
    records = [Record(number, 1_700_000_000_000, b"k", b"v") for number in range(3)]
    entry = ProduceRequest.PartitionProduceData(index=partition, records=bytes(build_batch(records, **fields)))
    request = ProduceRequest(
        transactional_id="t" if more.get("transactional") else None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[entry])],
    )
    answer = client.ask(client.leader(topic, partition), request, ProduceResponse, 7)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_clean_topic(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", bootstrap, "--topic", "good", "--json", "-"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["logs"], summary["batches"], summary["records"]) == (2, 20, 60)


def test_what_kafka_accepts_and_must_not(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", bootstrap, "--json", "-"]) == 1
    found = json.loads(capsys.readouterr().out)["shown"]
    assert [(one["rule"], one["topic"], one["first_offset"]) for one in found] == [("no-producer-id", "bare", 0)]
    assert main(found[0]["show"].split()[1:]) == 0
    assert "is_transactional: true" in capsys.readouterr().out


def test_pieces_and_parts_give_the_same(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offsets() -> list[int]:
        listed = Topics(bootstrap)
        parts = listed.list(["good"], [0]).parts
        from minibroker_protocol.records import iter_batches

        return [h.base_offset for part in parts for data, _ in listed.pieces(part) for _, h in iter_batches(data)]

    whole = offsets()
    assert whole == list(range(0, 30, 3))
    monkeypatch.setattr("minibroker.client.topics.FETCH_BYTES", 250)
    assert offsets() == whole
    monkeypatch.setattr(topics, "SPLIT_OFFSETS", 7)
    assert offsets() == whole


def test_following(bootstrap: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--bootstrap", bootstrap, "--topic", "grows"])
    client = TopicClient(bootstrap)
    produce(client, "grows", 0, 0)
    follower = Follower(plan_of(arguments), arguments)
    assert follower.round() == []
    for sequence in (3, 6, 9):
        produce(client, "grows", 0, sequence)
        follower.look()
        assert follower.round() == []
    rows = len(follower._rows)
    produce(client, "grows", 0, -1, producer_id=-1, producer_epoch=-1, transactional=True)
    follower.look()
    assert [(one.rule, one.first_offset) for one in follower.round()] == [("no-producer-id", 12)]
    follower.look()
    assert follower.round() == []
    assert follower.errors == 1
    assert rows == 2  # one run and one span, however many rounds
    client.close()


@pytest.mark.parametrize(("topic", "code", "said"), [("good", 0, ""), ("bare", 1, "error: no-producer-id: bare-0")])
def test_following_until_interrupted(
    topic: str,
    code: int,
    said: str,
    bootstrap: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = iter([None, KeyboardInterrupt])

    def sleep(_: float) -> None:
        if (wait := next(waits)) is not None:
            raise wait

    monkeypatch.setattr("minibroker_pipeline.follow.time.sleep", sleep)
    assert main(["audit", "--bootstrap", bootstrap, "--topic", topic, "--follow"]) == code
    printed = capsys.readouterr().out
    assert printed.startswith(said)
    assert printed.count("\n") == code  # once, however many rounds


@pytest.mark.parametrize(
    ("more", "reason"), [(["--topic", "nobody"], "UNKNOWN_TOPIC"), (["--partition", "9"], "no part")]
)
def test_what_is_not_there(bootstrap: str, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", bootstrap, *more]) == 2
    assert reason in capsys.readouterr().err


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "cannot connect" in capsys.readouterr().err
