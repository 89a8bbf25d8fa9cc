"""An error as the answer to any request, in every place where that request's clients look for one.

The answer repeats the topics, partitions, groups or ids that were asked about, as Kafka's getErrorResponse does, found
by the names of fields; numbers that say nothing are -1.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from minibroker_protocol.dsl import Message, Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.registry import registry
from minibroker_protocol.structs import Struct, struct_types

if TYPE_CHECKING:
    from minibroker.handlers.dispatch import Exchange

_CODES = ("error_code", "partition_error_code", "error")
# Names under which requests and responses speak of the same thing.
_SAME = (
    ("name", "topic", "topic_name"),
    ("index", "partition_index", "partition", "partition_id"),
    ("partitions", "partition_responses", "partition_data", "partition_indexes", "partition_result",
     "results_by_partition"),
    ("topics", "responses", "topic_data", "results", "topic_partitions", "replica_election_results",
     "results_by_topic", "results_by_topic_v3_and_below", "v3_and_below_topics"),
    ("groups", "group_ids", "groups_names", "results"),
    ("group_id", "group"),
    ("transactional_ids", "transaction_states"),
    ("transactions", "results_by_transaction"),
    ("topics", "topic_results"),
    ("resources", "results", "responses"),
    ("coordinator_keys", "coordinators"),
    ("creations", "results"),
    ("filters", "filter_results"),
    ("feature_updates", "results"),
    ("feature", "feature_name"),
    ("members", "members"),
    ("topic_names", "responses"),
    ("markers", "markers"),
)  # fmt: skip
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@cache
def can_fail(request: type[Request]) -> bool:
    """Whether a response to this request has a place for an error."""
    response = registry()[request.__api_key__][1]
    return any(_has_code(kind) for kind in _reachable(response, response))


def error_response(exchange: Exchange, code: ErrorCode, message: str | None = None) -> Response:
    """The response that says `code` about everything the request asked for."""
    response_type = exchange.api.response
    builder = _Builder(response_type, exchange.version, code, message)
    response = builder.fill(response_type, exchange.request)
    name = exchange.api.name
    assert isinstance(response, Response)
    if name == "Fetch" and builder.items and code not in _SESSION_ERRORS:
        response.error_code = ErrorCode.NONE  # type: ignore[attr-defined]
    if name == "Metadata":
        # Without brokers in it a client could not retry.
        kind: Any = response_type
        response.brokers = [  # type: ignore[attr-defined]
            kind.MetadataResponseBroker(node_id=b.node_id, host=host, port=port, rack=b.rack)
            for b, host, port in exchange.context.broker.advertised(exchange.context.connection)
        ]
    return response


def refused(request: Request, version: int, code: ErrorCode, message: str | None = None) -> Response:
    """The same for a request that no connection carries any more."""
    response_type = registry()[request.__api_key__][1]
    response = _Builder(response_type, version, code, message).fill(response_type, request)
    assert isinstance(response, Response)
    return response


class _Builder:
    def __init__(self, root: type[Message], version: int, code: ErrorCode, message: str | None) -> None:
        self._root = root
        self._version = version
        self._code = code
        self._message = message
        self.items = 0

    def fill(self, kind: type[Struct], source: Any) -> Struct:
        values: dict[str, Any] = {}
        self.items += kind is not self._root and _has_code(kind)
        for field in kind.__fields__:
            low, high = field.versions
            if not low <= self._version <= high:
                if field.required:
                    values[field.name] = _blank(field, self._version)
                continue
            value = self._value(field, source)
            if value is not _NOTHING:
                values[field.name] = value
        return kind(**values)

    def _value(self, field: Field, source: Any) -> Any:
        if field.name in _CODES:
            return self._code
        if field.name in ("error_message", "message"):
            return self._message if self._message is not None or field.nullable else ""
        if field.name == "throttle_time_ms":
            return 0
        annotation = field.annotation.removesuffix(" | None")
        if annotation.startswith("list["):
            return self._list(field, annotation, source)
        if isinstance(source, (str, int)):
            if annotation in ("string",) and isinstance(source, str) and field.name in _KEY_NAMES:
                return source
            if isinstance(source, int) and field.name in _INDEX_NAMES:
                return source
        elif source is not None:
            for name in _aliases(field.name):
                value = getattr(source, name, _NOTHING)
                if isinstance(value, (str, int)) or (isinstance(value, bytes) and annotation == "uuid"):
                    return value
        return _blank(field, self._version) if field.required else _NOTHING

    def _list(self, field: Field, element: str, source: Any) -> Any:
        kind = struct_types(self._root).get(_element(element))
        if kind is None or not any(_has_code(k) for k in _reachable(self._root, kind)):
            return _blank(field, self._version) if field.required else _NOTHING
        found: list[Any] = []
        for name in _aliases(field.name):
            given = getattr(source, name, None)
            if isinstance(given, list) and given:
                found = [self.fill(kind, item) for item in given]
                break
        return found


_NOTHING: Any = object()
_KEY_NAMES = frozenset({"name", "group_id", "transactional_id", "key", "topic", "topic_name"})
_INDEX_NAMES = frozenset({"partition_index", "partition", "partition_id", "index"})


@cache
def _aliases(name: str) -> tuple[str, ...]:
    found = [name]
    for names in _SAME:
        if name in names:
            found += [other for other in names if other not in found]
    return tuple(found)


def _blank(field: Field, version: int) -> Any:
    """What Kafka's generated classes hold where nothing was set: lists and records are empty, not null, also where they
    may be (librdkafka reads no null records)."""
    annotation = field.annotation.removesuffix(" | None")
    if annotation.startswith("list["):
        return []
    if annotation.startswith("Record"):
        return b""
    low, high = field.nullable or (1, 0)
    if low <= version <= high:
        return None
    blanks = {"string": "", "bytes_": b"", "bool_": False, "uuid": NO_ID, "float64": 0.0, "uint16": 0, "uint32": 0}
    return blanks.get(annotation, -1)


def _has_code(kind: type[Struct]) -> bool:
    return any(field.name in _CODES for field in kind.__fields__)


@cache
def _reachable(message: type[Message], kind: type[Struct]) -> tuple[type[Struct], ...]:
    """`kind` and the structs its fields hold, which are all declared in the message."""
    declared = struct_types(message)
    found = [kind]
    for holder in found:  # grows while it is walked
        for field in holder.__fields__:
            nested = declared.get(_element(field.annotation))
            if nested is not None and nested not in found:
                found.append(nested)
    return tuple(found)


def _element(annotation: str) -> str:
    """``list[Message.Kind] | None`` → ``Kind``."""
    return annotation.removesuffix(" | None").removeprefix("list[").removesuffix("]").rpartition(".")[2]
