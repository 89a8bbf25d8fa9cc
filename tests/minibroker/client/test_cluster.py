"""The one client of clusters: connections that break, and leaders."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from scripted_broker import CLOSE, ScriptedBroker, scripted_broker

from minibroker import Minibroker
from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import ConnectionClosed
from minibroker.client.topics import LATEST, ReadingClient
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(topics={"t": 2}, ephemeral=True) as running:
        yield running


def test_a_connection_that_was_closed_since_is_made_anew(broker: Minibroker) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        brokers = client.brokers()
        broker.state.restart_broker(broker=1)
        assert client.brokers() == brokers


def test_a_broker_that_is_gone_is_named() -> None:
    with Minibroker(ephemeral=True) as other, ClusterClient(other.bootstrap_servers) as client:
        address = other.bootstrap_servers
        client.brokers()
        other.stop()
        with pytest.raises(ConnectionClosed, match=address):
            client.brokers()


def test_it_can_be_pickled_while_connected(broker: Minibroker) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        leaders = client.leaders()
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy.leaders(["t"]) == leaders == {("t", 0): client.bootstrap[0], ("t", 1): client.bootstrap[0]}


def test_what_there_is_not(broker: Minibroker) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        with pytest.raises(ApiError, match="t has no partition 2"):
            client.leader("t", 2)
        with pytest.raises(ApiError, match="topic nowhere is not in the cluster") as refused:
            client.leader("nowhere", 0)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    with scripted_broker() as running:
        yield running


def serve_only(broker: ScriptedBroker, **versions: int) -> None:
    """Advertise these APIs, each from version 0 to this one."""
    keys = {name: getattr(m, f"{name}Request").__api_key__ for name in versions}
    advertised = [
        m.ApiVersionsResponse.ApiVersion(api_key=keys[name], min_version=0, max_version=most)
        for name, most in versions.items()
    ]
    broker.handlers[m.ApiVersionsRequest] = lambda request, version: m.ApiVersionsResponse(
        error_code=0, api_keys=advertised
    )


def test_versions_are_the_brokers_highest_and_asked_for_once(scripted: ScriptedBroker) -> None:
    serve_only(scripted, Metadata=0, FindCoordinator=1, ListOffsets=99)
    partition = m.MetadataResponse.MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0]
    )
    node = m.MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=scripted.port)
    topic = m.MetadataResponse.MetadataResponseTopic(error_code=0, name="t", partitions=[partition])
    scripted.handlers[m.MetadataRequest] = lambda request, version: m.MetadataResponse(brokers=[node], topics=[topic])
    answer = m.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=7)
    topics = [m.ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[answer])]
    scripted.handlers[m.ListOffsetsRequest] = lambda request, version: m.ListOffsetsResponse(topics=topics)
    with ReadingClient(scripted.bootstrap) as client:
        assert [topic.name for topic in client.metadata(None).topics] == ["t"]
        assert client.coordinator("g", 0) == (0, client.bootstrap[0])
        assert client.offset("t", 0, LATEST) == 7
    asked = [(type(request).__name__.removesuffix("Request"), version) for request, version in scripted.requests]
    assert asked == [("ApiVersions", 0), ("Metadata", 0), ("FindCoordinator", 1), ("Metadata", 0), ("ListOffsets", 5)]
    assert scripted.requests[1][0].topics == [], "stands for all topics in version 0, which cannot have null"


def test_the_controller_and_none(scripted: ScriptedBroker) -> None:
    with ClusterClient(scripted.bootstrap) as client:
        assert client.controller() == client.bootstrap[0]
        scripted.handlers[m.MetadataRequest] = lambda request, version: m.MetadataResponse(
            brokers=[], controller_id=-1, topics=[]
        )
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            client.controller()


def test_a_coordinator_that_does_not_come(scripted: ScriptedBroker) -> None:
    scripted.handlers[m.FindCoordinatorRequest] = lambda request, version: m.FindCoordinatorResponse(error_code=15)
    with ClusterClient(scripted.bootstrap) as client:
        with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE: the coordinator of g"):
            client.coordinator("g", 0, patience=0.1)
        assert sum(isinstance(request, m.FindCoordinatorRequest) for request, _ in scripted.requests) > 1


def test_the_request_that_failed_is_named_and_tls_suspected_only_of_a_stranger(scripted: ScriptedBroker) -> None:
    scripted.handlers[m.FindCoordinatorRequest] = lambda request, version: CLOSE
    said = f"^{scripted.bootstrap}: FindCoordinator v2: connection closed by the broker"
    with ClusterClient(scripted.bootstrap) as client:
        with pytest.raises(ConnectionClosed, match=said + "; does this listener want TLS"):
            client.coordinator("g", 0)
        client.brokers()
        with pytest.raises(ConnectionClosed, match=said + "$"):
            client.coordinator("g", 0)
