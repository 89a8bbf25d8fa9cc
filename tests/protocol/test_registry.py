"""What is declared, against what a live Kafka 4.4.0 broker advertised."""

from __future__ import annotations

from minibroker_protocol.dsl import Request
from minibroker_protocol.registry import all_messages, registry

# min-max per key, as two live 4.4.0 brokers advertise them.
ADVERTISED = """
0:0-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1 18:0-5 19:2-7
20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-6 29:1-3 30:1-3 31:1-3 32:1-4 33:0-2 34:1-2 35:1-5
36:0-2 37:0-3 42:0-3 43:0-2 44:0-1 45:0-1 46:0-0 47:0-0 48:0-1 49:0-1 50:0-0 51:0-0 55:0-2 57:0-2 60:0-2 61:0-0
64:0-0 65:0-0 66:0-2 68:0-1 69:0-1 74:0-1 75:0-0
"""


def advertised(request: type[Request]) -> str:
    low, high = request.__versions__
    if request.__api_key__ == 0:
        low = 0  # KAFKA-18659: librdkafka wants to see version 0, which no broker accepts.
    return f"{request.__api_key__}:{low}-{high - request.__latest_unstable__}"


def test_versions_are_those_a_live_broker_advertises() -> None:
    # Brokers here do not serve share consumers, whose messages pass through a proxy.
    ours = [
        advertised(request)
        for request, _ in registry().values()
        if not request.__private__ and not request.__module__.endswith(("inter_broker", "share"))
    ]
    assert ours == ADVERTISED.split()


def test_request_and_response_have_the_same_versions() -> None:
    for key, (request, response) in registry().items():
        assert request.__api_key__ == response.__api_key__ == key
        assert request.__versions__ == response.__versions__
        assert request.__flexible__ == response.__flexible__
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")


def test_the_call_of_kip_360_is_private() -> None:
    request, response = registry()[10001]
    assert request.__private__
    assert response.__private__
    assert request(transactional_ids=["a"]).encode(0).hex() == "00000001000161"


def test_all_messages_are_there_once() -> None:
    ours = [m.__name__ for m in all_messages() if m.__module__.startswith("minibroker_protocol.")]
    assert len(ours) == len(set(ours))
    assert {"RequestHeader", "ProduceRequest", "TransactionLogValue", "EndTxnMarker"} <= set(ours)
