"""Readable forms of records in `__transaction_state`, `__consumer_offsets` and `__cluster_metadata`."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any, NamedTuple

from minibroker_protocol import coordinator_records
from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import Malformed
from minibroker_protocol.metadata_records import decode_metadata_record
from minibroker_protocol.structs import Struct
from minibroker_storage.partition_metadata import topic_id_text

TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"
DECODED_TOPICS = frozenset({TRANSACTIONS, OFFSETS})
LITERAL = "LiteralTransactionLog"
"""Type of a transactional id's state in the layout that KIP-360 spells out."""
_VERSION = struct.Struct(">h")
_ID_BYTES = 16


class CoordinatorRecord(NamedTuple):
    """`type` is the name of its classes without Key and Value, or LITERAL; `value` and `version`, which is the value's,
    are None for a tombstone."""

    type: str
    key: Data
    value: Data | None
    version: int | None


def coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """A coordinator's record; None when it is of no known type or broken."""
    if key is None or len(key) < _VERSION.size:
        return None
    types = coordinator_records.record_types(topic).get(_VERSION.unpack_from(key)[0])
    if types is None:
        return None
    name = types[0].__name__.removesuffix("Key")
    try:
        decoded = types[0].decode(key, types[0].__versions__[1], _VERSION.size)
        if value is None:
            return CoordinatorRecord(name, decoded, None, None)
        if len(value) < _VERSION.size:
            return None
        version = _VERSION.unpack_from(value)[0]
        if topic == TRANSACTIONS and version == 1:
            return _of_version_1(name, decoded, value)
        return CoordinatorRecord(name, decoded, types[1].decode(value, version, _VERSION.size), version)
    except Malformed:
        return None


def decode_coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """`{"type", "key", "value", "version"}` of a coordinator's record; None when it is of no known type or broken."""
    record = coordinator_record(topic, key, value)
    if record is None:
        return None
    row = {"type": record.type, "key": plain(record.key), "value": plain(record.value)}
    return row if record.version is None else row | {"version": record.version}


_SECRET = frozenset({"salt", "stored_key", "server_key"})
"""Fields of a SCRAM credential, from which a weak password can be guessed."""


def decode_metadata(value: bytes | None) -> dict[str, Any] | None:
    """`{"type", "value"}` of a record in a metadata log; None when it is of a type that is not read here, or broken."""
    try:
        record = None if value is None else decode_metadata_record(value)
    except Malformed:
        return None
    if record is None:
        return None
    fields = {field.name: getattr(record, field.name) for field in record.__fields__}
    value_row = {name: "hidden" if name in _SECRET else plain(content, ids=True) for name, content in fields.items()}
    return {"type": type(record).__name__, "value": value_row}


def _of_version_1(name: str, key: Data, value: bytes) -> CoordinatorRecord | None:
    """In Kafka's layout or in KIP-360's own, which a directory may have: both are version 1. A value is in the layout
    that its bytes fill exactly, in Kafka's if they fill both or neither.
    """
    kafkas, end = None, 0
    with suppress(Malformed):
        kafkas, end = coordinator_records.TransactionLogValue.decode_from(value, 1, _VERSION.size)
    if end != len(value):
        with suppress(Malformed):
            literal, end = coordinator_records.LiteralTransactionLogValue.decode_from(value, 1, _VERSION.size)
            if end == len(value):
                return CoordinatorRecord(LITERAL, key, literal, 1)
    return None if kafkas is None else CoordinatorRecord(name, key, kafkas, 1)


def plain(value: object, *, ids: bool = False) -> Any:
    """A message as dicts and lists; bytes in hex, but those of an id as Kafka prints it where `ids`."""
    if isinstance(value, Struct):
        return {field.name: plain(getattr(value, field.name), ids=ids) for field in value.__fields__}
    if isinstance(value, (list, tuple)):
        return [plain(item, ids=ids) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return topic_id_text(bytes(value)) if ids and len(value) == _ID_BYTES else bytes(value).hex()
    return value
