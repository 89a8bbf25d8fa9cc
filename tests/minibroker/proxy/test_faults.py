"""Rules and traces of a proxy, with an upstream by hand: what it is sent, and what its client gets."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
from upstream_by_hand import Proxied

from minibroker.control.commands import all_commands
from minibroker.control.proxy_commands import PROXY_COMMANDS, ProxyCommands
from minibroker.faults.actions import ACTIONS
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.fault_error import FaultError
from minibroker.proxy.endpoints import NodeKey
from minibroker.requests.chain import Place
from minibroker.requests.context import CloseConnection
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.headers import decode_response, encode_request, encode_response_header
from minibroker_protocol.records import Record, build_batch

HEARTBEAT = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
ALIVE = m.HeartbeatResponse(error_code=0)


class Faulty(Proxied):
    """A client behind a proxy with commands. `request` sends and `answer` has the upstream answer."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = ProxyCommands(self.nodes, "here:1", self.timers, self._tap)
        self.correlation_id = 0

    def _tap(self, tap: Any) -> None:
        self.dispatcher.link(Place.FAULTS_AND_TRACE, tap, self.commands.concerned)

    def rule(self, api: str, action: Any, **rule: Any) -> int:
        number: int = self.commands.call("fault.add", {"api": api, "action": action, **rule})["id"]
        return number

    def request(self, request: Request = HEARTBEAT, version: int = 4) -> Deferred[Any]:
        self.correlation_id += 1
        return self.send(encode_request(request, version, self.correlation_id, "app"))

    def leave(self) -> None:
        """The client closes its connection."""
        self.info.channel, self.info.gone = None, True
        assert self.info.on_gone is not None
        self.info.on_gone()

    def sent(self) -> list[int]:
        """Correlation ids of the requests that have reached the upstream since the last call."""
        return [int.from_bytes(frame[4:8], "big") for frame in self.upstream.requests()]

    def answer(self, number: int, answer: Response = ALIVE, version: int = 4) -> None:
        key = answer.__api_key__
        self.upstream.answers(encode_response_header(key, version, number) + answer.encode(version))


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


def answered(waiting: Deferred[Any], request: Request = HEARTBEAT, version: int = 4) -> Any:
    return decode_response(b"".join(waiting.result())[4:], request.__api_key__, version)


def closed(waiting: Deferred[Any]) -> str:
    with pytest.raises(CloseConnection) as raised:
        waiting.result()
    return str(raised.value)


