"""The one client of clusters: connections that break, and leaders."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from minibroker import Minibroker
from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import ConnectionClosed
from minibroker_protocol.errors import ApiError, ErrorCode


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(topics={"t": 2}, ephemeral=True) as running:
        yield running


def test_a_connection_that_was_closed_since_is_made_anew(broker: Minibroker) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        brokers = client.brokers()
        for connection in client._connections.values():
            connection.shut()
        assert client.brokers() == brokers


def test_a_broker_that_is_gone_is_named() -> None:
    with Minibroker(ephemeral=True) as other, ClusterClient(other.bootstrap_servers) as client:
        address = other.bootstrap_servers
        client.brokers()
        other.stop()
        with pytest.raises(ConnectionClosed, match=address):
            client.brokers()
        assert client._connections == {}


def test_it_can_be_pickled_while_connected(broker: Minibroker) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        leaders = client.leaders()
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy.leaders(["t"]) == leaders == {("t", 0): client.bootstrap[0], ("t", 1): client.bootstrap[0]}


def test_what_there_is_not(broker: Minibroker) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        with pytest.raises(ApiError, match="t has no partition 2"):
            client.leader("t", 2)
        with pytest.raises(ApiError) as refused:
            client.leader("nowhere", 0)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
