"""How long messages take to decode and encode, beside kio: ``python benchmarks/codec.py [rounds]``.

Prints median CPU microseconds per message, ours / kio's, measured in turns. Needs kio (the ``test`` extra).
"""

from __future__ import annotations

import dataclasses
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "protocol"), str(HERE / "tests/support/lockstep_and_search")]

from kio.serial import entity_reader, entity_writer  # noqa: E402
from kio_bridge import Bridge, kio_class  # noqa: E402

from minibroker_protocol import messages as m  # noqa: E402
from minibroker_protocol.dsl import Message  # noqa: E402
from minibroker_protocol.headers import parse_request_header  # noqa: E402
from minibroker_protocol.shapes import Shapes  # noqa: E402

ID = bytes(range(16))


def produce(version: int) -> tuple[Message, Message]:
    named = {"name": "topic-a"} if version < 13 else {"topic_id": ID}
    partition = m.ProduceRequest.PartitionProduceData(index=3, records=bytes(16384))
    request = m.ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=[m.ProduceRequest.TopicProduceData(partition_data=[partition], **named)],
    )
    answer = m.ProduceResponse.PartitionProduceResponse(
        index=3, error_code=0, base_offset=123456, log_append_time_ms=-1, log_start_offset=0
    )
    response = m.ProduceResponse(
        responses=[m.ProduceResponse.TopicProduceResponse(partition_responses=[answer], **named)]
    )
    return request, response


def fetch(version: int, records: bytes) -> tuple[Message, Message]:
    named = {"topic": "topic-a"} if version < 13 else {"topic_id": ID}
    epochs: dict[str, Any] = {"log_start_offset": -1} if version >= 5 else {}
    request = m.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[
            m.FetchRequest.FetchTopic(
                partitions=[
                    m.FetchRequest.FetchPartition(
                        partition=p, fetch_offset=1000 + p, partition_max_bytes=1048576, **epochs
                    )
                    for p in range(10)
                ],
                **named,
            )
        ],
    )
    response = m.FetchResponse(
        responses=[
            m.FetchResponse.FetchableTopicResponse(
                partitions=[
                    m.FetchResponse.PartitionData(
                        partition_index=p,
                        high_watermark=5000,
                        last_stable_offset=5000,
                        aborted_transactions=[],
                        records=records,
                    )
                    for p in range(1 if len(records) > 1000 else 10)
                ],
                **named,
            )
        ]
    )
    return request, response


def metadata() -> tuple[Message, Message]:
    request = m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name=f"topic-{i}") for i in range(10)],
        allow_auto_topic_creation=True,
    )
    broker = m.MetadataResponse.MetadataResponseBroker
    partition = m.MetadataResponse.MetadataResponsePartition
    response = m.MetadataResponse(
        brokers=[broker(node_id=n, host="broker.example", port=9092) for n in range(3)],
        cluster_id="abcdefghijklmnopqrstuv",
        controller_id=1,
        topics=[
            m.MetadataResponse.MetadataResponseTopic(
                error_code=0,
                name=f"topic-{i}",
                topic_id=ID,
                partitions=[
                    partition(
                        error_code=0,
                        partition_index=p,
                        leader_id=1,
                        leader_epoch=4,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                        offline_replicas=[],
                    )
                    for p in range(8)
                ],
            )
            for i in range(10)
        ],
    )
    return request, response


def api_versions() -> tuple[Message, Message]:
    request = m.ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.0")
    keys = [m.ApiVersionsResponse.ApiVersion(api_key=k, min_version=0, max_version=9) for k in range(60)]
    return request, m.ApiVersionsResponse(error_code=0, api_keys=keys)


def init_producer_id() -> tuple[Message, Message]:
    request = m.InitProducerIdRequest(
        transactional_id="tx-1", transaction_timeout_ms=60000, producer_id=-1, producer_epoch=-1
    )
    return request, m.InitProducerIdResponse(error_code=0, producer_id=1000, producer_epoch=0)


def end_txn(version: int) -> tuple[Message, Message]:
    request = m.EndTxnRequest(transactional_id="tx-1", producer_id=1000, producer_epoch=0, committed=True)
    ids = {"producer_id": 1000, "producer_epoch": 1} if version >= 5 else {}
    return request, m.EndTxnResponse(error_code=0, **ids)


def add_partitions(version: int) -> tuple[Message, Message]:
    q, r = m.AddPartitionsToTxnRequest, m.AddPartitionsToTxnResponse
    topics = [q.AddPartitionsToTxnTopic(name=f"topic-{i}", partitions=[0, 1, 2]) for i in range(3)]
    results = [
        r.AddPartitionsToTxnTopicResult(
            name=f"topic-{i}",
            results_by_partition=[
                r.AddPartitionsToTxnPartitionResult(partition_index=p, partition_error_code=0) for p in range(3)
            ],
        )
        for i in range(3)
    ]
    if version <= 3:
        return (
            q(
                v3_and_below_transactional_id="tx-1",
                v3_and_below_producer_id=1000,
                v3_and_below_producer_epoch=0,
                v3_and_below_topics=topics,
            ),
            r(results_by_topic_v3_and_below=results),
        )
    transaction = q.AddPartitionsToTxnTransaction(
        transactional_id="tx-1", producer_id=1000, producer_epoch=0, verify_only=False, topics=topics
    )
    result = r.AddPartitionsToTxnResult(transactional_id="tx-1", topic_results=results)
    return q(transactions=[transaction]), r(results_by_transaction=[result])


