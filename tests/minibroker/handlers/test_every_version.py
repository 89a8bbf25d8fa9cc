"""Every row of the handler table answers in every version it claims, with bytes its own decoder reads to the end."""

from __future__ import annotations

import pytest
from memory_cluster import MemoryCluster

from minibroker.handlers.table import apis
from minibroker.requests.api import Api
from minibroker.requests.context import CloseConnection
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request

VERSIONS = [(api, version) for api in apis().values() for version in range(api.min_version, api.max_version + 1)]


def example(api: Api, version: int, cluster: MemoryCluster) -> Request:
    """A request with something in it, so that the answer has rows."""
    topic = cluster.broker.image.topics["t"]
    match api.request:
        case m.ListOffsetsRequest:
            wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
            return m.ListOffsetsRequest(
                replica_id=-1, topics=[m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])]
            )
        case m.MetadataRequest:
            return m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])
        case m.FetchRequest:
            by_id = version >= 13
            part = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
            named = m.FetchRequest.FetchTopic(
                topic="" if by_id else "t", topic_id=topic.topic_id if by_id else bytes(16), partitions=[part]
            )
            return m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[named])
        case m.OffsetForLeaderEpochRequest:
            ask = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
            return m.OffsetForLeaderEpochRequest(
                topics=[m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[ask])]
            )
        case m.DescribeConfigsRequest:
            resource = m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=2, resource_name="t", configuration_keys=None
            )
            return m.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        case m.ApiVersionsRequest:
            return (
                m.ApiVersionsRequest(client_software_name="x", client_software_version="1")
                if version >= 3
                else m.ApiVersionsRequest()
            )
        case _:
            return blank(api.request)


def blank(message: type[Request]) -> Request:
    """Every required field at its plainest."""
    plain = {"bool_": False, "string": "x", "uuid": bytes(16), "float64": 0.0, "bytes_": b"", "Records": b""}
    values: dict[str, object] = {}
    for field in message.__fields__:
        if not field.required:
            continue
        name, annotation = field.name, field.annotation
        if "None" in annotation:
            values[name] = None
        elif annotation.startswith("list["):
            values[name] = []
        else:
            values[name] = plain.get(annotation, 0)
    return message(**values)


@pytest.fixture(scope="module")
def cluster() -> MemoryCluster:
    return MemoryCluster(topics={"t": 1}, config={"unstable.api.versions.enable": "true"})


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=[f"{a.name}-v{v}" for a, v in VERSIONS])
def test_it_answers(api: Api, version: int, cluster: MemoryCluster) -> None:
    request = example(api, version, cluster)
    if api.request is m.CreateTopicsRequest:
        assert cluster.send(request, version).result().topics == []
        return
    try:
        answer = cluster.send(request, version)
    except CloseConnection:
        assert api.request is m.ProduceRequest
        return
    if not answer.done:
        cluster.timers.advance(60_000)
    if api.request is m.ProduceRequest:
        assert answer.result() is None  # acks=0
    else:
        assert isinstance(answer.result(), api.response)
