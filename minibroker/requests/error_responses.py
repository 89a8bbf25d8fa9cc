"""Error answers for any request, with the error in every place where its clients look for one.

The answer repeats the topics, partitions, groups or ids that were asked about, as Kafka's getErrorResponse does: what a
field means is declared with it (`minibroker_protocol.fields.f`). Numbers that say nothing are -1.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from minibroker_protocol.dsl import Message, Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.registry import registry
from minibroker_protocol.structs import Struct, entities_of, lists_about, naming, struct_of

if TYPE_CHECKING:
    from minibroker.kernel.deferred import Deferred
    from minibroker.requests.context import RequestContext
    from minibroker.requests.tapped_request import TappedRequest

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


def error_response(tapped: TappedRequest, code: ErrorCode, message: str | None = None) -> Response:
    """The response that gives `code` for everything that the request names."""
    response_type = tapped.api.response
    builder = _Builder(tapped.request, response_type, tapped.version, code, message)
    response = builder.answer()
    name = tapped.api.name
    if name == "Fetch" and builder.items and code not in _SESSION_ERRORS:
        response.error_code = ErrorCode.NONE  # type: ignore[attr-defined]
    if name == "Metadata":
        # Without brokers in it a client could not retry.
        kind: Any = response_type
        response.brokers = [  # type: ignore[attr-defined]
            kind.MetadataResponseBroker(node_id=b.node_id, host=host, port=port, rack=b.rack)
            for b, host, port in tapped.context.broker.advertised(tapped.context.connection)
        ]
    return response


def refused(request: Request, version: int, code: ErrorCode, message: str | None = None) -> Response:
    """The same for a request without a connection."""
    response_type = registry()[request.__api_key__][1]
    return _Builder(request, response_type, version, code, message).answer()


def refused_in_turns(
    ctx: RequestContext, request: Request, code: ErrorCode, message: str | None = None
) -> Response | Deferred[Response]:
    """`refused`; of a long request on the thread that computes, as nothing else holds the request."""
    if not ctx.long:
        return refused(request, ctx.api_version, code, message)
    return ctx.broker.executor.compute(lambda _: refused(request, ctx.api_version, code, message), ctx.wanted)


class _Item(NamedTuple):
    """One thing that the request names.

    named: entity → value.
    struct: its struct in the request, which may have lists.
    """

    named: dict[str, Any]
    struct: Struct | None


class _Builder:
    def __init__(
        self, request: Request, root: type[Response], version: int, code: ErrorCode, message: str | None
    ) -> None:
        self._request = request
        self._root = root
        self._version = version
        self._code = code
        self._message = message
        self.items = 0

    def answer(self) -> Response:
        # The answer does not repeat what the request names outside its lists: no producer id, no member id.
        response = self._fill(self._root, _Item({}, self._request))
        assert isinstance(response, Response)
        return response

    def _fill(self, kind: type[Struct], item: _Item) -> Struct:
        values: dict[str, Any] = {}
        self.items += kind is not self._root and _has_code(kind)
        for field in kind.__fields__:
            low, high = field.versions
            if not low <= self._version <= high:
                if field.required:
                    values[field.name] = _blank(field, self._version)
                continue
            value = self._value(field, item)
            if value is not _NOTHING:
                values[field.name] = value
        return kind(**values)

    def _value(self, field: Field, item: _Item) -> Any:
        if field.error:
            return self._code
        if field.error_message:
            return self._message if self._message is not None or field.nullable else ""
        if field.throttle:
            return 0
        kind = struct_of(self._root, field)
        named = item.named.get(field.entity) if field.entity is not None else None
        if kind is not None and field.array:
            if named is not None:
                return [kind(**{f.name: getattr(part, f.name) for f in kind.__fields__}) for part in named]
            if item.struct is not None and any(_has_code(k) for k in _reachable(self._root, kind)):
                items = _items_for(type(self._request), item.struct, field, kind)
                if not items and item.struct is self._request and field.answers is None and self._homeless(kind):
                    items = [_Item({}, None)]
                return [self._fill(kind, item_in_request) for item_in_request in items]
        elif named is not None and not field.array:
            return named
        elif field.answers is not None and item.struct is self._request:
            return getattr(item.struct, field.answers)
        return _blank(field, self._version) if field.required else _NOTHING

    def _homeless(self, kind: type[Struct]) -> bool:
        """Whether the answer has no place for the error: its results are about nothing that a request can name, and
        this version has no error beside them (DescribeLogDirs 1 and 2)."""
        about = set(entities_of(kind))
        request = type(self._request)
        askable = {
            e for k in _reachable(request, request) for e in (*entities_of(k), *(f.entity for f in k.__fields__))
        }
        beside = any(f.error and f.versions[0] <= self._version <= f.versions[1] for f in self._root.__fields__)
        return bool(about) and not beside and not about & askable


_NOTHING: Any = object()


def _items_for(request: type[Request], struct: Struct, field: Field, kind: type[Struct]) -> list[_Item]:
    """The items of `struct`, a request or a part of one, that the results `kind` in `field` are about: one item for
    each result. A thing in several lists gets one result."""
    names, inner = _lists(request, type(struct), field.answers, entities_of(kind))
    items = []
    for name in names:
        items += [_item(value) if isinstance(value, Struct) else _plain_item(type(struct), name, value)
                  for value in getattr(struct, name) or ()]  # fmt: skip
    if sum(bool(getattr(struct, name)) for name in names) > 1:
        keys = entities_of(kind)
        items = list({str([item.named.get(key) for key in keys]): item for item in items}.values())
    for name in inner:
        for value in getattr(struct, name) or ():
            items += _items_for(request, value, field, kind)
    return items


@cache
def _lists(
    request: type[Request], struct: type[Struct], answers: str | None, about: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the lists of `struct` about one of these entities; if there are none, the lists whose structs may have some)."""
    if answers is not None:
        return tuple(answers.split()), ()
    direct = lists_about(request, struct, about)
    inner = [field.name for field in struct.__fields__ if field.array and struct_of(request, field) is not None]
    return direct, () if direct else tuple(inner)


def _item(struct: Struct) -> _Item:
    return _Item({str(field.entity): getattr(struct, field.name) for field in naming(type(struct))}, struct)


def _plain_item(kind: type[Struct], name: str, value: object) -> _Item:
    entity = next(field.entity for field in kind.__fields__ if field.name == name)
    return _Item({} if entity is None else {entity: value}, None)


def _blank(field: Field, version: int) -> Any:
    """The default in Kafka's generated classes: lists and records are empty, not null, even if null is allowed
    (librdkafka cannot read null records)."""
    if field.array:
        return []
    if field.records:
        return b""
    low, high = field.nullable or (1, 0)
    if low <= version <= high:
        return None
    blanks = {"string": "", "bytes_": b"", "bool_": False, "uuid": NO_ID, "float64": 0.0, "uint16": 0, "uint32": 0}
    return blanks.get(field.element, -1)


def _has_code(kind: type[Struct]) -> bool:
    return any(field.error for field in kind.__fields__)


@cache
def _reachable(message: type[Message], kind: type[Struct]) -> tuple[type[Struct], ...]:
    """`kind` and the structs its fields hold, which are all declared in the message."""
    kinds = [kind]
    for holder in kinds:  # grows while it is walked
        for field in holder.__fields__:
            nested = struct_of(message, field)
            if nested is not None and nested not in kinds:
                kinds.append(nested)
    return tuple(kinds)
