"""The runner against a broker that does as it is told: every kind of step, every way to fail, and the report."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import CLOSE, SILENCE, ScriptedBroker, plain_broker, scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance import patience
from minibroker_protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListTransactionsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)

BEAT = "{call: Heartbeat v3, req: {groupId: g, generationId: 1, memberId: m}"

_OF_THE_RUN = (b"\0\x12", b"\0\x03", b"\0\x10", b"\0\x42")
"""Keys of ApiVersions, Metadata, ListGroups and ListTransactions."""


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted_broker() as made:
        yield made


class Suite:
    """Runs scenarios from text against the broker; keeps what was printed."""

    def __init__(self, broker: ScriptedBroker, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.folder, self.capsys = broker, folder, capsys
        self.lines: list[str] = []
        self.errors = ""

    def __call__(self, *scenarios: str, options: tuple[str, ...] = ()) -> int:
        file = self.folder / "suite.yaml"
        file.write_text("\n".join(scenarios))
        status = cli.main(["--bootstrap", self.broker.bootstrap, "--timeout", "2", "--until", "2", *options, str(file)])
        said = self.capsys.readouterr()
        self.lines, self.errors = said.out.splitlines(), said.err
        return status

    def steps(self, *steps: str, options: tuple[str, ...] = (), more: str = "") -> str:
        """Run one scenario; its line."""
        status = self(f"- {{name: s, {more} steps: [{', '.join(steps)}]}}", options=options)
        passed = self.lines[0].startswith("ok")
        assert self.lines[-1] == ("1 passed, 0 failed" if passed else "0 passed, 1 failed")
        assert status == (0 if passed else 1)
        return "\n".join(self.lines[:-1])

    @property
    def last(self) -> bytes:
        """The last frame of a scenario; the run itself asks whether the broker is there, and what it has."""
        return next(frame for frame in reversed(self.broker.raw) if frame[:2] not in _OF_THE_RUN)

    @property
    def last_request(self) -> tuple[Any, int]:
        own = (ApiVersionsRequest, MetadataRequest, ListGroupsRequest, ListTransactionsRequest)
        return next(sent for sent in reversed(self.broker.requests) if not isinstance(sent[0], own))


@pytest.fixture
def suite(broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Suite:
    return Suite(broker, tmp_path, capsys)


def beats(*codes: int) -> Any:
    """A Heartbeat handler that answers these error codes in turn, the last one for ever."""
    left = list(codes)
    return lambda request, version: HeartbeatResponse(error_code=left.pop(0) if len(left) > 1 else left[0])


def test_pass_and_fail(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(25)
    assert suite.steps(BEAT + ", expect: {errorCode: UNKNOWN_MEMBER_ID}}") == "ok s"
    assert suite.steps(BEAT + ", expect: {errorCode: NONE}}") == (
        "FAIL s [recovery]: step 1 (Heartbeat v3): field errorCode: expected 'NONE', got 'UNKNOWN_MEMBER_ID'"
    )
    request, version = suite.last_request
    assert version == 3
    assert request == HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    assert suite.broker.client_ids[-1] == "minibroker-conformance"


def test_an_error_code_kafka_does_not_have(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(999)
    assert suite.steps(BEAT + ", expect: {errorCode: 999}}") == "ok s"


def test_the_first_mismatch_or_all_of_them(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(25)
    wrong = BEAT + ", expect: {errorCode: NONE, throttleTimeMs: 7}}"
    assert len(suite.steps(wrong, wrong).splitlines()) == 1
    said = suite.steps(wrong, wrong, options=("--all",)).splitlines()
    assert [re.findall(r"step \d|field \w+", line) for line in said] == [
        ["step 1", "field errorCode"],
        ["step 1", "field throttleTimeMs"],
        ["step 2", "field errorCode"],
        ["step 2", "field throttleTimeMs"],
    ]


def test_a_broker_that_hangs_fails_the_scenario_and_not_the_run(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: (
        SILENCE if request.group_id == "mute" else HeartbeatResponse(error_code=0)
    )
    start = time.monotonic()
    status = suite(
        "- {name: mute, steps: [{call: Heartbeat v3, req: {groupId: mute}, timeout: 0.2}]}",
        f"- {{name: fine, steps: [{BEAT}}}]}}",
        options=("--jobs", "1"),
    )
    assert time.monotonic() - start < 1.5
    assert status == 1
    assert suite.lines == [
        "FAIL mute [recovery]: step 1 (Heartbeat v3): no response within 0.2 s",
        "ok fine",
        "1 passed, 1 failed",
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (CLOSE, "connection closed by the broker"),
        (b"", "response is malformed"),
        (b"\0\0\0\1\0\0", "response is malformed"),
        (b"\0\0\0\1" + bytes(6) + b"x", "1 bytes left over after the Heartbeat v3 response"),
        (b"\0\0\0\2" + bytes(6), "correlation id: expected 1, got 2"),
    ],
)
def test_answers_that_are_none(suite: Suite, answer: Any, said: str) -> None:
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: answer
    assert said in suite.steps(BEAT + "}")


def test_outcomes(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: {
        "close": CLOSE,
        "mute": SILENCE,
        "speak": HeartbeatResponse(error_code=0),
    }[request.group_id]
    for group, outcome, said in [
        ("close", "closed", "ok s"),
        ("mute", "silent", "ok s"),
        ("close", "silent", "expected silent, got closed"),
        ("mute", "closed", "expected closed, got silent"),
        ("speak", "closed", "expected closed, got a response of 10 bytes"),
    ]:
        line = suite.steps(f"{{call: Heartbeat v3, req: {{groupId: {group}}}, outcome: {outcome}, timeout: 0.3}}")
        assert said in line


def test_retry_and_until(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(14, 16, 27, 0)
    assert suite.steps(BEAT + ", retry: true, expect: {errorCode: REBALANCE_IN_PROGRESS}}") == "ok s"
    suite.broker.handlers[HeartbeatRequest] = beats(27, 27, 0)
    assert suite.steps(BEAT + ", retry: [REBALANCE_IN_PROGRESS], expect: {errorCode: NONE}}") == "ok s"
    suite.broker.handlers[HeartbeatRequest] = beats(27, 27, 0)
    assert suite.steps(BEAT + ", every: 0.01, until: {errorCode: NONE}}") == "ok s"
    suite.broker.handlers[HeartbeatRequest] = beats(27)
    assert suite.steps(BEAT + ", every: 0.01, within: 0.1, until: {errorCode: NONE}}").endswith(
        "errorCode never became 'NONE' (last: 'REBALANCE_IN_PROGRESS')"
    )
    suite.broker.handlers[HeartbeatRequest] = beats(16)
    assert "got 'NOT_COORDINATOR'" in suite.steps(BEAT + ", retry: true, within: 0.1, expect: {errorCode: NONE}}")


def test_what_failed_in_the_same_way_is_not_waited_for_again(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SHORT_SECONDS", 0.0)
    answers, asked = {"a": 27, "b": 27, "other": 25, "own-time": 27}, Counter[str]()

    def beat(request: HeartbeatRequest, version: int) -> HeartbeatResponse:
        asked[request.group_id] += 1
        return HeartbeatResponse(error_code=answers[request.group_id])

    def waits(group: str, more: str = "") -> str:
        step = f"{{call: Heartbeat v3, req: {{groupId: {group}}}, every: 0.01, until: {{errorCode: NONE}}{more}}}"
        return f"- {{name: {group}, steps: [{step}]}}"

    suite.broker.handlers[HeartbeatRequest] = beat
    scenarios = waits("a"), waits("b"), waits("other"), waits("own-time", ", within: 0.2")
    assert suite(*scenarios, options=("--jobs", "1", "--until", "0.2")) == 1
    assert suite.lines[-1] == "0 passed, 4 failed"
    assert asked["b"] == 1
    assert min(asked["a"], asked["other"], asked["own-time"]) > 1


def test_silence_is_waited_for_once(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SHORT_SECONDS", 0.02)
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: SILENCE
    text = (f"- {{name: {name}, steps: [{BEAT}}}]}}" for name in "ab")
    suite(*text, options=("--jobs", "1", "--timeout", "0.1"))
    assert [line.partition(": ")[2] for line in suite.lines[:2]] == [
        "step 1 (Heartbeat v3): no response within 0.1 s",
        "step 1 (Heartbeat v3): no response within 0.02 s",
    ]


def test_save_set_and_loop(suite: Suite) -> None:
    given: list[int] = []

    def init(request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        given.append(request.producer_id)
        return InitProducerIdResponse(error_code=0, producer_id=len(given) * 10, producer_epoch=0)

    suite.broker.handlers[InitProducerIdRequest] = init
    line = suite.steps(
        "{call: InitProducerId v4, save: {pid: producerId}, expect: {producerId: 10}}",
        "{set: {n: $pid+5, m: 2}}",
        "{call: InitProducerId v4, req: {producerId: $n}, expect: {producerId: $not $pid}}",
        "{loop: $m, as: k, steps: [{call: InitProducerId v4, req: {producerId: $k}}]}",
    )
    assert line == "ok s"
    assert given == [-1, 15, 0, 1]
    assert "save pid: no nosuch in the response" in suite.steps("{call: InitProducerId v4, save: {pid: nosuch}}")
    assert "step 1[2].1 (InitProducerId v4): field" in suite.steps(
        "{loop: 3, steps: [{call: InitProducerId v4, expect: {producerId: $in 60 70}}]}"
    )


def test_the_same_steps_in_several_versions(suite: Suite) -> None:
    asked: list[tuple[int, str | None]] = []

    def init(request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        asked.append((version, request.transactional_id))
        return InitProducerIdResponse(error_code=0, producer_id=1, producer_epoch=version)

    suite.broker.handlers[InitProducerIdRequest] = init
    call = "{call: InitProducerId $v, req: {transactionalId: 'x-${v}'}, expect: {producerEpoch: $v}}"
    assert suite.steps(f"{{versions: [0, 3], steps: [[{call}], {{sleep: 0}}]}}") == "ok s"
    assert asked == [(0, "x-0"), (3, "x-3")]
    assert "step 1[v3].2 (InitProducerId $v): field producerEpoch: expected 0, got 3" in suite.steps(
        "{versions: [0, 3], steps: [{sleep: 0}, {call: InitProducerId $v, expect: {producerEpoch: 0}}]}"
    )


def test_pipelined_requests_are_all_sent_before_an_answer_is_read(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(0, 25, 27)
    calls = [BEAT + f", expect: {{errorCode: {code}}}}}" for code in ("NONE", "UNKNOWN_MEMBER_ID", "NONE")]
    assert suite.steps(f"{{pipeline: [{', '.join(calls)}]}}") == (
        "FAIL s [recovery]: step 1: pipelined request 3 (Heartbeat v3): "
        "field errorCode: expected 'NONE', got 'REBALANCE_IN_PROGRESS'"
    )


def test_async_and_recv(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(25, 27)
    line = suite.steps(
        BEAT + ", async: a, conn: one}",
        BEAT + ", conn: two, expect: {errorCode: $in UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS}}",
        "{recv: a, expect: {errorCode: $in UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS}}",
    )
    assert line == "ok s"
    assert "nothing was sent as 'a'" in suite.steps("{recv: a}")


def test_wrong_bytes_on_purpose(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(0)
    assert suite.steps(BEAT + ", tail: '00ff', conn: a}") == "ok s"
    whole = suite.last
    assert whole.endswith(b"\0\xff")
    assert suite.steps(BEAT + ", cut: 2, outcome: closed}") == "ok s"
    assert suite.last == whole[:-4]
    assert suite.steps("{call: Heartbeat v3, rawBody: '0102', outcome: closed}") == "ok s"
    assert suite.last.endswith(b"\1\2")
    assert suite.steps("{raw: 7fffffff00, outcome: closed}") == "ok s"
    assert suite.steps(BEAT + ", sizeDelta: 5, outcome: silent, timeout: 0.2}") == "ok s"
    assert suite.steps(BEAT + ", header: {apiKey: 9999}, outcome: closed}") == "ok s"
    assert suite.last[:2] == (9999).to_bytes(2, "big")
    assert suite.steps("{call: Heartbeat v4, header: {tags: 01 63 01 ff, clientId: c, correlationId: 77}}") == "ok s"
    assert suite.last[:14] == b"\0\x0c\0\4\0\0\0\x4d\0\1c\1\x63\1"


def test_a_version_kafka_no_longer_has(suite: Suite) -> None:
    suite.broker.handlers[ProduceRequest] = lambda request, version: CLOSE
    assert suite.steps("{call: Produce v2, at: t/0, batch: {magic: 1}, outcome: closed}") == "ok s"
    assert suite.last[:4] == b"\0\0\0\2"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("{call: Heartbeat v3, req: {groopId: g}}", "Heartbeat has no field 'groopId'"),
        ("{call: Heartbeat v3, req: {generationId: x}}", "Heartbeat.generationId: a number"),
        ("{call: Heartbeat v3, req: {groupId: $g}}", "there is no variable $g"),
        ("{call: Heartbeat v3, req: {groupId: null}}", "HeartbeatRequest v3"),
        ("{call: Metadata v12, req: {topics: [{topicId: x}]}}", "Metadata.topics[0].topicId"),
        ("{call: Fetch v11, at: t0}", "'t0' is not topic/partition"),
        ("{call: ListOffsets v5, at: t/0}", "needs a number"),
    ],
)
def test_a_wrong_scenario_says_where(suite: Suite, step: str, said: str) -> None:
    line = suite.steps(step)
    assert line.startswith("FAIL s: step 1 (")
    assert "scenario error: " in line
    assert said in line


def of_two(suite: Suite, port: int = 1) -> None:
    """Metadata names another broker as well."""
    nodes = [
        MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=at, rack=None)
        for node, at in enumerate((suite.broker.port, port))
    ]
    suite.broker.handlers[MetadataRequest] = lambda request, version: MetadataResponse(
        brokers=nodes, controller_id=0, topics=[]
    )


def test_an_only_broker_is_not_asked_where_requests_go(suite: Suite) -> None:
    keys: list[str] = []

    def find(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
        keys.append(request.key)
        return FindCoordinatorResponse(error_code=0, node_id=0, host="127.0.0.1", port=suite.broker.port)

    suite.broker.handlers[FindCoordinatorRequest] = find
    suite.broker.handlers[HeartbeatRequest] = beats(0)
    assert suite.steps(BEAT + ", expect: {errorCode: NONE}}") == "ok s"
    assert [key for key in keys if not key.startswith("mb-warm")] == []


def test_requests_go_where_the_broker_says(suite: Suite) -> None:
    with scripted_broker() as other:
        of_two(suite, other.port)
        suite.broker.handlers[FindCoordinatorRequest] = lambda request, version: FindCoordinatorResponse(
            error_code=0 if suite.broker.handlers.pop(HeartbeatRequest, None) is None else 15,
            node_id=1,
            host="127.0.0.1",
            port=other.port,
        )
        suite.broker.handlers[HeartbeatRequest] = beats(25)  # taken away by the first question for a coordinator
        other.handlers[HeartbeatRequest] = beats(0)
        assert suite.steps(BEAT + ", expect: {errorCode: NONE}}") == "ok s"
        suite.broker.handlers[HeartbeatRequest] = beats(25)
        suite.broker.handlers[FindCoordinatorRequest] = lambda request, version: FindCoordinatorResponse(
            error_code=0, node_id=1, host="127.0.0.1", port=other.port
        )
        assert suite.steps(BEAT + ", to: bootstrap, expect: {errorCode: UNKNOWN_MEMBER_ID}}") == "ok s"
        assert suite.steps(BEAT + ", to: 'group:x', expect: {errorCode: NONE}}") == "ok s"


def test_a_retry_asks_for_the_coordinator_again(suite: Suite) -> None:
    with scripted_broker() as other:
        ports = [suite.broker.port, other.port]
        suite.broker.handlers[FindCoordinatorRequest] = lambda request, version: FindCoordinatorResponse(
            error_code=0,
            node_id=1,
            host="127.0.0.1",
            port=suite.broker.port if request.key.startswith("mb-warm") else ports.pop(0),
        )
        suite.broker.handlers[HeartbeatRequest] = beats(16)
        other.handlers[HeartbeatRequest] = beats(0)
        assert suite.steps(BEAT + ", retry: true, expect: {errorCode: NONE}}") == "ok s"


def test_a_coordinator_that_is_not_there_yet(suite: Suite) -> None:
    with scripted_broker() as other:
        of_two(suite, other.port)
        errors = [15, 14, 0]
        suite.broker.handlers[FindCoordinatorRequest] = lambda request, version: FindCoordinatorResponse(
            error_code=0 if request.key.startswith("mb-warm") else errors.pop(0),
            node_id=1,
            host="127.0.0.1",
            port=other.port,
        )
        other.handlers[HeartbeatRequest] = beats(0)
        assert suite.steps(BEAT + ", expect: {errorCode: NONE}}") == "ok s"
        assert errors == []


def test_a_coordinator_that_is_refused_is_asked_for_once(suite: Suite) -> None:
    of_two(suite)
    asked: list[str] = []

    def refuse(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
        asked.append(request.key)
        return FindCoordinatorResponse(error_code=24, node_id=-1, host="", port=-1)

    suite.broker.handlers[FindCoordinatorRequest] = refuse
    suite.broker.handlers[HeartbeatRequest] = beats(0)
    assert suite.steps(BEAT + ", expect: {errorCode: NONE}}") == "ok s"
    assert asked.count("g") == 1


def test_scenarios_start_when_the_group_coordinator_has_loaded(suite: Suite) -> None:
    """Kafka answers a Heartbeat NONE while it loads, so a scenario that starts too soon sees what no recording has."""
    answers = [[15, 0], [0, 14], [0, 0]]

    def describe(request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        first, others = answers.pop(0)
        errors = dict.fromkeys(request.groups, others) | {request.groups[0]: first}
        return DescribeGroupsResponse(
            groups=[
                DescribeGroupsResponse.DescribedGroup(
                    error_code=error, group_id=group, group_state="", protocol_type="", protocol_data="", members=[]
                )
                for group, error in errors.items()
            ]
        )

    suite.broker.handlers[DescribeGroupsRequest] = describe
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=len(answers))
    assert suite.steps(BEAT + ", expect: {errorCode: NONE}}") == "ok s"


def test_a_connection_is_new_after_an_outcome_and_a_silence(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: (
        CLOSE if request.group_id == "close" else HeartbeatResponse(error_code=0)
    )
    close = "{call: Heartbeat v3, req: {groupId: close}, outcome: closed}"
    assert suite.steps(close, BEAT + ", expect: {errorCode: NONE}}") == "ok s"


def test_a_response_in_another_version(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = lambda request, version: b"\0\0\0\1\0\x19"
    assert suite.steps(BEAT + ", header: {responseVersion: 0}, expect: {errorCode: UNKNOWN_MEMBER_ID}}") == "ok s"


def test_a_defect_of_the_runner_fails_one_scenario(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(0)
    status = suite(
        "- {name: broken, steps: [{sleep: 1.0e+300}]}", f"- {{name: fine, steps: [{BEAT}}}]}}", options=("--jobs", "1")
    )
    assert status == 1
    assert suite.lines[0].startswith("FAIL broken: error in the runner: OverflowError: ")
    assert suite.lines[1:] == ["ok fine", "1 passed, 1 failed"]


def test_topics_are_made_and_their_leader_is_asked(suite: Suite) -> None:
    with scripted_broker() as leader:
        asked: list[str] = []

        def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
            partition = MetadataResponse.MetadataResponsePartition(
                error_code=0, partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
            )
            topics = [
                MetadataResponse.MetadataResponseTopic(
                    error_code=0, name=topic.name, topic_id=b"\7" * 16, partitions=[partition]
                )
                for topic in request.topics or []
            ]
            node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=leader.port, rack=None)
            return MetadataResponse(brokers=[node], controller_id=1, topics=topics)

        def offsets(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
            name = request.topics[0].name
            asked.append(name)
            partition = ListOffsetsResponse.ListOffsetsPartitionResponse(
                partition_index=0, error_code=0 if len(asked) > 1 else 6, timestamp=-1, offset=4
            )
            return ListOffsetsResponse(
                topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name=name, partitions=[partition])]
            )

        suite.broker.handlers[MetadataRequest] = metadata
        leader.handlers[ListOffsetsRequest] = offsets
        step = "{call: ListOffsets v5, at: t/0@-1, expect: {..offset: 4, ..name: $t}}"
        assert suite.steps(step, more="topics: {t: {}},") == "ok s"
        assert len(asked) == 3
        assert len(set(asked)) == 1
        assert re.fullmatch(r"mb-[0-9a-f]+-0-t", asked[0])
        assert not any(isinstance(request, CreateTopicsRequest) for request, _ in suite.broker.requests)


def test_needs_alone_and_selection(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(0)
    text = f"""