def join_group() -> tuple[Message, Message]:
    q, r = m.JoinGroupRequest, m.JoinGroupResponse
    request = q(
        group_id="group",
        session_timeout_ms=45000,
        rebalance_timeout_ms=300000,
        member_id="member-1",
        protocol_type="consumer",
        protocols=[q.JoinGroupRequestProtocol(name=n, metadata=bytes(60)) for n in ("range", "sticky")],
    )
    members = [r.JoinGroupResponseMember(member_id=f"member-{i}", metadata=bytes(60)) for i in range(3)]
    response = r(
        error_code=0,
        generation_id=3,
        protocol_type="consumer",
        protocol_name="range",
        leader="member-1",
        member_id="member-1",
        members=members,
    )
    return request, response


def offset_fetch() -> tuple[Message, Message]:
    q, r = m.OffsetFetchRequest, m.OffsetFetchResponse
    topic = q.OffsetFetchRequestTopics(name="topic-a", partition_indexes=list(range(10)))
    partition = r.OffsetFetchResponsePartitions
    answers = [
        partition(partition_index=p, committed_offset=100, committed_leader_epoch=-1, metadata="", error_code=0)
        for p in range(10)
    ]
    return (
        q(groups=[q.OffsetFetchRequestGroup(group_id="group", topics=[topic])], require_stable=True),
        r(
            groups=[
                r.OffsetFetchResponseGroup(
                    group_id="group", topics=[r.OffsetFetchResponseTopics(name="topic-a", partitions=answers)]
                )
            ]
        ),
    )


def rows() -> Iterator[tuple[str, int, tuple[Message, Message]]]:
    yield "ApiVersions v3 (60 keys)", 3, api_versions()
    yield "Metadata v12 (10x8)", 12, metadata()
    for version in (9, 11, 13):
        yield f"Produce v{version} (16 KB)", version, produce(version)
    for version in (4, 13, 17):
        yield f"Fetch v{version} (10 p; 1 MB)", version, fetch(version, bytes(1 << 20))
    yield "Fetch v13 (10 p x 100 B)", 13, fetch(13, bytes(100))
    yield "InitProducerId v4", 4, init_producer_id()
    for version in (3, 4, 5):
        yield f"AddPartitionsToTxn v{version}", version, add_partitions(version)
    for version in (4, 5):
        yield f"EndTxn v{version}", version, end_txn(version)
    yield "JoinGroup v9 (3 members)", 9, join_group()
    yield "OffsetFetch v9 (10 p)", 9, offset_fetch()


def timed(call: Callable[[], object]) -> Callable[[], float]:
    start = time.thread_time()
    count = 0
    while time.thread_time() - start < 0.01:
        call()
        count += 1

    def once() -> float:
        start = time.thread_time()
        for _ in range(count):
            call()
        return (time.thread_time() - start) / count * 1e6

    return once


def constructor(instance: Any) -> Callable[[], Any]:
    """A function that builds an equal instance through the keyword constructors."""
    names: dict[str, Any] = {}

    def expression(value: Any) -> str:
        fields = [
            f.name for f in (dataclasses.fields(value) if is_dataclass(value) else getattr(value, "__fields__", ()))
        ]
        if fields:
            names[name := type(value).__name__] = type(value)
            return f"{name}({', '.join(f'{f}={expression(getattr(value, f))}' for f in fields)})"
        if isinstance(value, list):
            return f"[{', '.join(map(expression, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(expression(v) + ', ' for v in value)})"
        if type(value) in (int, bool, str, type(None)):
            return repr(value)
        names[name := f"constant{len(names)}"] = value
        return name

    return eval(f"lambda: {expression(instance)}", names)  # type: ignore[no-any-return]


def compare(version: int, request: Message, response: Message, rounds: int) -> list[tuple[float, float]]:
    """[(ours, kio's) of decoding the request, (ours, kio's) of building and encoding the response], µs."""
    kio_request, kio_response = kio_class(type(request), version), kio_class(type(response), version)
    read, write = entity_reader(kio_request), entity_writer(kio_response)
    wire = request.encode(version)
    theirs = Bridge(Shapes(type(response), version)).struct(response, kio_response)
    decode = type(request).decode
    build_ours, build_theirs = constructor(response), constructor(theirs)
    kio_wire = bytes(wire)

    def write_theirs() -> None:
        write(io.BytesIO(), build_theirs())

    calls = [
        timed(lambda: decode(wire, version)),
        timed(lambda: read(kio_wire, 0)),
        timed(lambda: build_ours().encode_buffers(version)),
        timed(write_theirs),
    ]
    taken = [[call() for call in calls] for _ in range(rounds)]
    medians = [median(column) for column in zip(*taken, strict=True)]
    return [(medians[0], medians[1]), (medians[2], medians[3])]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"{'µs, ours / kio':28} {'decode request':>18} {'build+encode response':>24} {'kio : ours':>11}")
    for name, version, (request, response) in rows():
        decode, encode = compare(version, request, response, rounds)
        ratio = (decode[1] + encode[1]) / (decode[0] + encode[0])
        print(
            f"{name:28} {decode[0]:8.2f} / {decode[1]:7.2f} {encode[0]:11.2f} / {encode[1]:10.2f} {ratio:10.1f}x",
            flush=True,
        )
    header = bytes.fromhex("0000000d0000002a0007636c69656e7431") + b"\0"
    once = timed(lambda: parse_request_header(header))
    print(f"{'RequestHeader v2':28} {median(once() for _ in range(rounds)):8.2f}")


if __name__ == "__main__":
    main()
