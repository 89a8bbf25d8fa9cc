"""Addresses in answers, and versions that are offered."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.kernel.addresses import Address
from minibroker.proxy.endpoints import CARRIERS, CONTROLLERS, NodeKey, carries_address, moved, offered
from minibroker_protocol import messages as m
from minibroker_protocol.registry import registry
from minibroker_protocol.structs import struct_types

NODE: dict[str, Any] = {"node_id": 3, "host": "kafka-3", "port": 9094}
CLUSTER: dict[str, Any] = {"broker_id": 3, "host": "kafka-3", "port": 9094}
LISTENERS = [m.DescribeQuorumResponse.Listener(name=name, host="kafka-3", port=9094) for name in ("A", "B")]
ANSWERS = [
    m.MetadataResponse(brokers=[m.MetadataResponse.MetadataResponseBroker(**NODE)], topics=[]),
    m.FindCoordinatorResponse(**NODE),
    m.FindCoordinatorResponse(coordinators=[m.FindCoordinatorResponse.Coordinator(key="g", **NODE)]),
    m.DescribeClusterResponse(brokers=[m.DescribeClusterResponse.DescribeClusterBroker(**CLUSTER)], cluster_id="c"),
    m.DescribeClusterResponse(
        brokers=[m.DescribeClusterResponse.DescribeClusterBroker(**CLUSTER)], cluster_id="c", endpoint_type=2
    ),
    m.DescribeQuorumResponse(topics=[], nodes=[m.DescribeQuorumResponse.Node(node_id=3, listeners=LISTENERS)]),
    m.ProduceResponse(responses=[], node_endpoints=[m.ProduceResponse.NodeEndpoint(**NODE)]),
    m.FetchResponse(responses=[], node_endpoints=[m.FetchResponse.NodeEndpoint(**NODE)]),
    *(
        response(
            throttle_time_ms=0,
            error_code=0,
            acquisition_lock_timeout_ms=0,
            responses=[],
            node_endpoints=[response.NodeEndpoint(**NODE)],
        )
        for response in (m.ShareFetchResponse, m.ShareAcknowledgeResponse)
    ),
]
KEYS = {4: [NodeKey(3, CONTROLLERS)], 5: [NodeKey(3, "A"), NodeKey(3, "B")]}


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_every_address_becomes_the_proxys(number: int) -> None:
    asked: list[tuple[NodeKey, Address]] = []

    def locate(key: NodeKey, address: Address) -> Address:
        asked.append((key, address))
        return "127.0.0.1", 19000

    answer = ANSWERS[number]
    key, version = answer.__api_key__, 3 if number == 1 else answer.__versions__[1]
    answer = type(answer).decode(answer.encode(version), version)
    assert moved(key, answer, locate)
    assert asked == [(each, ("kafka-3", 9094)) for each in KEYS.get(number, [NodeKey(3)])]
    assert b"kafka-3" not in answer.encode(version)
    assert not moved(key, answer, lambda _, here: here)


def test_no_address_is_left_as_it_is() -> None:
    nowhere = m.FindCoordinatorResponse(error_code=15, node_id=-1, host="", port=-1)
    assert not moved(10, nowhere, lambda *_: ("127.0.0.1", 19000))
    assert (nowhere.host, nowhere.port) == ("", -1)


def test_every_declared_answer_with_a_host_and_a_port_is_known() -> None:
    def has_address(kind: Any) -> bool:
        return {"host", "port"} <= {field.name for field in kind.__fields__}

    carrying = {
        key
        for key, (_, response) in registry().items()
        if any(map(has_address, (response, *struct_types(response).values())))
    }
    assert carrying == CARRIERS
    for key in carrying:
        low, high = registry()[key][1].__versions__
        # One whose list of nodes is of a later version has them behind a tag, or not at all, before it.
        assert carries_address(key, high)
        if key in (0, 1, 55):
            fields = [field for field in registry()[key][1].__fields__ if field.name in ("node_endpoints", "nodes")]
            first = fields[0].versions[0]
            assert [carries_address(key, version) for version in (first - 1, first)] == [False, True]
        else:
            assert carries_address(key, low)


def test_versions_that_cannot_be_read_are_not_offered() -> None:
    def row(key: int, low: int, high: int) -> m.ApiVersionsResponse.ApiVersion:
        return m.ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)

    high = m.MetadataResponse.__versions__[1]
    answer = m.ApiVersionsResponse(
        api_keys=[
            row(3, 0, high + 1),
            row(10, high + 90, high + 99),
            row(78, 1, 3),
            row(79, 0, 0),
            row(0, 0, 2),
            row(22, 0, 99),
            row(900, 0, 0),
        ]
    )
    assert offered(answer)
    assert answer.api_keys == [row(3, 0, high), row(78, 1, 2), row(0, 0, 2), row(22, 0, 99), row(900, 0, 0)]
    assert not offered(answer)