- {{name: last, alone: true, tags: [x], steps: [{BEAT}}}]}}
- {{name: needy, needs: [short-expiry], tags: [y], steps: [{BEAT}}}]}}
- {{name: first, tags: [x, slow], steps: [{BEAT}}}]}}
"""
    assert suite(text, options=("--jobs", "1")) == 0
    assert suite.lines == [
        "skip needy (needs --have short-expiry)",
        "ok first",
        "ok last",
        "2 passed, 0 failed, 1 skipped",
    ]
    suite(text, options=("--jobs", "1", "--have", "short-expiry"))
    assert suite.lines == ["ok needy", "ok first", "ok last", "3 passed, 0 failed"]
    suite(text, options=("--tag", "x", "--skip-tag", "slow"))
    assert suite.lines == ["ok last", "1 passed, 0 failed"]
    suite(text, options=("--only", "f*", "--times"))
    assert re.fullmatch(r"ok first  \[\d+\.\ds\]", suite.lines[0])
    assert suite(text, options=("--only", "nosuch")) == 2
    assert suite.errors == "minibroker conformance: no scenario matches\n"


def test_verbose_prints_responses(suite: Suite) -> None:
    suite.broker.handlers[HeartbeatRequest] = beats(25)
    assert suite(f"- {{name: s, steps: [{BEAT}}}]}}", options=("-v",)) == 0
    assert suite.lines == [
        '    s Heartbeat v3 {"throttleTimeMs": 0, "errorCode": "UNKNOWN_MEMBER_ID"}',
        "ok s",
        "1 passed, 0 failed",
    ]


def test_unusable_input_is_one_line_and_exit_status_2(suite: Suite) -> None:
    assert suite("- {name: s}") == 2
    assert suite.errors.count("\n") == 1
    assert "suite.yaml: s: a list of steps" in suite.errors
    suite.broker.handlers[ApiVersionsRequest] = lambda request, version: CLOSE
    assert suite(f"- {{name: s, steps: [{BEAT}}}]}}") == 2
    said = "ApiVersions v0: connection closed by the broker; does this listener want TLS or a password?"
    assert suite.errors == f"minibroker conformance: {suite.broker.bootstrap}: {said}\n"
    plain_broker(suite.broker)
    suite.broker.handlers[MetadataRequest] = lambda request, version: CLOSE  # as one does that wants a login
    assert suite(f"- {{name: s, steps: [{BEAT}}}]}}") == 2
    said = "Metadata v12: connection closed by the broker; does this listener want TLS or a password?"
    assert suite.errors == f"minibroker conformance: {suite.broker.bootstrap}: {said} (--command-config FILE)\n"
    assert suite.lines == []
    suite.broker.close()
    assert suite(f"- {{name: s, steps: [{BEAT}}}]}}") == 2
    assert suite.errors.count("\n") == 1


@pytest.mark.parametrize("address", ["", "host", "host:", ":9092", "host:x", "host:0", "host:70000"])
def test_addresses(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        cli.main([f"--bootstrap={address}"])
    assert info.value.code == 2
    assert "is not HOST:PORT" in capsys.readouterr().err
