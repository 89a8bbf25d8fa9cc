"""Answers that are not Kafka's and lawful all the same, and one that is not: an answer that nobody asked for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import SILENCE, ScriptedBroker, scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.batches import ReceivedRecords, batch_bytes
from minibroker_lab.conformance.fewer_batches import joined, next_offset
from minibroker_protocol.messages import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

Run = Callable[..., list[str]]


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted_broker() as broker:
        yield broker


@pytest.fixture
def run(broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one scenario of these steps; what was printed of it."""

    def printed(*steps: str) -> list[str]:
        file = tmp_path / "suite.yaml"
        file.write_text(f"- {{name: s, steps: [{', '.join(steps)}]}}\n")
        cli.main(["--bootstrap", broker.bootstrap, "--timeout", "2", "--until", "2", "--keep", str(file)])
        return capsys.readouterr().out.splitlines()[:-1]

    return printed


def batch(offset: int) -> bytes:
    return batch_bytes({"baseOffset": offset, "values": [f"v{offset}"]}, lambda: 0)


def fetched(records: bytes | None, *, end: int = 3, session: int = 0) -> FetchResponse:
    part = FetchResponse.PartitionData(
        partition_index=0, high_watermark=end, last_stable_offset=end, aborted_transactions=None, records=records
    )
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])
    return FetchResponse(session_id=session, responses=[topic])


FETCH = "{call: Fetch v11, to: bootstrap, at: t/0@0, expect: {..records: [%s]}}"
THREE = FETCH % ", ".join(f"{{base: {n}, last: {n}, values: [v{n}]}}" for n in range(3))


def test_a_reader_fetches_until_all_batches_came(broker: ScriptedBroker, run: Run) -> None:
    asked = []

    def one_batch(request: FetchRequest, version: int) -> FetchResponse:
        asked.append(request.topics[0].partitions[0].fetch_offset)
        return fetched(batch(asked[-1]))

    broker.handlers[FetchRequest] = one_batch
    assert run(THREE)[:2] == ["ok s", "     lawful: step 1 (Fetch v11): the batches came in 3 answers, in Kafka in one"]
    assert asked == [0, 1, 2]


def test_a_batch_that_never_comes_is_lost(broker: ScriptedBroker, run: Run) -> None:
    broker.handlers[FetchRequest] = lambda request, version: fetched(
        batch(0) if request.topics[0].partitions[0].fetch_offset == 0 else None
    )
    (line,) = run(THREE)[:1]
    assert line.startswith("FAIL s [exactly-once]: step 1 (Fetch v11): field ..records")


def test_where_a_reader_goes_on() -> None:
    def answer(records: bytes, **fields: Any) -> dict[str, Any]:
        partition = {"errorCode": "NONE", "highWatermark": 3, "records": ReceivedRecords(records), **fields}
        return {"errorCode": "NONE", "responses": [{"partitions": [partition]}]}

    first = answer(batch(0), abortedTransactions=[{"producerId": 1}])
    assert next_offset(first, 3) == 1
    assert next_offset(first, 1) is None, "as many as are expected came"
    assert next_offset(answer(batch(2)), 3) is None, "it is the end of the log"
    assert next_offset(answer(b""), 3) is None
    assert next_offset(answer(batch(0), errorCode="OFFSET_OUT_OF_RANGE"), 3) is None
    assert joined(first, answer(batch(1), abortedTransactions=[{"producerId": 1}, {"producerId": 2}]))
    partition = first["responses"][0]["partitions"][0]
    assert [entry["base"] for entry in partition["records"].batches()] == [0, 1]
    assert partition["abortedTransactions"] == [{"producerId": 1}, {"producerId": 2}]
    assert not joined(first, answer(b""))


def test_what_a_broker_may_lack_is_not_applicable(broker: ScriptedBroker, run: Run) -> None:
    session = "{call: Fetch v11, unless: {sessionId: 0}, expect: {sessionId: $pos}}"
    broker.handlers[FetchRequest] = lambda request, version: fetched(None)
    assert run(session, session) == ["n/a s (step 1 (Fetch v11): sessionId is 0, as it may be)"]
    assert sum(isinstance(request, FetchRequest) for request, _ in broker.requests) == 1
    broker.handlers[FetchRequest] = lambda request, version: fetched(None, session=7)
    assert run(session) == ["ok s"]
    broker.handlers[FetchRequest] = lambda request, version: fetched(None, session=-7)
    assert run(session)[0].startswith("FAIL s [code]: step 1 (Fetch v11): field sessionId")


def test_an_answer_to_acks_0_is_called_that(broker: ScriptedBroker, run: Run) -> None:
    broker.handlers[ProduceRequest] = lambda request, version: ProduceResponse(responses=[])
    unanswered = "{call: Produce v7, to: bootstrap, req: {acks: 0}, noResponse: true}"
    assert run(unanswered, "{call: Produce v9, to: bootstrap, expect: {throttleTimeMs: 0}}") == [
        "FAIL s [recovery]: step 2 (Produce v9): acks=0 was answered (Produce v7)"
    ]
    numbered = "{call: Produce v9, to: bootstrap, header: {correlationId: 1}, expect: {throttleTimeMs: 0}}"
    broker.handlers[ProduceRequest] = lambda request, version: (
        ProduceResponse(responses=[], throttle_time_ms=0) if version == 9 else SILENCE
    )
    assert run(unanswered, numbered) == ["ok s"]


def test_a_malformed_batch_is_refused_with_either_code(broker: ScriptedBroker, run: Run) -> None:
    def refused(request: ProduceRequest, version: int) -> ProduceResponse:
        part = ProduceResponse.PartitionProduceResponse(index=0, error_code=2, base_offset=-1)
        return ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=[part])])

    broker.handlers[ProduceRequest] = refused
    produce = "{call: Produce v9, to: bootstrap, at: t/0, batch: {values: [a]}, expect: {..errorCode: INVALID_RECORD}}"
    assert run(produce)[0] == "ok s"
