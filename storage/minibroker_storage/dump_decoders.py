"""Readable forms of the coordinators' records in `__transaction_state` and `__consumer_offsets`."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from minibroker_protocol import coordinator_records
from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import Malformed
from minibroker_protocol.structs import Struct

TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"
DECODED_TOPICS = frozenset({TRANSACTIONS, OFFSETS})
LITERAL = "LiteralTransactionLog"
"""Type of a transactional id's state in the layout that KIP-360 spells out."""
_VERSION = struct.Struct(">h")


@cache
def _types(topic: str) -> dict[int, tuple[type[Data], type[Data]]]:
    """Record type -> key and value class. Type 0 is a transactional id in one topic, an old offset in the other."""
    found: dict[int, tuple[type[Data], type[Data]]] = {}
    for name, key in vars(coordinator_records).items():
        number = getattr(key, "__record_type__", None)
        if number is None or not name.endswith("Key") or (name == "TransactionLogKey") != (topic == TRANSACTIONS):
            continue
        found[number] = (key, getattr(coordinator_records, name.removesuffix("Key") + "Value"))
    return found


def decode_coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """`{"type", "key", "value", "version"}` of a coordinator's record; None when it is of no known type or broken."""
    if key is None or len(key) < _VERSION.size:
        return None
    types = _types(topic).get(_VERSION.unpack_from(key)[0])
    if types is None:
        return None
    row: dict[str, Any] = {"type": types[0].__name__.removesuffix("Key"), "key": None, "value": None}
    try:
        row["key"] = plain(types[0].decode(key, types[0].__versions__[1], _VERSION.size))
        if value is not None:
            if len(value) < _VERSION.size:
                return None
            row["version"] = _VERSION.unpack_from(value)[0]
            if topic == TRANSACTIONS and row["version"] == 1:
                literal = _literal(value)
                if literal is not None:
                    return row | {"type": LITERAL, "value": plain(literal)}
            row["value"] = plain(types[1].decode(value, row["version"], _VERSION.size))
    except Malformed:
        return None
    return row


def _literal(value: bytes) -> Data | None:
    """The value in KIP-360's own layout, which a directory may have; None when it is in Kafka's. Both layouts are
    version 1. A value is in the layout that its bytes fill exactly, in Kafka's if they fill both.
    """
    try:
        if coordinator_records.TransactionLogValue.decode_from(value, 1, _VERSION.size)[1] == len(value):
            return None
    except Malformed:
        pass
    try:
        found, end = coordinator_records.LiteralTransactionLogValue.decode_from(value, 1, _VERSION.size)
    except Malformed:
        return None
    return found if end == len(value) else None


def plain(value: object) -> Any:
    """A message as dicts and lists; bytes in hex."""
    if isinstance(value, Struct):
        return {field.name: plain(getattr(value, field.name)) for field in value.__fields__}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return value