def test_error_is_answered_here(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", {"name": "error", "code": "NOT_COORDINATOR"})
    assert answered(faulty.request()).error_code == 16
    assert faulty.sent() == []


def test_apply_then_error_has_applied(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", {"name": "apply_then_error", "code": "NOT_COORDINATOR"})
    waiting = faulty.request()
    assert (faulty.sent(), waiting.done) == ([1], False)
    faulty.answer(1)
    assert answered(waiting).error_code == 16


def test_drop_reply_closes_once_it_is_applied(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", "drop_reply")
    waiting = faulty.request()
    assert (faulty.sent(), waiting.done) == ([1], False)
    faulty.answer(1)
    assert "dropped" in closed(waiting)


@pytest.mark.parametrize(("when", "at_once"), [("before", []), ("after", [1])])
def test_delay(faulty: Faulty, when: str, at_once: list[int]) -> None:
    faulty.rule("Heartbeat", {"name": "delay", "ms": 300, "when": when})
    waiting = faulty.request()
    assert faulty.sent() == at_once
    if at_once:
        faulty.answer(1)
    faulty.timers.advance(299)
    assert (faulty.sent(), waiting.done) == ([], False)
    faulty.timers.advance(1)
    if not at_once:
        assert faulty.sent() == [1]
        faulty.answer(1)
    assert answered(waiting).error_code == 0


@pytest.mark.parametrize(("when", "at_once"), [("before", []), ("after", [1])])
def test_hold_until_released(faulty: Faulty, when: str, at_once: list[int]) -> None:
    number = faulty.rule("Heartbeat", {"name": "hold", "when": when})
    waiting = faulty.request()
    assert faulty.sent() == at_once
    if at_once:
        faulty.answer(1)
    assert not waiting.done
    assert faulty.commands.call("cluster.waits", {}) == [f"rule {number} (hold) holds 1 request"]
    faulty.commands.call("fault.release", {"id": number})
    if not at_once:
        assert faulty.sent() == [1]  # also where the bytes of the request were given back in the meantime
        faulty.answer(1)
    assert answered(waiting).error_code == 0


@pytest.mark.parametrize("action", ["hold", {"name": "delay", "ms": 300}])
def test_what_is_kept_reaches_the_upstream_also_where_its_client_has_left(faulty: Faulty, action: Any) -> None:
    number = faulty.rule("Heartbeat", action)
    waiting = faulty.request()
    faulty.leave()
    assert (faulty.sent(), faulty.upstream.transport.calls) == ([], [])
    if action == "hold":
        faulty.commands.call("fault.release", {"id": number})
    faulty.timers.advance(300)
    assert (faulty.sent(), faulty.upstream.transport.calls) == ([1], [])
    faulty.answer(1)
    assert waiting.done
    assert faulty.upstream.transport.calls == ["close"]
    faulty.request()
    assert faulty.connects == 2, "what comes at the place of that connection has an upstream of its own"


@pytest.mark.parametrize("action", ["reorder", {"name": "duplicate", "after_ms": 500}])
def test_what_a_rule_brings_after_the_answer_reaches_the_upstream_also_where_the_client_has_left(
    faulty: Faulty, action: Any
) -> None:
    faulty.rule("Heartbeat", action)
    faulty.request()
    if action != "reorder":
        faulty.answer(faulty.sent()[0])
    faulty.leave()
    assert faulty.upstream.transport.calls == []
    faulty.timers.advance(500)
    assert (faulty.sent(), faulty.upstream.transport.calls) == ([1], [])
    faulty.answer(1)
    assert faulty.upstream.transport.calls == ["close"]


def test_requests_in_another_order_do_not_keep_the_connection(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", "reorder")
    faulty.request()
    both = faulty.request(m.ListGroupsRequest(), 4)
    faulty.leave()
    faulty.answer(2, m.ListGroupsResponse(groups=[]))
    assert faulty.upstream.transport.calls == []
    faulty.answer(1)
    assert both.done
    assert faulty.upstream.transport.calls == ["close"]


def test_a_rule_that_goes_ends_the_connection_that_was_kept_for_it(faulty: Faulty) -> None:
    number = faulty.rule("Heartbeat", "hold")
    waiting = faulty.request()
    faulty.leave()
    faulty.commands.call("fault.remove", {"id": number})
    assert "gone" in closed(waiting)
    assert (faulty.sent(), faulty.upstream.transport.calls) == ([], ["close"])


def test_reorder_swaps_the_requests_and_answers_in_the_clients_order(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", "reorder")
    faulty.request()
    assert faulty.sent() == []
    both = faulty.request(m.ListGroupsRequest(), 4)  # of a kind that no rule names
    assert faulty.sent() == [2]
    faulty.answer(2, m.ListGroupsResponse(groups=[]))
    assert faulty.sent() == [1]
    faulty.answer(1)
    data = b"".join(both.result())
    size = 4 + int.from_bytes(data[:4], "big")
    assert [data[4:8], data[size + 4 : size + 8]] == [b"\0\0\0\1", b"\0\0\0\2"]


def test_duplicate_is_applied_again_and_answered_once(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", "duplicate")
    waiting = faulty.request()
    assert faulty.sent() == [1]
    faulty.answer(1)
    assert (faulty.sent(), waiting.done) == ([1], False)
    faulty.answer(1, m.HeartbeatResponse(error_code=22))
    assert answered(waiting).error_code == 0


def test_truncate(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", {"name": "truncate", "keep": 6})
    waiting = faulty.request()
    faulty.answer(1)
    assert "cut off" in closed(waiting)
    assert faulty.channel.calls == [b"\0\0\0\x0c\0\0"]


def test_corrupt_answer(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", "corrupt")
    waiting = faulty.request()
    faulty.answer(1)
    assert b"".join(waiting.result())[4:8] == b"\xff\0\0\1"


def test_corrupt_request(faulty: Faulty) -> None:
    faulty.rule("Produce", {"name": "corrupt", "of": "request"})
    batch = build_batch([Record(value=b"v")])
    request = m.ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name="t", partition_data=[m.ProduceRequest.PartitionProduceData(index=0, records=batch)]
            )
        ],
    )
    faulty.request(request, 9)
    (sent,) = faulty.upstream.requests()
    arrived = m.ProduceRequest.decode(sent, 9, 14).topic_data[0].partition_data[0].records
    assert arrived is not None
    assert bytes(arrived) == batch[:-1] + bytes([batch[-1] ^ 0xFF])


@pytest.mark.parametrize("action", ["close", "reset", "black_hole"])
def test_the_request_goes_nowhere(faulty: Faulty, action: str) -> None:
    number = faulty.rule("Heartbeat", action)
    waiting = faulty.request()
    assert faulty.sent() == []
    if action == "black_hole":
        faulty.request(m.ListGroupsRequest(), 0)
        assert faulty.sent() == []
        faulty.commands.call("fault.remove", {"id": number})
    if action == "reset":
        assert faulty.channel.calls == ["reset"]
    else:
        closed(waiting)


def test_throttle(faulty: Faulty) -> None:
    faulty.rule("Heartbeat", {"name": "throttle", "ms": 250})
    waiting = faulty.request()
    faulty.answer(1)
    assert answered(waiting).throttle_time_ms == 250
    assert faulty.channel.calls == [250]


def test_no_records(faulty: Faulty) -> None:
    faulty.rule("Fetch", "no_records")
    request = m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])
    waiting = faulty.request(request, 12)
    partition = m.FetchResponse.PartitionData(
        partition_index=0, high_watermark=5, aborted_transactions=None, records=build_batch([Record()])
    )
    topic = m.FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    faulty.answer(1, m.FetchResponse(responses=[topic]), 12)
    (got,) = answered(waiting, request, 12).responses[0].partitions
    assert (got.high_watermark, bytes(got.records)) == (5, b"")


def test_every_action_is_tried_above() -> None:
    tried = {"error", "apply_then_error", "drop_reply", "delay", "hold", "reorder", "duplicate", "truncate", "corrupt"}
    tried |= {"close", "reset", "black_hole", "throttle", "no_records"}
    assert {name for name, action in ACTIONS.items() if not action.needs_cluster} == tried


def test_addresses_in_a_made_up_answer_are_the_proxys(faulty: Faulty) -> None:
    faulty.nodes.port_of(NodeKey(4), ("kafka", 9))
    faulty.rule("Metadata", {"name": "error", "code": "LEADER_NOT_AVAILABLE"})
    request = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])
    answer = answered(faulty.request(request, 12), request, 12)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(4, "127.0.0.1", 19001)]
    assert answer.topics[0].error_code == 5


