"""The short forms of requests, and mappings to messages and back."""

from typing import Any

import pytest

from minibroker_lab.conformance.batches import ReceivedRecords
from minibroker_lab.conformance.failure import ScenarioError
from minibroker_lab.conformance.messages import apis, decode_response, encode_body, encode_request
from minibroker_lab.conformance.requests import request_body
from minibroker_protocol.headers import encode_response_header
from minibroker_protocol.messages import (
    FetchResponse,
    FindCoordinatorRequest,
    MetadataResponse,
    ProduceRequest,
)

ID = "01020304-0506-0708-090a-0b0c0d0e0f10"
VARIABLES = {"t": "mb-t", "t.id": ID, "pid": 7, "other": "mb-t2"}


def body(api: str, version: int, **step: Any) -> dict[str, Any]:
    return request_body(api, version, step, VARIABLES, lambda: 1000)


@pytest.mark.parametrize(
    ("api", "version", "step", "expected"),
    [
        (
            "Fetch",
            13,
            {"at": "t/0@5", "part": {"logStartOffset": 2}, "req": {"maxWaitMs": 7}},
            {
                "maxWaitMs": 7,
                "minBytes": 0,
                "maxBytes": 10 << 20,
                "topics": [
                    {
                        "topic": "mb-t",
                        "topicId": ID,
                        "partitions": [
                            {
                                "partition": 0,
                                "fetchOffset": 5,
                                "partitionMaxBytes": 1 << 20,
                                "currentLeaderEpoch": -1,
                                "logStartOffset": 2,
                            }
                        ],
                    }
                ],
            },
        ),
        (
            "ListOffsets",
            5,
            {"at": ["t/0@-1", "other/1@$pid", "t/2@-2"]},
            {
                "replicaId": -1,
                "topics": [
                    {
                        "name": "mb-t",
                        "partitions": [{"partitionIndex": 0, "timestamp": -1}, {"partitionIndex": 2, "timestamp": -2}],
                    },
                    {"name": "mb-t2", "partitions": [{"partitionIndex": 1, "timestamp": 7}]},
                ],
            },
        ),
        (
            "AddPartitionsToTxn",
            3,
            {"at": ["t/0", "t/1"], "req": {"transactionalId": "x", "producerId": "$pid", "producerEpoch": 0}},
            {
                "v3AndBelowTransactionalId": "x",
                "v3AndBelowProducerId": 7,
                "v3AndBelowProducerEpoch": 0,
                "v3AndBelowTopics": [{"name": "mb-t", "partitions": [0, 1]}],
            },
        ),
        (
            "AddPartitionsToTxn",
            4,
            {"at": "t/0", "req": {"transactionalId": "x", "producerId": 1, "producerEpoch": 0, "verifyOnly": True}},
            {
                "transactions": [
                    {
                        "transactionalId": "x",
                        "producerId": 1,
                        "producerEpoch": 0,
                        "verifyOnly": True,
                        "topics": [{"name": "mb-t", "partitions": [0]}],
                    }
                ]
            },
        ),
        (
            "TxnOffsetCommit",
            3,
            {"at": "t/0@9", "part": {"committedLeaderEpoch": 1}},
            {
                "topics": [
                    {
                        "name": "mb-t",
                        "topicId": ID,
                        "partitions": [
                            {
                                "partitionIndex": 0,
                                "committedOffset": 9,
                                "committedMetadata": "",
                                "committedLeaderEpoch": 1,
                            }
                        ],
                    }
                ]
            },
        ),
        (
            "OffsetCommit",
            8,
            {"at": "unknown/0@9"},
            {
                "topics": [
                    {
                        "name": "unknown",
                        "topicId": "ab629a2d-0f0e-56e6-8526-eedccbdaea52",
                        "partitions": [{"partitionIndex": 0, "committedOffset": 9, "committedMetadata": ""}],
                    }
                ]
            },
        ),
        (
            "OffsetFetch",
            7,
            {"at": "t/0", "req": {"groupId": "g"}},
            {"groupId": "g", "topics": [{"name": "mb-t", "partitionIndexes": [0]}]},
        ),
        (
            "OffsetFetch",
            8,
            {"at": "t/0", "req": {"groupId": "g"}},
            {
                "groups": [
                    {"groupId": "g", "topics": [{"name": "mb-t", "topicId": ID, "partitionIndexes": [0]}]},
                ]
            },
        ),
        ("DescribeProducers", 0, {"at": "t/0"}, {"topics": [{"name": "mb-t", "partitionIndexes": [0]}]}),
        (
            "DeleteRecords",
            2,
            {"at": "t/0@-1"},
            {"timeoutMs": 5000, "topics": [{"name": "mb-t", "partitions": [{"partitionIndex": 0, "offset": -1}]}]},
        ),
        (
            "OffsetForLeaderEpoch",
            4,
            {"at": "t/0@3", "part": {"currentLeaderEpoch": 0}},
            {
                "replicaId": -2,
                "topics": [
                    {"topic": "mb-t", "partitions": [{"partition": 0, "leaderEpoch": 3, "currentLeaderEpoch": 0}]}
                ],
            },
        ),
        ("OffsetDelete", 0, {"at": "t/0"}, {"topics": [{"name": "mb-t", "partitions": [{"partitionIndex": 0}]}]}),
        (
            "WriteTxnMarkers",
            1,
            {"at": "t/0", "req": {"markers": [{"producerId": "$pid"}]}},
            {"markers": [{"producerId": 7, "topics": [{"name": "mb-t", "partitionIndexes": [0]}]}]},
        ),
        ("Heartbeat", 3, {"req": {"groupId": "$t"}}, {"groupId": "mb-t"}),
    ],
)
def test_short_forms(api: str, version: int, step: dict[str, Any], expected: dict[str, Any]) -> None:
    made = body(api, version, **step)
    assert made == expected
    low, high = apis()[api][0].__versions__
    assert low <= version <= high
    assert encode_body(api, version, made)


