"""A bare connection for benchmarks: requests are encoded once and sent many times, to leave the cost to the broker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

from minibroker_protocol.dsl import Request
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import registry

CORRELATION_ID_AT = 8
PRODUCE_VERSION = 10  # the highest that every peer has
FETCH_VERSION = 12
SECONDS = 60.0


class Connection:
    """One blocking connection; counts are in requests, sizes in bytes."""

    def __init__(self, bootstrap: str, seconds: float = SECONDS) -> None:
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 21)
        self._sent = 0
        self._received = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytearray) -> None:
        """Send a frame under the next correlation id."""
        self._sent += 1
        struct.pack_into(">i", frame, CORRELATION_ID_AT, self._sent)
        self._socket.sendall(frame)

    def receive(self, flexible: bool) -> memoryview:
        """The body of the next response, valid until the next call."""
        size = struct.unpack(">i", self._exactly(4))[0]
        frame = self._exactly(size)
        self._received += 1
        correlation_id = struct.unpack_from(">i", frame)[0]
        if correlation_id != self._received:
            raise RuntimeError(f"answer {correlation_id} where {self._received} was due")
        return frame[5:] if flexible else frame[4:]

    def call(self, request: Request, version: int) -> Any:
        """Send one request and decode its response."""
        response = registry()[request.__api_key__][1]
        self.send(encode_frame(request, version))
        flexible = request.__api_key__ != ApiVersionsRequest.__api_key__ and is_flexible(request, version)
        return response.decode(self.receive(flexible), version)

    def _exactly(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view, got = memoryview(self._buffer)[:size], 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ConnectionError("closed by the broker")
            got += count
        return view


def is_flexible(request: Request, version: int) -> bool:
    return version >= first_flexible_version(request.__api_key__)


def encode_frame(request: Request, version: int) -> bytearray:
    header = RequestHeader(
        request_api_key=request.__api_key__, request_api_version=version, correlation_id=0, client_id="bench"
    )
    body = header.encode(2 if is_flexible(request, version) else 1) + request.encode(version)
    return bytearray(struct.pack(">i", len(body)) + body)


def serves_metadata(bootstrap: str) -> bool:
    """Whether a broker is there and lists itself."""
    try:
        connection = Connection(bootstrap, 5)
    except OSError:
        return False
    try:
        return bool(connection.call(MetadataRequest(topics=[]), 9).brokers)
    except (OSError, RuntimeError):
        return False
    finally:
        connection.close()


def create_topic(connection: Connection, name: str, partitions: int = 1) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    answer = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=30000), 7)
    if answer.topics[0].error_code:
        raise RuntimeError(f"CreateTopics: error {answer.topics[0].error_code}")


def produce_frame(topic: str, sizes: Sequence[int], timestamp_ms: int) -> bytearray:
    """A Produce request of one batch for partition 0, its records of these sizes."""
    batch = build_batch([Record(i, timestamp_ms, None, b"x" * size, []) for i, size in enumerate(sizes)])
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return encode_frame(request, PRODUCE_VERSION)


def fetch_frame(topic: str, offset: int, max_bytes: int) -> bytearray:
    """A Fetch request, without a session, of partition 0."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    return encode_frame(request, FETCH_VERSION)
