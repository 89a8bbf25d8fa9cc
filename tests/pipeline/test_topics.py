"""The audit of a running cluster: batches as they are fetched, follow mode, and what cannot be read."""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline import audit_command as command
from minibroker_pipeline.audit_command import plan_of
from minibroker_pipeline.files import NotReadable
from minibroker_pipeline.follow import FollowingAudit, follow
from minibroker_pipeline.topics import SPLIT_OFFSETS, TopicClient, Topics
from minibroker_protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import Record, build_batch, iter_batches


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Minibroker(ephemeral=True, topics={"good": 2, "bare": 1, "grows": 1}) as broker:
        client = TopicClient(broker.bootstrap_servers)
        for number in range(20):
            produce(client, "good", number % 2, number // 2 * 3)
        produce(client, "bare", 0, -1, producer_id=-1, producer_epoch=-1, transactional=True)
        yield broker.bootstrap_servers
        client.close()


def produce(
    client: TopicClient, topic: str, partition: int, sequence: int, *, value: bytes = b"v", **more: Any
) -> None:
    """Three records of an idempotent producer."""
    fields: dict[str, Any] = {"producer_id": 4242, "producer_epoch": 0, "base_sequence": sequence, **more}
    records = [Record(number, 1_700_000_000_000, b"k", value) for number in range(3)]
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
    kept = Topics(bootstrap)
    fetched = [data for part in kept.list(["good"]).parts for data, _ in kept.pieces(part)]
    assert (summary["files"], summary["bytes"]) == (0, sum(map(len, fetched)))
    assert main(["audit", "--bootstrap", bootstrap, "--topic", "good"]) == 0
    assert capsys.readouterr().out.startswith(f"2 logs, {summary['bytes']:,} bytes\n")


def test_what_kafka_accepts_and_must_not(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", bootstrap, "--json", "-"]) == 1
    found = json.loads(capsys.readouterr().out)["shown"]
    assert [(one["rule"], one["topic"], one["first_offset"]) for one in found] == [("no-producer-id", "bare", 0)]
    assert main(found[0]["show"].split()[1:]) == 0
    assert "is_transactional: true" in capsys.readouterr().out


@pytest.mark.parametrize("at_once", [1 << 20, 1024])
def test_pieces_and_parts_give_the_same(at_once: int) -> None:
    """Whether the brokers give all of them in one fetch, or two batches in each."""
    with Minibroker(ephemeral=True, topics={"long": 1}, config={"fetch.max.bytes": at_once}) as broker:
        with TopicClient(broker.bootstrap_servers) as client:
            for number in range(10):
                produce(client, "long", 0, number * 3, value=bytes(120))

        def offsets(split_offsets: int = SPLIT_OFFSETS) -> list[list[int]]:
            listed = Topics(broker.bootstrap_servers, split_offsets=split_offsets)
            parts = listed.list(["long"], [0]).parts
            return [[h.base_offset for _, h in iter_batches(data)] for one in parts for data, _ in listed.pieces(one)]

        pieces = offsets()
        assert (len(pieces) == 1) == (at_once > 1024)
        assert [*chain(*pieces)] == [*chain(*offsets(7))] == list(range(0, 30, 3))


def test_following(bootstrap: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--bootstrap", bootstrap, "--topic", "grows"])
    client = TopicClient(bootstrap)
    produce(client, "grows", 0, 0)
    follower = FollowingAudit(plan_of(arguments), arguments)
    assert follower.round() == []
    for sequence in (3, 6, 9):
        produce(client, "grows", 0, sequence)
        follower.look()
        assert follower.round() == []
    rows = follower.kept
    produce(client, "grows", 0, -1, producer_id=-1, producer_epoch=-1, transactional=True)
    follower.look()
    assert [(one.rule, one.first_offset) for one in follower.round()] == [("no-producer-id", 12)]
    follower.look()
    assert follower.round() == []
    assert follower.errors == 1
    assert rows == 2  # one producer and one span, however many rounds
    client.close()


def following(bootstrap: str, *chosen: str) -> FollowingAudit:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    topics = [word for topic in chosen for word in ("--topic", topic)]
    arguments = parser.parse_args(["--bootstrap", bootstrap, *topics])
    return FollowingAudit(plan_of(arguments), arguments)


def found(follower: FollowingAudit) -> list[tuple[str, str, int]]:
    return [(one.rule, str(one.log), one.first_offset) for one in follower.round()]


def test_following_a_topic_that_is_made_again() -> None:
    """What is wrong in the new one is found below the old end too, and told although it looked the same in the old."""
    bare = {"producer_id": -1, "producer_epoch": -1, "transactional": True}
    with Minibroker(ephemeral=True, topics={"t": 1, "other": 1}) as broker:
        client = TopicClient(broker.bootstrap_servers)

        def delete(topic: str) -> None:
            request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
            assert client.ask_any(request, DeleteTopicsResponse, 3).responses[0].error_code == 0

        produce(client, "t", 0, -1, **bare)
        produce(client, "t", 0, 0)
        follower = following(broker.bootstrap_servers, "t", "other")
        assert found(follower) == [("no-producer-id", "t-0", 0)]
        assert follower.look() == []
        delete("t")
        assert follower.look() == ["notice: t-0 is not in the cluster any more; it is not judged"]
        assert found(follower) == []
        assert not follower.figures.present
        delete("other")
        with pytest.raises(NotReadable, match="not in the cluster: t, other"):
            follower.look()
        broker.state.create_topic(topic="t", partitions=1)
        produce(client, "t", 0, -1, **bare)
        assert follower.look() == ["notice: other-0 is not in the cluster any more; it is not judged"]
        assert found(follower) == [("no-producer-id", "t-0", 0)]
        delete("t")
        broker.state.create_topic(topic="t", partitions=1)
        produce(client, "t", 0, -1, **bare)
        assert follower.look() == [
            "notice: t-0: the topic was deleted and made again after offset 3; it is judged anew from its start"
        ]
        assert found(follower) == [("no-producer-id", "t-0", 0)]
        client.close()


def test_following_a_log_whose_records_are_deleted_unread_or_truncated() -> None:
    with Minibroker(ephemeral=True, topics={"t": 1}) as broker:
        client = TopicClient(broker.bootstrap_servers)
        produce(client, "t", 0, 0)
        follower = following(broker.bootstrap_servers, "t")
        assert found(follower) == []
        broker.state.delete_records(topic="t", partition=0, offset=3)  # all were read
        for sequence in (3, 6, 9):
            produce(client, "t", 0, sequence)
        assert follower.look() == []
        assert found(follower) == []
        produce(client, "t", 0, 12)
        produce(client, "t", 0, 15)
        broker.state.delete_records(topic="t", partition=0, offset=15)
        assert follower.look() == [
            "notice: t-0: offsets 12 to 15 were deleted before they were read; it is judged anew from its start"
        ]
        assert found(follower) == []
        broker.state.truncate_tail(topic="t", partition=0, offset=16)
        (said,) = follower.look()
        assert said.startswith(
            "notice: t-0: the log was truncated to offset 16 after it was read up to 18; it is judged"
        )
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
    assert printed.count("no-producer-id") == code  # once, however many rounds
    assert printed.count("kafka-console-consumer.sh --bootstrap-server ") == code  # and what can be done


def scraped(bootstrap: str, *topics: str, rounds: list[Callable[[], object]]) -> tuple[str, str]:
    """The page of metrics and what was printed, after rounds that each of `rounds` follows."""
    steps, page, lines = iter(rounds), "", list[str]()

    def sleep(_: float) -> None:
        nonlocal page
        where = next(line for line in lines if line.startswith("metrics=")).removeprefix("metrics=")
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    chosen = [word for topic in topics for word in ("--topic", topic)]
    options = ["--bootstrap", bootstrap, "--follow", "--metrics", "127.0.0.1:0", *chosen]
    arguments = parser.parse_args(options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minibroker_pipeline.follow.time.sleep", sleep)
        follow(plan_of(arguments), arguments, lines.append)
    return page, "\n".join(lines)


def test_metrics_of_what_is_found(bootstrap: str) -> None:
    pytest.importorskip("prometheus_client")
    page, printed = scraped(bootstrap, "bare", "good", rounds=[lambda: None])
    assert 'minibroker_audit_findings{rule="no-producer-id",severity="error"} 1.0' in page
    assert 'minibroker_audit_findings{rule="duplicate",severity="error"} 0.0' in page
    assert 'minibroker_audit_found_total{rule="no-producer-id",severity="error"} 1.0' in page
    assert "minibroker_audit_records_total 63.0" in page
    assert "minibroker_audit_rounds_total 2.0" in page
    assert "minibroker_audit_failedrounds_total 0.0" in page
    (last,) = re.findall(r"^minibroker_audit_lastroundtimestampseconds (.+)$", page, re.MULTILINE)
    assert 0 <= time.time() - float(last) < 600
    assert printed.count("no-producer-id") == 1


def test_open_transactions_are_measured_until_they_end() -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("confluent_kafka")
    from abandoned import ID, abandon

    with Minibroker(ephemeral=True) as broker:
        where = broker.bootstrap_servers
        abandon(where)
        page, _ = scraped(where, "t", rounds=[])
        assert 'minibroker_audit_opentransactions{partition="1",topic="t"} 1.0' in page
        assert 'minibroker_audit_oldestopentransactionseconds{partition="1",topic="t"}' in page
        end = ["transactions", "abort", "--bootstrap", where, "--transactional-id", ID]
        page, _ = scraped(where, "t", rounds=[lambda: main(end), lambda: None])
        assert "opentransactions{" not in page


def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    broker = Minibroker(data_dir=tmp_path, topics={"t": 1})
    broker.start()
    client = TopicClient(where := broker.bootstrap_servers)
    produce(client, "t", 0, 0)
    client.close()
    again = Minibroker(data_dir=tmp_path, port=int(where.rpartition(":")[2]))
    page, _ = scraped(where, "t", rounds=[broker.stop, lambda: None, again.start, lambda: None])
    again.stop()
    assert "minibroker_audit_records_total 3.0" in page  # nothing was read twice
    assert "minibroker_audit_failedrounds_total 2.0" in page
    assert capsys.readouterr().err.count("trying again") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["DATA_DIR", "--metrics", "127.0.0.1:0"], "--metrics goes with --follow"),
        (["--bootstrap", "{}", "--follow", "--metrics", "9404"], "the address of the metrics is HOST:PORT, not '9404'"),
    ],
)
def test_metrics_that_cannot_be_served(
    options: list[str], reason: str, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *(word.format(bootstrap) for word in options)]) == 2
    assert capsys.readouterr().err == f"minibroker audit: {reason}\n"


@pytest.mark.parametrize(
    ("more", "reason"), [(["--topic", "nobody"], "UNKNOWN_TOPIC"), (["--partition", "9"], "no part")]
)
def test_what_is_not_there(bootstrap: str, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", bootstrap, *more]) == 2
    assert reason in capsys.readouterr().err


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "cannot connect" in capsys.readouterr().err