def test_a_rule_knows_a_topic_by_the_id_that_an_answer_gave_it(faulty: Faulty) -> None:
    faulty.nodes.named(b"i" * 16, "orders")
    faulty.rule("Fetch", "close", topic="orders")
    topic = m.FetchRequest.FetchTopic(
        topic_id=b"i" * 16,
        partitions=[m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)],
    )
    for topics, ends in (([], False), ([topic], True)):
        request = m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)
        assert faulty.request(request, 13).done is ends


def test_without_a_rule_frames_pass_as_they_came(faulty: Faulty) -> None:
    number = faulty.rule("Heartbeat", "close", times=None)
    faulty.commands.call("fault.remove", {"id": number})
    waiting = faulty.request()
    faulty.upstream.answers(b"\0\0\0\1 no Heartbeat")
    assert b"".join(waiting.result())[8:] == b" no Heartbeat"


def test_what_no_rule_is_about_passes_as_it_came(faulty: Faulty) -> None:
    """Not decoded: the answer is none of its kind, and gets through."""
    number = faulty.rule("EndTxn", "close")
    waiting = faulty.request()
    faulty.upstream.answers(b"\0\0\0\1 no Heartbeat")
    assert b"".join(waiting.result())[8:] == b" no Heartbeat"
    faulty.commands.call("trace.record", {})  # now it has to be read
    waiting = faulty.request()
    faulty.upstream.answers(b"\0\0\0\2 ")
    assert "cannot be read" in closed(waiting)
    faulty.commands.call("trace.record", {"kept": 0})
    faulty.commands.call("fault.remove", {"id": number})
    assert not faulty.commands.concerned("Heartbeat")
    for rule in ({"action": "close", "client_id": "other"}, {"action": "close", "api": ["EndTxn", "Heartbeat"]}):
        added = faulty.commands.call("fault.add", rule)["id"]
        assert faulty.commands.concerned("Heartbeat")
        faulty.commands.call("fault.remove", {"id": added})


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"action": {"name": "do", "operation": "restore"}}, "do acts on what brokers keep"),
        ({"action": "close", "between_brokers": True}, "do not pass a proxy"),
        ({"action": "close", "api": "Producee"}, "did you mean 'Produce'|did you mean Produce"),
    ],
)
def test_rules_that_cannot_act_are_refused(faulty: Faulty, rule: dict[str, Any], said: str) -> None:
    with pytest.raises(FaultError, match=said):
        faulty.commands.call("fault.add", rule)


