"""Messages as JSON values, without secrets."""

from __future__ import annotations

import uuid
from typing import Any

from minibroker.config.keys import BROKER_KEYS
from minibroker.config.types import ConfigType
from minibroker.requests.answered_errors import errors_in
from minibroker_protocol.dsl import Message
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.records import CorruptBatch, iter_batches
from minibroker_protocol.structs import Struct

HIDDEN = "[hidden]"
_SECRET_CONFIGS = ("password", "secret", "token", "jaas", "keystore.key", "credential")
_BYTES_SHOWN = 64
_ITEMS_SHOWN = 200


def plain(message: Struct, version: int) -> dict[str, Any]:
    """The fields that `version` carries. Record batches are shown by their headers only."""
    values: dict[str, Any] = {}
    for field in message.__fields__:
        low, high = field.versions
        if not low <= version <= high:
            continue
        value = getattr(message, field.name)
        if field.secret and _is_secret(message, field):
            values[field.name] = None if value is None else HIDDEN
        elif field.annotation.startswith("Record") and value is not None:
            values[field.name] = batches(value)
        else:
            values[field.name] = _plain(value, version)
    return values


def _is_secret(struct: Struct, field: Field) -> bool:
    """Whether the field is secret in this struct. The value of a setting is secret if the setting is."""
    if field.secret is True:
        return True
    name = str(getattr(struct, str(field.secret)) or "")
    key = BROKER_KEYS.get(name)
    return (key is not None and key.type is ConfigType.PASSWORD) or any(w in name.lower() for w in _SECRET_CONFIGS)


def has_secret(message: Struct, version: int) -> bool:
    """Whether any field that `version` carries is secret, including items of long lists that `plain` leaves out."""
    for field in message.__fields__:
        low, high = field.versions
        if not low <= version <= high:
            continue
        value = getattr(message, field.name)
        if value is None:
            continue
        if field.secret and _is_secret(message, field):
            return True
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Struct) and has_secret(item, version):
                return True
    return False


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return plain(value, version)
    if isinstance(value, list):
        shown = [_plain(item, version) for item in value[:_ITEMS_SHOWN]]
        return shown if len(value) <= _ITEMS_SHOWN else [*shown, f"… {len(value) - _ITEMS_SHOWN} more"]
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        if len(data) == len(NO_ID):
            return str(uuid.UUID(bytes=data))
        return data.hex() if len(data) <= _BYTES_SHOWN else f"{data[:_BYTES_SHOWN].hex()}… ({len(data)} bytes)"
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def batches(records: Any) -> list[dict[str, int]]:
    """The headers of record batches."""
    buffers = records if isinstance(records, list) else [records]
    data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
    rows = []
    try:
        for _, b in iter_batches(data):
            rows.append(
                {
                    "base_offset": b.base_offset,
                    "records": b.last_offset_delta + 1,
                    "bytes": b.size,
                    "attributes": b.attributes,
                    "producer_id": b.producer_id,
                    "producer_epoch": b.producer_epoch,
                    "base_sequence": b.base_sequence,
                }
            )
    except CorruptBatch:
        rows.append({"unreadable_bytes": len(data)})
    return rows


def refusals(response: Message | None) -> list[str]:
    """Every error in an answer, with its place and, where the answer has one, the reason."""
    return [
        f"{error_name(error.code)}{f' at {error.subject}' if error.subject else ''}"
        f"{f': {error.message}' if error.message else ''}"
        for error in (errors_in(response) if response is not None else ())
    ]


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return f"{ErrorCode(code).name} ({int(code)})"
    except ValueError:
        return f"error {code}"