def test_produce_forms() -> None:
    one = body("Produce", 9, at="t/0", batch={"values": ["a"]}, req={"acks": 1})
    assert (one["acks"], one["timeoutMs"]) == (1, 5000)
    (topic,) = one["topicData"]
    assert (topic["name"], topic["topicId"], topic["partitionData"][0]["index"]) == ("mb-t", ID, 0)
    records = topic["partitionData"][0]["records"]
    two = body("Produce", 9, at="t/0", batches=[{"values": ["a"]}, {"values": ["a"]}])
    assert two["topicData"][0]["partitionData"][0]["records"] == records * 2
    many = body("Produce", 9, at={"t/0": {"values": ["a"]}, "other/1": None, "t/2": {"hex": ""}})
    assert [topic["name"] for topic in many["topicData"]] == ["mb-t", "mb-t2"]
    assert [part["records"] for part in many["topicData"][0]["partitionData"]] == [records, b""]
    assert many["topicData"][1]["partitionData"] == [{"index": 1, "records": None}]
    assert body("Produce", 9)["topicData"] == []


def test_short_forms_that_lack_something() -> None:
    with pytest.raises(ScenarioError, match="markers"):
        body("WriteTxnMarkers", 1, at="t/0")
    with pytest.raises(ScenarioError, match="Heartbeat has no short form"):
        body("Heartbeat", 3, at="t/0")


def test_requests_take_defaults_and_drop_what_the_version_lacks() -> None:
    encoded = encode_body("Produce", 13, {"acks": 1, "topicData": {"name": "t", "topicId": ID}})
    request = ProduceRequest.decode(encoded, 13)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, 1, 0)
    assert request.topic_data[0].topic_id == bytes(range(1, 17))
    assert request.topic_data[0].partition_data == []
    # coordinatorKeys (v4+) may not be lost silently by other senders; a scenario means every version with one body
    old = FindCoordinatorRequest.decode(encode_body("FindCoordinator", 3, {"key": "k", "coordinatorKeys": ["a"]}), 3)
    assert (old.key, old.coordinator_keys) == ("k", [])


def test_a_null_client_id() -> None:
    frame = encode_request("Heartbeat", 3, {"groupId": "g"}, correlation_id=1, client_id=None)
    assert frame[8:10] == b"\xff\xff"


def test_a_response_as_a_mapping() -> None:
    partition = FetchResponse.PartitionData(
        partition_index=1, error_code=1, high_watermark=5, records=b"", aborted_transactions=None
    )
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    frame = bytearray(encode_response_header(1, 12, 9) + FetchResponse(responses=[topic]).encode(12))
    correlation_id, response = decode_response(frame, "Fetch", 12)
    assert correlation_id == 9
    assert response["errorCode"] == "NONE"
    (found,) = response["responses"][0]["partitions"]
    assert "topicId" not in response["responses"][0]
    assert isinstance(found.pop("records"), ReceivedRecords)
    assert found == {
        "partitionIndex": 1,
        "errorCode": "OFFSET_OUT_OF_RANGE",
        "highWatermark": 5,
        "lastStableOffset": -1,
        "logStartOffset": -1,
        "abortedTransactions": None,
        "preferredReadReplica": -1,
    }  # tagged fields are there only when they are sent
    partition.diverging_epoch = FetchResponse.EpochEndOffset(epoch=3, end_offset=4)
    frame = bytearray(encode_response_header(1, 12, 9) + FetchResponse(responses=[topic]).encode(12))
    _, response = decode_response(frame, "Fetch", 12)
    assert response["responses"][0]["partitions"][0]["divergingEpoch"] == {"epoch": 3, "endOffset": 4}


def test_ids_are_text() -> None:
    topic = MetadataResponse.MetadataResponseTopic(error_code=0, name=None, topic_id=bytes(range(1, 17)), partitions=[])
    frame = bytearray(encode_response_header(3, 12, 1) + MetadataResponse(brokers=[], topics=[topic]).encode(12))
    _, response = decode_response(frame, "Metadata", 12)
    assert (response["topics"][0]["topicId"], response["topics"][0]["name"]) == (ID, None)
