"""The audit of a cluster that writes on while it is listed and read finds nothing, however long that takes."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyarrow")

from minibroker import Proxy
from minibroker.cli import main
from minibroker.client.topics import LATEST
from minibroker.client.transactional import BUMPS_EPOCH, Producer, TransactionalClient
from minibroker.control.client import Faults
from minibroker.faults import Hold
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline import audit_command as command
from minibroker_pipeline.audit_command import plan_of
from minibroker_pipeline.follow import FollowingAudit
from minibroker_pipeline.topics import TopicClient
from minibroker_protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from minibroker_protocol.records import Record, build_batch

T = TypeVar("T")
FETCHED_AT_ONCE = 1024
"""Bytes: the fewest that a broker can be told, less than a batch here."""
CONFIG = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
OUTCOMES = "CCACCAAC"
PLAIN = Producer(None, -1, -1)  # type: ignore[arg-type]
"""Writes outside transactions."""
OLD = 1
"""The transaction.version below which an epoch has many transactions."""


class Load:
    """Transactions on both partitions of `t` and in the offsets of a group, one request after the other."""

    def __init__(self, bootstrap: str, version: int, transactional_id: str = "load") -> None:
        self.client = TransactionalClient(bootstrap)
        self._version, self._id = version, transactional_id
        self._steps = self._run()
        self.ended = 0

    def step(self) -> None:
        next(self._steps)

    def _run(self) -> Iterator[None]:
        producer: Producer | None = None
        sequence = 0
        while True:
            if producer is None or self._version == BUMPS_EPOCH:
                producer = self.client.init_producer_id(self._id, 60_000, transaction_version=self._version)
                sequence = 0
                yield
            if self._version < BUMPS_EPOCH:
                self.client.add_partitions(producer, "t", [0, 1])
                self.client.add_group(producer, "g")
                yield
            for partition in (0, 1):
                self.client.produce(producer, "t", partition, _batch(producer, sequence))
                yield
            sequence += 1
            self.client.commit_offset(producer, "g", "t", 0, self.ended, "")
            yield
            self.client.end(producer, commit=OUTCOMES[self.ended % len(OUTCOMES)] == "C")
            self.ended += 1
            yield


def _batch(producer: Producer, sequence: int) -> bytes:
    records = [Record(0, 1_700_000_000_000, b"k", b"v" * FETCHED_AT_ONCE)]
    who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "base_sequence": sequence}
    return bytes(build_batch(records, transactional=True, **who))


def _create(client: TransactionalClient, topic: str, partitions: int) -> None:
    wanted = [CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)]
    answer = client.ask_any(CreateTopicsRequest(topics=wanted, timeout_ms=10_000), CreateTopicsResponse, 5)
    assert [one.error_code for one in answer.topics] == [0]


def while_it_runs(faults: Faults, run: Callable[[], T], step: Callable[[int], None], api: str, **match: Any) -> T:
    """What `run` gives, with a step before the answer to each of its requests of this kind: they wait for it.

    step: is given the request's number, from 0 on.
    """
    with ThreadPoolExecutor(1) as pool, faults.inject(api, Hold(), times=None, **match) as asked:
        running, taken = pool.submit(run), 0
        while not wait([running], 0.002).done:
            while asked.held:
                try:
                    step(taken)
                finally:
                    asked.release(1)
                taken += 1
        return running.result()


@pytest.fixture(params=[BUMPS_EPOCH, OLD])
def load(request: pytest.FixtureRequest) -> Iterator[tuple[Minibroker, Load]]:
    with Minibroker(ephemeral=True, transaction_version=request.param, topics={"t": 2}, config=CONFIG) as broker:
        running = Load(broker.bootstrap_servers, request.param)
        for _ in range(40):
            running.step()
        yield broker, running
        running.client.close()


def few_steps(load: Load) -> Callable[[int], None]:
    """Between any two questions for an offset the producer goes on by a few requests."""

    def step(number: int) -> None:
        for _ in range(number % 5):
            load.step()

    return step


@pytest.mark.parametrize("audits", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_cluster_that_works_while_it_is_listed(audits: int, load: tuple[Minibroker, Load], tmp_path: Path) -> None:
    broker, running = load
    audit = ["audit", "--bootstrap", broker.bootstrap_servers, "--json", str(tmp_path / "s.json")]
    for number in range(audits):
        ended = running.ended
        assert while_it_runs(broker.faults, lambda: main(audit), few_steps(running), "ListOffsets") == 0
        assert json.loads((tmp_path / "s.json").read_text())["shown"] == []
        assert running.ended > ended + 2, number


@pytest.mark.slow
@pytest.mark.jvm
@pytest.mark.parametrize("release", ["4.3.1", "4.4.0"])
def test_kafka_that_works_while_it_is_listed(release: str, tmp_path: Path) -> None:
    """Twenty audits with its own fifty partitions of either coordinator's topic, and eighty of a quick listing."""
    from real_kafka import real_kafka

    with real_kafka(release=release) as bootstrap, Proxy(bootstrap) as proxy:
        running = Load(bootstrap, BUMPS_EPOCH), Load(bootstrap, OLD, "old")
        _create(running[0].client, "t", 2)

        def step(number: int) -> None:
            if number % 2 == 0:
                running[number // 2 % 2].step()

        audit = ["audit", "--bootstrap", proxy.bootstrap_servers, "--json", str(tmp_path / "s.json")]
        for number in range(100):
            chosen = [] if number < 20 else ["--topic", "t", "--topic", "__transaction_state", "--partition", "0"]
            assert while_it_runs(proxy.faults, partial(main, [*audit, *chosen]), step, "ListOffsets") == 0
            assert json.loads((tmp_path / "s.json").read_text())["shown"] == []
        assert all(one.ended > 100 for one in running)
        for one in running:
            one.client.close()


def test_a_cluster_that_works_while_it_is_followed(load: tuple[Minibroker, Load]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--bootstrap", load[0].bootstrap_servers])

    def followed() -> list[str]:
        follower = FollowingAudit(plan_of(arguments), arguments)
        found = follower.round()
        for _ in range(5):
            follower.look()
            found += follower.round()
        return [str(one) for one in found]

    assert while_it_runs(load[0].faults, followed, few_steps(load[1]), "ListOffsets") == []
    assert load[1].ended > 12


def test_decisions_that_are_read_again(load: tuple[Minibroker, Load], tmp_path: Path) -> None:
    """The coordinator's log lost its last records: all logs are read again with it, as its markers were dropped."""
    path = tmp_path / "checkpoint"
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--bootstrap", load[0].bootstrap_servers, "--checkpoint", str(path)])
    follower = FollowingAudit(plan_of(arguments), arguments)
    assert follower.round() == []
    follower.save()
    kept = json.loads(path.read_text())
    for log, _, position in kept["seen"]:
        position[0] += 1000 * (log[1] == "__transaction_state")
    path.write_text(json.dumps(kept))
    follower = FollowingAudit(plan_of(arguments), arguments)
    said = follower.look()
    assert "truncated" in said[0]
    assert said[-1] == "notice: all logs are judged anew with it"
    assert [str(one) for one in follower.round()] == []
    assert follower.look() == []
    assert follower.round() == []


@pytest.mark.slow
@pytest.mark.jvm
def test_kafka_that_works_while_it_is_followed(tmp_path: Path) -> None:
    """With its own fifty partitions of either coordinator's topic, and a new start after every tenth round."""
    from real_kafka import real_kafka

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with real_kafka(release="4.4.0") as bootstrap:
        running = Load(bootstrap, BUMPS_EPOCH), Load(bootstrap, OLD, "old")
        _create(running[0].client, "t", 2)
        arguments = parser.parse_args(["--bootstrap", bootstrap, "--checkpoint", str(tmp_path / "checkpoint")])
        found, kept = [], []
        for number in range(40):
            for _ in range(20):
                for load in running:
                    load.step()
            if not number % 10:
                follower = FollowingAudit(plan_of(arguments), arguments)
                assert follower.resumed == bool(number)
            follower.look()
            found += [str(one) for one in follower.round()]
            follower.save()
            kept.append(follower.kept)
        assert found == []
        assert sum(load.ended for load in running) > 100
        assert max(kept[20:]) <= max(kept[10:20]) + 20, kept
        print(f"{sum(load.ended for load in running)} transactions, rows kept after each tenth round {kept[9::10]}")
        for load in running:
            load.client.close()


@pytest.mark.parametrize(("as_of", "rules"), [([], []), (["--as-of", "{later}"], ["hanging-transaction"])])
def test_the_time_of_a_followed_cluster(as_of: list[str], rules: list[str], tmp_path: Path) -> None:
    """In a rehearsal whose clock is an hour ahead a transaction of a minute is late; a new start knows of it."""
    with Minibroker(ephemeral=True, topics={"t": 1}, config=CONFIG) as broker:
        client = TransactionalClient(broker.bootstrap_servers)
        producer = client.init_producer_id("open", 60_000, transaction_version=BUMPS_EPOCH)
        client.produce(producer, "t", 0, _batch(producer, 0))
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        words = [word.format(later=broker.clock.now_ms + 3_600_000) for word in as_of]
        words += ["--checkpoint", str(tmp_path / "checkpoint")]
        arguments = parser.parse_args(["--bootstrap", broker.bootstrap_servers, *words])
        follower = FollowingAudit(plan_of(arguments), arguments)
        assert [one.rule for one in follower.round()] == rules
        follower.save()
        assert FollowingAudit(plan_of(arguments), arguments).errors == len(rules)
        client.close()


@pytest.mark.parametrize("version", [BUMPS_EPOCH, OLD])
def test_a_topic_made_again(version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its predecessor's transactions stay in `__transaction_state`, which has names only."""
    with Minibroker(data_dir=str(tmp_path / "data"), transaction_version=version, topics={"t": 2}, config=CONFIG) as b:
        load = Load(b.bootstrap_servers, version)
        while load.ended < 6:
            load.step()
        load.client.ask_any(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), DeleteTopicsResponse, 5)
        _create(load.client, "t", 2)
        assert main(["audit", "--bootstrap", b.bootstrap_servers]) == 0  # nothing in it yet
        other = Load(b.bootstrap_servers, version, "other")
        while other.ended < 3:
            other.step()
        assert main(["audit", "--bootstrap", b.bootstrap_servers]) == 0
        for one in (load, other):
            one.client.close()
    assert main(["audit", str(tmp_path / "data")]) == 0
    printed = capsys.readouterr().out
    notice = "notice: torn-transaction: t-{}: nothing is left of 6 transactions that ended before the topic's first"
    assert [printed.count(notice.format(partition)) for partition in (0, 1)] == [3, 3]


@pytest.mark.parametrize(("fetches", "below"), [(0, 1000), (2, 9)])
def test_records_that_are_deleted_while_they_are_read(fetches: int, below: int, tmp_path: Path) -> None:
    """Retention is faster than the audit: before it reads `t-0`, or after some fetches of a batch each; up to an offset
    within the log, or all of it."""
    config = {**CONFIG, "fetch.max.bytes": FETCHED_AT_ONCE}
    with Minibroker(ephemeral=True, topics={"t": 2}, config=config) as broker:
        load = Load(broker.bootstrap_servers, BUMPS_EPOCH)
        while load.ended < 8:
            load.step()
        with TopicClient(broker.bootstrap_servers) as client:
            end = client.position("t", 0, LATEST).offset
        asked = []

        def step(number: int) -> None:
            asked.append(number)
            if number == fetches:
                _delete_records(load.client, min(below, end))

        summary = tmp_path / "s.json"
        audit = partial(main, ["audit", "--bootstrap", broker.bootstrap_servers, "--json", str(summary)])
        assert while_it_runs(broker.faults, audit, step, "Fetch", topic="t", partition=0) == 0
        assert json.loads(summary.read_text())["shown"] == []
        assert len(asked) > fetches
        load.client.close()


def _delete_records(client: TransactionalClient, below: int) -> None:
    kind = DeleteRecordsRequest
    partition = kind.DeleteRecordsPartition(partition_index=0, offset=below)
    topics = [kind.DeleteRecordsTopic(name="t", partitions=[partition])]
    answer = client.ask_any(kind(topics=topics, timeout_ms=10_000), DeleteRecordsResponse, 1)
    assert answer.topics[0].partitions[0].error_code == 0


class Loop:
    """An application that copies `in` to `out` in transactions, one request after the other."""

    def __init__(self, bootstrap: str) -> None:
        self.client = TransactionalClient(bootstrap)
        self._steps = self._run()
        self.copied = 0

    def step(self) -> None:
        next(self._steps)

    def _run(self) -> Iterator[None]:
        for number in itertools.count():
            self.client.produce(PLAIN, "in", 0, bytes(build_batch([Record(0, number, b"%d" % number, b"")])))
            yield
            producer = self.client.init_producer_id("loop", 60_000, transaction_version=BUMPS_EPOCH)
            who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "base_sequence": 0}
            output = [Record(0, number, b"%d" % number, b"")]
            self.client.produce(producer, "out", 0, bytes(build_batch(output, transactional=True, **who)))
            yield
            self.client.commit_offset(producer, "g", "in", 0, number + 1, "")
            yield
            self.client.end(producer, commit=True)
            self.copied = number + 1
            yield


def lineage(broker: Minibroker, directory: Path) -> list[str]:
    """The rules of what an audit finds of `g`, which copies `in` to `out`."""
    written = directory / "s.json"
    command_line = ["audit", "--bootstrap", broker.bootstrap_servers, "--lineage", "in=out", "--group", "g"]
    main([*command_line, "--json", str(written)])
    return [one["rule"] for one in json.loads(written.read_text())["shown"]]


def test_the_lineage_of_an_application_that_runs(tmp_path: Path) -> None:
    """Steps of the application come between the audit's questions. A record without input is found all the same."""
    with Minibroker(ephemeral=True, topics={"in": 1, "out": 1}, config=CONFIG) as broker:
        loop = Loop(broker.bootstrap_servers)
        for _ in range(4):
            loop.step()

        audited = partial(lineage, broker, tmp_path)

        def go_on(steps: int, number: int) -> None:
            for _ in range(steps - (number % 3 > 0)):
                loop.step()

        for steps in (1, 2, 3):
            for _ in range(3):
                assert while_it_runs(broker.faults, audited, partial(go_on, steps), "ListOffsets") == []
        assert loop.copied > 30
        loop.client.produce(PLAIN, "out", 0, bytes(build_batch([Record(0, 0, b"stray", b"")])))
        assert audited() == ["lineage-stray"]
        loop.client.close()


def test_input_whose_output_may_still_commit_is_not_lost(tmp_path: Path) -> None:
    """The group's offset is committed, and the transaction with the output is open; it aborts."""
    with (
        Minibroker(ephemeral=True, topics={"in": 1, "out": 1}, config=CONFIG) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        record = [Record(0, 0, b"0", b"")]
        client.produce(PLAIN, "in", 0, bytes(build_batch(record)))
        output, offsets = (client.init_producer_id(name, 60_000) for name in ("output", "offsets"))
        who = {"producer_id": output.producer_id, "producer_epoch": output.producer_epoch, "base_sequence": 0}
        client.produce(output, "out", 0, bytes(build_batch(record, transactional=True, **who)))
        client.commit_offset(offsets, "g", "in", 0, 1, "")
        client.end(offsets, commit=True)
        assert lineage(broker, tmp_path) == []
        client.end(output, commit=False)
        assert lineage(broker, tmp_path) == ["lineage-lost"]
