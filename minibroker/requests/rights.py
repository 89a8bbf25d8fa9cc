"""The rights that a request needs, as values for the rows of the table (Kafka's ``KafkaApis``).

The declaration of a field says whether it names topics, groups or ids (`f(entity=…)`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from minibroker.kernel.turns import AT_A_TIME
from minibroker.requests.auth_helper import authorize as may
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.transactional_batches import has_transactional_batch
from minibroker.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.structs import Struct, lists_about, named_by

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, ALTER_CONFIGS = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS
DESCRIBE_CONFIGS, CLUSTER_ACTION = AclOperation.DESCRIBE_CONFIGS, AclOperation.CLUSTER_ACTION
CLUSTER, GROUP, TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
CODES = {
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_ENTITIES = {TOPIC: ("topicName", "topicId"), GROUP: ("groupId",), TRANSACTIONAL_ID: ("transactionalId",), CLUSTER: ()}
"""The entities of fields that name a resource of each type."""
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
# ConfigResource.Type: TOPIC, GROUP; BROKER, BROKER_LOGGER, CLIENT_METRICS.
_CONFIG_TYPES = {TOPIC: (2,), GROUP: (32,), CLUSTER: (4, 8, 16)}


def denied(ctx: RequestContext, operation: AclOperation, kind: ResourceType, name: str) -> ApiError:
    """The refusal, of which a note is made."""
    error = ApiError(CODES[kind], f"{ctx.connection.principal} may not {operation.name} {kind.name} {name}")
    ctx.refused(name, error)
    return error


def topic_of(ctx: RequestContext, item: Any) -> str | None:
    """The topic that an item of a request or an answer is about; None for an id that no topic has."""
    return _name_of(ctx, item, _ENTITIES[TOPIC])


def _name_of(ctx: RequestContext, item: Any, entities: Sequence[str]) -> str | None:
    if isinstance(item, str):
        return item
    topic_id = _value(item, "topicId") if "topicId" in entities else None
    if topic_id is not None and topic_id != NO_ID:
        return ctx.broker.image.topic_names.get(topic_id)
    return next((value for value in (_value(item, entity) for entity in entities) if isinstance(value, str)), None)


def _value(struct: Struct, entity: str) -> Any:
    name = named_by(type(struct), entity)
    return None if name is None else getattr(struct, name)


class RequestRight(NamedTuple):
    """A right that the request as a whole needs, to each resource of this type that it names outside its lists.

    names: the resources' names, where they are not simply fields; an empty result means that no right is needed.
    instead: another operation whose right suffices.
    """

    operation: AclOperation
    kind: ResourceType
    names: Callable[[Any], Sequence[str]] | None = None
    instead: AclOperation | None = None

    def names_in(self, request: Request) -> Sequence[str]:
        """The names that the client must have the right to."""
        return self._named(request) if self.names is None else self.names(request)

    def holds(self, ctx: RequestContext, request: Request, fields: Sequence[str] = ()) -> bool:
        """True when the client has the right to all names, and there are few enough to check at once. No refusal is
        noted."""
        names = self.names_in(request)
        return len(names) <= AT_A_TIME and all(self._may(ctx, name) for name in names)

    def _may(self, ctx: RequestContext, name: str) -> bool:
        if self.instead is not None and may(ctx, self.instead, self.kind, name):
            return True
        return may(ctx, self.operation, self.kind, name)

    def error(self, ctx: RequestContext, names: Sequence[str]) -> ApiError | None:
        """The refusal of the first of these names, None when the client has the right to all."""
        for name in names:
            if not self._may(ctx, name):
                return denied(ctx, self.operation, self.kind, name)
        return None

    def _named(self, request: Request) -> Sequence[str]:
        if self.kind is CLUSTER:
            return (CLUSTER_NAME,)
        names: list[str] = []
        for field in request.__fields__:
            value = getattr(request, field.name)
            if field.entity in _ENTITIES[self.kind] and value is not None:
                names += value if field.array else [value]
        return names


class ItemRight(NamedTuple):
    """A right that every item in the request's lists of such resources needs, or every item for which `applies` is
    True.

    cluster: a right to the cluster that replaces all of them.
    unless: requests that need none.
    entities: what the lists are about, where that is not an entity of this type of resource.
    """

    operation: AclOperation
    kind: ResourceType
    cluster: AclOperation | None = None
    applies: Callable[[RequestContext, Any, Any], bool] = lambda _, __, ___: True
    unless: Callable[[Any], bool] = lambda _: False
    entities: tuple[str, ...] = ()

    def fields(self, request: type[Request]) -> tuple[str, ...]:
        """The lists whose items need it."""
        return lists_about(request, request, self.entities or _ENTITIES[self.kind])

    def items(self, ctx: RequestContext, request: Request, field: str) -> Sequence[Any]:
        """The items of a list that need the right: all or none."""
        items: Sequence[Any] = getattr(request, field) or ()
        if not items or self.unless(request) or (self.cluster is not None and may(ctx, self.cluster, CLUSTER)):
            return ()
        return items

    def holds(self, ctx: RequestContext, request: Request, fields: Sequence[str]) -> bool:
        """True when the client has the right to every item of these lists, and they are short enough to check at once.
        No refusal is noted."""
        for field in fields:
            items = self.items(ctx, request, field)
            if len(items) > AT_A_TIME:
                return False
            for item in items:
                name = self._name(ctx, item) if self.applies(ctx, request, item) else None
                if name is not None and not may(ctx, self.operation, self.kind, name):
                    return False
        return True

    def split(
        self, ctx: RequestContext, request: Request, items: Sequence[Any], allowed: list[Any], others: list[Any]
    ) -> None:
        """Split the items into those that the client has the right to, and the others."""
        for item in items:
            name = self._name(ctx, item) if self.applies(ctx, request, item) else None
            if name is None or may(ctx, self.operation, self.kind, name):
                allowed.append(item)
            else:
                denied(ctx, self.operation, self.kind, name)
                others.append(item)

    def _name(self, ctx: RequestContext, item: Any) -> str | None:
        if self.kind is CLUSTER:
            return CLUSTER_NAME
        return _name_of(ctx, item, self.entities or _ENTITIES[self.kind])


class Also(NamedTuple):
    """A right to something that the request does not name.

    error: the refusal, or None.
    """

    error: Callable[[RequestContext, Any], ApiError | None]


class Shown(NamedTuple):
    """What the client may see of the answer.

    part: (context, request, answer) → the answer that it gets.
    """

    part: Callable[[RequestContext, Any, Any], Answer]


class Refused(NamedTuple):
    """Where Kafka's refusal names less than the request, or something else.

    shape: (context, request, answer), changes the answer for the refused part, and returns what is to be waited for.
    whole, part: whether to call it for the whole request, for some items.
    """

    shape: Callable[[RequestContext, Any, Any], Answer]
    whole: bool = True
    part: bool = False


class ServedWithoutItems(NamedTuple):
    """The answer has more than its items, so a request of which every item was refused is served without them.

    min_version: the first version in which an empty list does not stand for all items.
    """

    min_version: int


Right = RequestRight | ItemRight | Also | Shown | Refused | ServedWithoutItems


def id_of_transactional_batches(request: Any) -> Sequence[str]:
    """A transactional id counts only where there is a transactional batch (KafkaApis.handleProduceRequest)."""
    if request.transactional_id is None or not has_transactional_batch(request):
        return ()
    return (request.transactional_id,)


def transactional_without_id(request: Any) -> bool:
    """The handler refuses such a request as a whole."""
    return request.transactional_id is None and has_transactional_batch(request)


def v3_transactional_id(request: Any) -> Sequence[str]:
    return () if request.transactions else (request.v3_and_below_transactional_id,)


def old_group(request: Any) -> Sequence[str]:
    return () if request.groups else (request.group_id,)


def of_brokers(request: Any) -> Sequence[str]:
    """Requests with several transactions come from brokers, which verify (KIP-890)."""
    return (CLUSTER_NAME,) if request.transactions else ()


def _key(key_type: int) -> Callable[[Any], Sequence[str]]:
    return lambda request: () if request.coordinator_keys or request.key_type != key_type else (request.key,)


def _keys(key_type: int) -> Callable[[RequestContext, Any, Any], bool]:
    return lambda _, request, __: bool(request.key_type == key_type)


COORDINATORS: Final = tuple(
    rule
    for kind, key_type in ((GROUP, _GROUP_KEY), (TRANSACTIONAL_ID, _TRANSACTION_KEY))
    for rule in (
        RequestRight(DESCRIBE, kind, _key(key_type)),
        ItemRight(DESCRIBE, kind, applies=_keys(key_type), entities=("coordinatorKey",)),
    )
)
"""The right to describe what is coordinated, of the type in the request."""


def configs(operation: AclOperation) -> tuple[ItemRight, ...]:
    """Configs of topics and groups need a right to the topic or group; configs of brokers, their loggers and clients
    need one to the cluster. The handler refuses any other type."""
    return tuple(
        ItemRight(operation, kind, applies=_of_types(types), entities=("resourceName",))
        for kind, types in _CONFIG_TYPES.items()
    )


def _of_types(types: tuple[int, ...]) -> Callable[[RequestContext, Any, Any], bool]:
    return lambda _, __, resource: resource.resource_type in types


def may_be_deleted(ctx: RequestContext, _: Any, topic: Any) -> bool:
    """Whether the item is a topic. The handler refuses one that is named twice or not at all, and an unknown name if
    the client may know that it is unknown (ControllerApis.deleteTopics)."""
    name = topic_of(ctx, topic)
    if not isinstance(topic, str) and (topic.name is None) == (topic.topic_id == NO_ID):
        return False
    return name in ctx.broker.image.topics or not may(ctx, DESCRIBE, TOPIC, name or "")


def would_be_made(ctx: RequestContext, request: Any, topic: Any) -> bool:
    """Metadata creates a missing topic that is requested by name."""
    may_create = request.allow_auto_topic_creation  # True in versions that do not have it
    missing = topic.name is not None and topic.topic_id == NO_ID and topic.name not in ctx.broker.image.topics
    return bool(may_create and missing and ctx.broker.settings.get_boolean("auto.create.topics.enable"))
