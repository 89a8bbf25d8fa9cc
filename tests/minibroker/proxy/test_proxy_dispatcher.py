"""What a proxy does to requests and answers, with an upstream by hand."""

from __future__ import annotations

from typing import Any

import pytest
from upstream_by_hand import Proxied

from minibroker.proxy.endpoints import NodeKey
from minibroker.requests.api import Api
from minibroker.requests.chain import Place
from minibroker.requests.context import CloseConnection, Handler
from minibroker_protocol import messages as m
from minibroker_protocol.headers import encode_request, encode_response_header

HEARTBEAT = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class PassOn:
    """A link that changes nothing, and notes what passes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def around(self, api: Api, onward: Handler) -> Handler:
        def handle(ctx: Any, request: Any) -> Any:
            self.seen.append(api.name)
            return onward(ctx, request)

        return handle


@pytest.fixture(params=["raw", "through the chain"])
def proxied(request: pytest.FixtureRequest) -> Proxied:
    made = Proxied()
    if request.param != "raw":
        made.dispatcher.link(Place.FAULTS_AND_TRACE, PassOn())
    return made


def row(key: int, low: int, high: int) -> m.ApiVersionsResponse.ApiVersion:
    return m.ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)


def test_addresses_are_the_proxys_and_a_node_keeps_its_port(proxied: Proxied) -> None:
    def brokers(port: int) -> m.MetadataResponse:
        kind = m.MetadataResponse.MetadataResponseBroker
        return m.MetadataResponse(
            brokers=[kind(node_id=n, host="kafka", port=port + n) for n in (1, 2)], cluster_id="c", topics=[]
        )

    for port in (9000, 9100):
        answer = proxied.ask(m.MetadataRequest(topics=[]), 12, brokers(port))
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
            (1, "127.0.0.1", 19001),
            (2, "127.0.0.1", 19002),
        ]
        assert answer.cluster_id == "c"
        assert proxied.nodes.brokers == {1: ("kafka", port + 1), 2: ("kafka", port + 2)}
        assert proxied.nodes.candidates(NodeKey(2)) == [("kafka", port + 2)]
    assert proxied.nodes.candidates(None) == [("kafka", 9092), ("kafka", 9101), ("kafka", 9102)]


def test_a_wildcard_is_named_as_the_client_named_it() -> None:
    proxied = Proxied()
    proxied.node.host, proxied.info.local_host = "0.0.0.0", "10.1.2.3"
    answer = proxied.ask(m.FindCoordinatorRequest(key="g"), 3, m.FindCoordinatorResponse(node_id=2, host="k", port=9))
    assert (answer.host, answer.port) == ("10.1.2.3", 19001)


def test_topic_ids_are_remembered_for_rules(proxied: Proxied) -> None:
    topic = m.MetadataResponse.MetadataResponseTopic(name="t", topic_id=b"i" * 16)
    proxied.ask(m.MetadataRequest(topics=None), 12, m.MetadataResponse(topics=[topic]))
    assert proxied.node.image.topic_names[b"i" * 16] == "t"


def test_a_long_answer_is_read_and_written_off_the_loop(proxied: Proxied) -> None:
    broker = m.MetadataResponse.MetadataResponseBroker(node_id=1, host="kafka", port=9)
    topics = [m.MetadataResponse.MetadataResponseTopic(name=f"topic-{n}", topic_id=b"i" * 16) for n in range(2500)]
    answer = proxied.ask(m.MetadataRequest(topics=None), 12, m.MetadataResponse(brokers=[broker], topics=topics))
    assert (answer.brokers[0].port, len(answer.topics)) == (19001, 2500)
    assert proxied.executor.computed == 2


def test_an_answer_without_addresses_passes_byte_by_byte() -> None:
    proxied = Proxied()
    waiting = proxied.send(encode_request(HEARTBEAT, 4, 1, "app"))
    proxied.upstream.answers(b"\0\0\0\x01 these bytes are no Heartbeat")
    assert b"".join(waiting.result())[4:] == b"\0\0\0\x01 these bytes are no Heartbeat"


def test_what_is_not_known_passes(proxied: Proxied) -> None:
    waiting = proxied.send(b"\0\x59\0\x09\0\0\0\x07 StreamsGroupDescribe")
    assert proxied.upstream.requests() == [b"\0\x59\0\x09\0\0\0\x07 StreamsGroupDescribe"]
    proxied.upstream.answers(b"\0\0\0\x07 whatever")
    assert b"".join(waiting.result()) == b"\0\0\0\x0d\0\0\0\x07 whatever"


def test_versions_of_the_upstream_pass_but_for_those_with_unreadable_addresses(proxied: Proxied) -> None:
    answer = proxied.ask(
        m.ApiVersionsRequest(client_software_name="x", client_software_version="1"),
        4,
        m.ApiVersionsResponse(api_keys=[row(3, 0, 99), row(18, 0, 4), row(22, 0, 99), row(79, 1, 3)]),
    )
    highest = m.MetadataResponse.__versions__[1]
    assert answer.api_keys == [row(3, 0, highest), row(18, 0, 4), row(22, 0, 99), row(79, 1, 2)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_upstream_that_refuses_a_version_of_api_versions_is_heard(proxied: Proxied, version: int) -> None:
    refusal = m.ApiVersionsResponse(error_code=35, api_keys=[row(18, 0, 2)]).encode(0)
    waiting = proxied.send(encode_request(m.ApiVersionsRequest(), version, 5, "app"))
    proxied.upstream.answers(b"\0\0\0\x05" + refusal)
    assert b"".join(waiting.result())[8:] == refusal


def test_a_version_of_api_versions_that_no_one_knows_is_refused_here(proxied: Proxied) -> None:
    frame = b"\0\x12\0\x63\0\0\0\x05\xff\xff\0"
    answer = proxied.dispatcher.dispatch(frame, proxied.info)
    assert isinstance(answer, list)
    assert m.ApiVersionsResponse.decode(b"".join(answer), 0, 8).error_code == 35
    assert proxied.upstream.requests() == []


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("transactional_id", [None, "", "x" * 200])
def test_acks_0_has_no_answer(proxied: Proxied, version: int, transactional_id: str | None) -> None:
    request = m.ProduceRequest(acks=0, timeout_ms=1, topic_data=[], transactional_id=transactional_id)
    assert proxied.send(encode_request(request, version, 1, "app")).result() is None
    assert proxied.upstream.requests() == [encode_request(request, version, 1, "app")]
    proxied.ask(
        m.ProduceRequest(acks=1, timeout_ms=1, topic_data=[], transactional_id=transactional_id),
        version,
        m.ProduceResponse(responses=[]),
    )


def test_each_connection_of_a_client_has_one_of_its_own_and_both_end_together(proxied: Proxied) -> None:
    for _ in range(2):
        proxied.ask(HEARTBEAT, 4, m.HeartbeatResponse(error_code=0))
    assert proxied.connects == 1
    proxied.lost("the upstream closed the connection")
    assert proxied.channel.closed == 1
    assert proxied.info.on_gone is not None
    proxied.info.on_gone()
    assert proxied.upstream.transport.calls == ["close"]
    proxied.send(encode_request(HEARTBEAT, 4, 1, "app"))
    assert proxied.connects == 2, "what comes at the place of that connection has an upstream of its own"


# -- SASL --------------------------------------------------------------------------------------------------------------


def handshake(proxied: Proxied, mechanism: str, version: int, *, error: int = 0) -> Any:
    mechanisms = ["GSSAPI", "PLAIN"]
    return proxied.ask(
        m.SaslHandshakeRequest(mechanism=mechanism),
        version,
        m.SaslHandshakeResponse(error_code=error, mechanisms=mechanisms),
    )


@pytest.mark.parametrize(("mechanism", "rounds"), [("PLAIN", 1), ("SCRAM-SHA-256", 2), ("OAUTHBEARER", 1)])
def test_tokens_without_a_header_pass_as_many_as_the_mechanism_has(
    proxied: Proxied, mechanism: str, rounds: int
) -> None:
    assert handshake(proxied, mechanism, 0).mechanisms == ["PLAIN"]
    for _ in range(rounds):
        waiting = proxied.send(b"\0\0\0\0 a token")
        assert proxied.upstream.requests() == [b"\0\0\0\0 a token"]
        proxied.upstream.answers(b"")
        assert b"".join(waiting.result()) == bytes(4)
    proxied.ask(HEARTBEAT, 4, m.HeartbeatResponse(error_code=0))


def test_an_error_of_oauthbearer_is_answered_by_one_more_token(proxied: Proxied) -> None:
    handshake(proxied, "OAUTHBEARER", 0)
    proxied.send(b"token")
    proxied.upstream.answers(b'{"status":"invalid_token"}')
    proxied.upstream.requests()
    proxied.send(b"\x01")
    assert proxied.upstream.requests() == [b"\x01"]


def test_another_mechanism_with_headers_passes(proxied: Proxied) -> None:
    handshake(proxied, "OTHER", 1)


@pytest.mark.parametrize(("version", "error"), [(1, 0), (0, 33)])
def test_after_other_handshakes_frames_are_requests(proxied: Proxied, version: int, error: int) -> None:
    handshake(proxied, "PLAIN", version, error=error)
    proxied.ask(m.SaslAuthenticateRequest(auth_bytes=b"x"), 1, m.SaslAuthenticateResponse(error_code=0))


@pytest.mark.parametrize(("mechanism", "version"), [("GSSAPI", 1), ("GSSAPI", 0), ("OTHER", 0)])
def test_a_mechanism_that_cannot_pass_is_refused_by_the_upstream_itself(
    proxied: Proxied, mechanism: str, version: int
) -> None:
    """Of an unknown one, without headers, nobody here knows which frame is its last."""
    waiting = proxied.send(encode_request(m.SaslHandshakeRequest(mechanism=mechanism), version, 3, "app"))
    (sent,) = proxied.upstream.requests()
    assert m.SaslHandshakeRequest.decode(sent, version, 13).mechanism == "NOT-THROUGH-A-PROXY"
    answer = m.SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI", "PLAIN"])
    proxied.upstream.answers(b"\0\0\0\x03" + answer.encode(version))
    got = m.SaslHandshakeResponse.decode(b"".join(waiting.result()), version, 8)
    assert (got.error_code, got.mechanisms) == (33, ["PLAIN"])


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [b"", b"\0\x03", b"\x60\x82\x02\x03\0\0\0\0", b"\xff\xff\0\0\0\0\0\0"])
def test_what_is_no_request_closes_the_connection(proxied: Proxied, frame: bytes) -> None:
    with pytest.raises(CloseConnection):
        proxied.dispatcher.dispatch(frame, proxied.info)
    assert proxied.upstream.requests() == []


def test_an_unreadable_answer_closes_the_connection(proxied: Proxied) -> None:
    waiting = proxied.send(encode_request(m.MetadataRequest(topics=[]), 12, 1, "app"))
    proxied.upstream.answers(b"\0\0\0\x01\0\0\0\0\0\x7f")
    with pytest.raises(CloseConnection, match="cannot be read"):
        waiting.result()


def test_a_node_for_which_no_port_can_be_opened_closes_the_connection(proxied: Proxied) -> None:
    proxied.port_error = OSError(24, "Too many open files")
    waiting = proxied.send(encode_request(m.FindCoordinatorRequest(key="g"), 3, 1, "app"))
    answer = m.FindCoordinatorResponse(node_id=2, host="kafka", port=9)
    proxied.upstream.answers(encode_response_header(10, 3, 1) + answer.encode(3))
    with pytest.raises(CloseConnection, match=r"^node 2 of the upstream gets no port here: Too many open files$"):
        waiting.result()


def test_a_request_of_its_own_has_gone_in_a_circle(proxied: Proxied) -> None:
    with pytest.raises(CloseConnection, match="came back"):
        proxied.dispatcher.dispatch(encode_request(m.ApiVersionsRequest(), 0, 1, "own"), proxied.info)
    assert proxied.circles == 1