def test_commands_that_need_the_brokers_own_state_are_refused_by_name(faulty: Faulty) -> None:
    for name in all_commands().keys() - PROXY_COMMANDS:
        with pytest.raises(FaultError, match=f"^{name} reads or changes what brokers keep, and those behind a proxy"):
            faulty.commands.call(name, {})
    with pytest.raises(FaultError, match=r"no command 'fault\.ad'.*fault\.add"):
        faulty.commands.call("fault.ad", {})


def test_exchanges_are_recorded_with_the_addresses_that_the_client_got(faulty: Faulty) -> None:
    faulty.commands.call("trace.record", {"kept": 10, "frames": True})
    waiting = faulty.request(m.FindCoordinatorRequest(key="g"), 3)
    faulty.answer(1, m.FindCoordinatorResponse(node_id=2, host="kafka", port=9), 3)
    assert answered(waiting, m.FindCoordinatorRequest(key="g"), 3).port == 19001
    waiting = faulty.request()
    faulty.answer(2, m.HeartbeatResponse(error_code=25))
    first, second = faulty.commands.call("trace.last", {})
    assert (first["api"], first["response"]["port"], first["broker"]) == ("FindCoordinator", 19001, 1)
    assert (second["errors"], second["outcome"]) == (["UNKNOWN_MEMBER_ID (25)"], "answered")
    assert b"".join(waiting.result())[-2:] == b"\x19\0"
    faulty.commands.call("cluster.reset", {})
    assert faulty.commands.call("trace.last", {}) == []


@pytest.mark.parametrize("frames", [True, False])
def test_a_refused_version_of_api_versions_is_recorded_as_such(faulty: Faulty, frames: bool) -> None:
    """One broker of a cluster can be older than the one that the proxy asked."""
    faulty.commands.call("trace.record", {"kept": 10, "frames": frames})
    waiting = faulty.request(m.ApiVersionsRequest(), 4)
    own = m.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3)
    refusal = b"\0\0\0\1" + m.ApiVersionsResponse(error_code=35, api_keys=[own]).encode(0)
    faulty.upstream.answers(refusal)
    assert b"".join(waiting.result())[4:] == refusal
    (row,) = faulty.commands.call("trace.last", {"frames": frames})
    assert (row["outcome"], row["errors"]) == ("answered", ["UNSUPPORTED_VERSION (35)"])
    assert row["response"]["api_keys"][0]["max_version"] == 3
    if frames:
        assert b64decode(row["response_frame"]) == refusal


@pytest.mark.parametrize("frames", [True, False])
def test_a_file_gets_frames_that_are_kept_no_longer_unless_asked_for(faulty: Faulty, frames: bool) -> None:
    written: list[Any] = []
    faulty.commands.listen(written.append)
    faulty.commands.call("trace.record", {"kept": 10, "frames": frames})
    faulty.request()
    faulty.answer(1)
    (kept,) = faulty.commands.call("trace.last", {"frames": True})
    (handed,) = written
    assert None not in handed.frames().values()
    assert {**kept, **handed.frames()} == {**handed.to_json(), **handed.frames()}
    assert (kept["request_frame"] is not None, kept["response_frame"] is not None) == (frames, frames)


def test_what_is_described(faulty: Faulty) -> None:
    faulty.nodes.port_of(NodeKey(4), ("kafka", 9))
    faulty.nodes.named(b"i" * 16, "orders")
    assert faulty.commands.call("cluster.describe", {}) == {
        "brokers": [4],
        "all_brokers": [4],
        "topics": {"orders": {}},
    }
