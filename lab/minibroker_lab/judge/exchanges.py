"""Rows from the wire: exchanges in the order in which they ended, and the produced batches."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from minibroker_protocol.errors import Malformed
from minibroker_protocol.headers import parse_request_header
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.records import Record, decode_records, iter_batches

Exchange = dict[str, Any]
"""As `minibroker.trace.recorder.Recorded.to_json` has it, of Produce with its ``request_frame`` too."""


class Produced(NamedTuple):
    """A batch that a client sent.

    batch: its producer id, epoch and first sequence.
    base_offset: as answered, -1 when the answer was an error or never came.
    transactional: as its header says.
    error_code: of its partition, 0 when there was no error or no answer.
    """

    exchange: Exchange
    topic: str
    partition: int
    batch: tuple[int, int, int]
    records: list[Record]
    base_offset: int
    transactional: bool = False
    error_code: int = 0


def produced(exchanges: Iterable[Exchange], topic_names: Mapping[bytes, str]) -> list[Produced]:
    """Every readable batch of the Produce requests.

    topic_names: by topic id.
    """
    rows: list[Produced] = []
    for exchange in exchanges:
        if exchange["api"] == "Produce" and exchange.get("request_frame"):
            rows += _batches(exchange, topic_names)
    return rows


def _batches(exchange: Exchange, topic_names: Mapping[bytes, str]) -> Iterable[Produced]:
    frame = base64.b64decode(exchange["request_frame"])
    try:
        _, version, _, _, body = parse_request_header(frame)
        request = ProduceRequest.decode(frame, version, body)
    except Malformed:
        return
    answers = _answers(exchange)
    for topic in request.topic_data:
        topic_id = bytes(topic.topic_id)
        name = topic.name or topic_names.get(topic_id, "")
        for data in topic.partition_data:
            place = topic.name or str(uuid.UUID(bytes=topic_id)), data.index
            offset, code = answers.get(place, (-1, 0))
            try:
                for _, header in iter_batches(data.records or b""):
                    whole = bytes(data.records or b"")
                    batch = header.producer_id, header.producer_epoch, header.base_sequence
                    records = decode_records(whole, 0, header)
                    yield Produced(exchange, name, data.index, batch, records, offset, header.is_transactional, code)
                    break  # one batch a partition is all that a Produce may carry
            except Malformed:
                continue


def _answers(exchange: Exchange) -> dict[tuple[str, int], tuple[int, int]]:
    """(topic's name or id, partition) → base offset (-1: an error) and error code, where the answer left."""
    response = exchange["response"]
    if response is None or exchange["outcome"] != "answered":
        return {}
    return {
        (topic.get("name") or topic.get("topic_id", ""), partition["index"]): (
            -1 if partition["error_code"] else partition["base_offset"],
            partition["error_code"],
        )
        for topic in response["responses"]
        for partition in topic["partition_responses"]
    }
