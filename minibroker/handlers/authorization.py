"""What each request needs, and what is left of it for a client that may not do everything (Kafka's ``KafkaApis``).

The guard stands before the handlers, only where an authorizer is set. A request without the right to its group,
transactional id or cluster is refused as a whole; of one about many topics, groups or ids the handler sees those that
the client has a right to, and the answer gets the others back with their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from minibroker.handlers.context import Answer, Api, RequestContext, settled
from minibroker.handlers.dispatch import CloseConnection
from minibroker.handlers.error_responses import refused
from minibroker.handlers.produce import has_transactional_batch
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEP
from minibroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

CLUSTER, GROUP, TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
CODES = {
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NAMES = ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name")
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_TOP_LEVEL_OFFSET_FETCH = 2
"""First version of OffsetFetch with an error of the whole."""
# ConfigResource.Type: TOPIC, GROUP; BROKER, BROKER_LOGGER, CLIENT_METRICS.
_CONFIG_TYPES = {TOPIC: (2,), GROUP: (32,), CLUSTER: (4, 8, 16)}


def may(ctx: RequestContext, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
    """Whether the client of a request may do this; True without an authorizer, and for other brokers."""
    authorizer = ctx.broker.authorizer
    if authorizer is None or ctx.inter_broker:
        return True
    who = ctx.connection
    return authorizer.allows(ctx.broker.image.acls, who.principal, who.client_host, operation, kind, name)


def _may_write_some_topic(ctx: RequestContext) -> bool:
    authorizer, who = ctx.broker.authorizer, ctx.connection
    assert authorizer is not None
    return authorizer.allows_some(
        ctx.broker.image.acls, who.principal, who.client_host, Operation.WRITE, ResourceType.TOPIC
    )


def _denied(ctx: RequestContext, operation: Operation, kind: ResourceType, name: str) -> ApiError:
    error = ApiError(CODES[kind], f"{ctx.connection.principal} may not {operation.name} {kind.name} {name}")
    ctx.refused(name, error)
    return error


def _name_of(ctx: RequestContext, item: Any) -> str | None:
    """What an item of a request is about; None for a topic id that nobody knows, which is the handler's to tell."""
    if isinstance(item, str):
        return item
    topic_id = getattr(item, "topic_id", NO_ID)
    if topic_id != NO_ID:
        return ctx.broker.image.topic_names.get(topic_id)
    for name in _NAMES:
        value = getattr(item, name, None)
        if isinstance(value, str):
            return value
    return None


@dataclass(frozen=True, slots=True)
class Whole:
    """A right that the request as a whole needs. names: of what; none means that it needs no right.

    instead: another operation that will do as well.
    """

    operation: Operation
    kind: ResourceType
    names: Callable[[Any], Sequence[str]] = lambda _: (CLUSTER_NAME,)
    instead: Operation | None = None

    async def error(self, ctx: RequestContext, request: Request) -> ApiError | None:
        for name in self.names(request):
            await STEP
            if self.instead is not None and may(ctx, self.instead, self.kind, name):
                continue
            if not may(ctx, self.operation, self.kind, name):
                return _denied(ctx, self.operation, self.kind, name)
        return None


@dataclass(frozen=True, slots=True)
class Each:
    """A right that every item of the list `field` needs, or every one for which `applies` says so.

    cluster: a right to the cluster that stands for all of them. unless: for which requests none is asked for.
    """

    field: str
    operation: Operation
    kind: ResourceType
    cluster: Operation | None = None
    applies: Callable[[RequestContext, Any, Any], bool] = lambda _, __, ___: True
    unless: Callable[[Any], bool] = lambda _: False

    async def split(self, ctx: RequestContext, request: Request) -> tuple[list[Any], list[Any]]:
        """(items the client has a right to, the others)."""
        items = getattr(request, self.field) or []
        if not items or self.unless(request) or (self.cluster is not None and may(ctx, self.cluster, CLUSTER)):
            return items, []
        allowed, others = [], []
        for item in items:
            await STEP
            name = self._name(ctx, item) if self.applies(ctx, request, item) else None
            if name is None or may(ctx, self.operation, self.kind, name):
                allowed.append(item)
            else:
                _denied(ctx, self.operation, self.kind, name)
                others.append(item)
        return allowed, others

    def _name(self, ctx: RequestContext, item: Any) -> str | None:
        return CLUSTER_NAME if self.kind is CLUSTER else _name_of(ctx, item)


Rule = Whole | Each
_T = TypeVar("_T")
_Later = Coroutine[Any, Any, _T]


def _group(request: Any) -> Sequence[str]:
    return (request.group_id,)


def _transactional_id(request: Any) -> Sequence[str]:
    return () if request.transactional_id is None else (request.transactional_id,)


def _id_of_transactional_batches(request: Any) -> Sequence[str]:
    """A transactional id counts only where there is a transactional batch (KafkaApis.handleProduceRequest)."""
    return _transactional_id(request) if has_transactional_batch(request) else ()


def _transactional_without_id(request: Any) -> bool:
    """The handler refuses that as a whole."""
    return request.transactional_id is None and has_transactional_batch(request)


def _v3_transactional_id(request: Any) -> Sequence[str]:
    return () if request.transactions else (request.v3_and_below_transactional_id,)


def _old_group(request: Any) -> Sequence[str]:
    return () if request.groups else (request.group_id,)


def _key(kind: int) -> Callable[[Any], Sequence[str]]:
    return lambda request: () if request.coordinator_keys or request.key_type != kind else (request.key,)


def _keys(kind: int) -> Callable[[RequestContext, Any, Any], bool]:
    return lambda _, request, __: bool(request.key_type == kind)


def _configs(operation: Operation) -> tuple[Each, ...]:
    """Settings of topics and groups are theirs; those of brokers, their loggers and clients the cluster's. A type that
    is none of these is the handler's to refuse."""
    return tuple(Each("resources", operation, kind, applies=_of_types(types)) for kind, types in _CONFIG_TYPES.items())


def _of_types(types: tuple[int, ...]) -> Callable[[RequestContext, Any, Any], bool]:
    return lambda _, __, resource: resource.resource_type in types


def _subscribed(request: Any) -> Sequence[str]:
    return request.subscribed_topic_names or ()


def _may_be_deleted(ctx: RequestContext, _: Any, topic: Any) -> bool:
    """Whether it is a topic. One named twice or not at all is the handler's to refuse, as is a name that stands for
    nothing where the client may know that (ControllerApis.deleteTopics)."""
    name = _name_of(ctx, topic)
    if not isinstance(topic, str) and (topic.name is None) == (topic.topic_id == NO_ID):
        return False
    return name in ctx.broker.image.topics or not may(ctx, DESCRIBE, TOPIC, name or "")


def _would_be_made(ctx: RequestContext, request: Any, topic: Any) -> bool:
    """Metadata makes a topic that is asked for by name and not there."""
    asked = ctx.api_version < 4 or request.allow_auto_topic_creation
    missing = topic.name is not None and topic.topic_id == NO_ID and topic.name not in ctx.broker.image.topics
    return bool(asked and missing and ctx.broker.settings.bool("auto.create.topics.enable"))


READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ALTER_CONFIGS = Operation.ALTER, Operation.DESCRIBE, Operation.ALTER_CONFIGS
DESCRIBE_CONFIGS = Operation.DESCRIBE_CONFIGS

RULES: dict[type[Request], tuple[Rule, ...]] = {
    m.ProduceRequest: (
        Whole(WRITE, TRANSACTIONAL_ID, _id_of_transactional_batches),
        Each("topic_data", WRITE, TOPIC, unless=_transactional_without_id),
    ),
    m.ListOffsetsRequest: (Each("topics", DESCRIBE, TOPIC),),
    m.MetadataRequest: (
        Each("topics", DESCRIBE, TOPIC),
        Each("topics", CREATE, TOPIC, cluster=CREATE, applies=_would_be_made),
    ),
    m.OffsetCommitRequest: (Whole(READ, GROUP, _group), Each("topics", READ, TOPIC)),
    m.OffsetFetchRequest: (
        Whole(DESCRIBE, GROUP, _old_group),
        Each("groups", DESCRIBE, GROUP),
    ),
    m.FindCoordinatorRequest: (
        Whole(DESCRIBE, GROUP, _key(_GROUP_KEY)),
        Whole(DESCRIBE, TRANSACTIONAL_ID, _key(_TRANSACTION_KEY)),
        Each("coordinator_keys", DESCRIBE, GROUP, applies=_keys(_GROUP_KEY)),
        Each("coordinator_keys", DESCRIBE, TRANSACTIONAL_ID, applies=_keys(_TRANSACTION_KEY)),
    ),
    m.JoinGroupRequest: (Whole(READ, GROUP, _group),),
    m.HeartbeatRequest: (Whole(READ, GROUP, _group),),
    m.LeaveGroupRequest: (Whole(READ, GROUP, _group),),
    m.SyncGroupRequest: (Whole(READ, GROUP, _group),),
    m.ConsumerGroupHeartbeatRequest: (Whole(READ, GROUP, _group), Whole(DESCRIBE, TOPIC, _subscribed)),
    m.DescribeGroupsRequest: (Each("groups", DESCRIBE, GROUP),),
    m.ConsumerGroupDescribeRequest: (Each("group_ids", DESCRIBE, GROUP),),
    m.DeleteGroupsRequest: (Each("groups_names", DELETE, GROUP),),
    m.OffsetDeleteRequest: (Whole(DELETE, GROUP, _group), Each("topics", READ, TOPIC)),
    m.CreateTopicsRequest: (Each("topics", CREATE, TOPIC, cluster=CREATE),),
    m.DeleteTopicsRequest: (
        Each("topics", DELETE, TOPIC, cluster=DELETE, applies=_may_be_deleted),
        Each("topic_names", DELETE, TOPIC, cluster=DELETE, applies=_may_be_deleted),
    ),
    m.CreatePartitionsRequest: (Each("topics", ALTER, TOPIC),),
    m.DeleteRecordsRequest: (Each("topics", DELETE, TOPIC),),
    m.OffsetForLeaderEpochRequest: (Each("topics", DESCRIBE, TOPIC, cluster=Operation.CLUSTER_ACTION),),
    m.DescribeProducersRequest: (Each("topics", READ, TOPIC),),
    m.DescribeTopicPartitionsRequest: (Each("topics", DESCRIBE, TOPIC),),
    m.InitProducerIdRequest: (Whole(WRITE, TRANSACTIONAL_ID, _transactional_id),),
    m.AddPartitionsToTxnRequest: (
        Whole(Operation.CLUSTER_ACTION, CLUSTER, lambda request: (CLUSTER_NAME,) if request.transactions else ()),
        Whole(WRITE, TRANSACTIONAL_ID, _v3_transactional_id),
    ),
    m.AddOffsetsToTxnRequest: (Whole(WRITE, TRANSACTIONAL_ID, _transactional_id), Whole(READ, GROUP, _group)),
    m.EndTxnRequest: (Whole(WRITE, TRANSACTIONAL_ID, _transactional_id),),
    m.TxnOffsetCommitRequest: (
        Whole(WRITE, TRANSACTIONAL_ID, _transactional_id),
        Whole(READ, GROUP, _group),
        Each("topics", READ, TOPIC),
    ),
    m.DescribeTransactionsRequest: (Each("transactional_ids", DESCRIBE, TRANSACTIONAL_ID),),
    m.WriteTxnMarkersRequest: (Whole(Operation.CLUSTER_ACTION, CLUSTER, instead=ALTER),),
    m.DescribeAclsRequest: (Whole(DESCRIBE, CLUSTER),),
    m.CreateAclsRequest: (Whole(ALTER, CLUSTER),),
    m.DeleteAclsRequest: (Whole(ALTER, CLUSTER),),
    m.DescribeConfigsRequest: _configs(DESCRIBE_CONFIGS),
    m.AlterConfigsRequest: _configs(ALTER_CONFIGS),
    m.IncrementalAlterConfigsRequest: _configs(ALTER_CONFIGS),
    m.ListConfigResourcesRequest: (Whole(DESCRIBE_CONFIGS, CLUSTER),),
    m.DescribeLogDirsRequest: (Whole(DESCRIBE, CLUSTER),),
    m.ElectLeadersRequest: (Whole(ALTER, CLUSTER),),
    m.AlterPartitionReassignmentsRequest: (Whole(ALTER, CLUSTER),),
    m.ListPartitionReassignmentsRequest: (Whole(DESCRIBE, CLUSTER),),
    m.DescribeClientQuotasRequest: (Whole(DESCRIBE_CONFIGS, CLUSTER),),
    m.DescribeUserScramCredentialsRequest: (Whole(DESCRIBE, CLUSTER),),
    m.DescribeQuorumRequest: (Whole(DESCRIBE, CLUSTER),),
    m.UpdateFeaturesRequest: (Whole(ALTER, CLUSTER),),
    m.UnregisterBrokerRequest: (Whole(ALTER, CLUSTER),),
}
# These need no right: who is told nothing, or only what the client itself has.
FREE: frozenset[type[Request]] = frozenset(
    {
        m.ApiVersionsRequest,
        m.FetchRequest,  # whose handler looks itself: at every topic of the session, named in the request or not
        m.SaslHandshakeRequest,
        m.SaslAuthenticateRequest,
        m.DescribeClusterRequest,
        m.ListGroupsRequest,  # lists what may be described
        m.ListTransactionsRequest,  # likewise
        m.DescribeTransactionStateRequest,  # whose handler looks itself: its answers are in order and have no names
    }
)


def guarded(api: Api) -> Api:
    """The row with its rights in front."""
    rules = RULES.get(api.request, ())
    more = _MORE.get(api.request)
    after = _AFTER.get(api.request)
    handler = api.handler

    async def handle(ctx: RequestContext, request: Any) -> Response | None:
        others: list[Response] = []
        left = True
        for rule in rules:
            if isinstance(rule, Whole):
                error = await rule.error(ctx, request)
                if error is not None:
                    return await _refuse(ctx, request, error)
                continue
            allowed, denied = await rule.split(ctx, request)
            if denied:
                others.append(await _refuse_some(ctx, _with(request, rule.field, denied), CODES[rule.kind]))
                request, left = _with(request, rule.field, allowed), bool(allowed)
        if more is not None:
            early = await more(ctx, request)
            if early is not None:
                return early
        if others and getattr(request, "acks", None) == 0:
            raise CloseConnection(f"{ctx.connection.principal} may not write, and asked for no answer")
        if not left and api.request is not m.MetadataRequest:
            return _joined(others[0], others[1:])
        given = settled(ctx, _ask_for_nothing(ctx, request, handler) if not left else handler(ctx, request))
        answer: Response | None = await given if isinstance(given, Deferred) else given
        if answer is None:
            return None
        return _joined(answer if after is None else await after(ctx, request, answer), others)

    return replace(api, handler=handle)


def _ask_for_nothing(ctx: RequestContext, request: Any, handler: Callable[[RequestContext, Any], Answer]) -> Answer:
    """Metadata without a topic is Metadata of the brokers; version 0 has no words for that."""
    return handler(replace(ctx, api_version=max(1, ctx.api_version)), request)


def _with(request: Any, field: str, items: list[Any]) -> Any:
    changed = copy(request)
    setattr(changed, field, items)
    return changed


async def _refused(ctx: RequestContext, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """`refused`; of a long request, which nothing else has in hand, on the thread for what computes."""
    if not ctx.long:
        return refused(request, ctx.api_version, code, message)
    return await ctx.broker.executor.compute(lambda _: refused(request, ctx.api_version, code, message))


async def _refuse(ctx: RequestContext, request: Any, error: ApiError) -> Response:
    if getattr(request, "acks", None) == 0:
        raise CloseConnection(str(error))
    answer: Response = await _refused(ctx, request, error.code, error.message)
    shape = _WHOLLY_REFUSED.get(type(request))
    if shape is not None:
        shape(ctx, request, answer)
    return answer


async def _refuse_some(ctx: RequestContext, request: Any, code: ErrorCode) -> Response:
    """What is refused of a request whose rest is served: the answer as a whole has no error."""
    answer = await _refused(ctx, request, code)
    if hasattr(answer, "error_code"):
        answer.error_code = ErrorCode.NONE
    if isinstance(answer, m.OffsetFetchResponse):
        _offsets_of_no_group(ctx, request, answer)
    if isinstance(answer, m.DeleteTopicsResponse):
        await _known_names(ctx, answer)
    return answer  # type: ignore[no-any-return]


def _joined(answer: Response, others: Sequence[Response]) -> Response:
    """The lists of all answers in one."""
    for other in others:
        for field in answer.__fields__:
            more = getattr(other, field.name, None)
            if isinstance(more, list) and more:
                setattr(answer, field.name, [*(getattr(answer, field.name) or []), *more])
    return answer


# -- what is like no other ---------------------------------------------------------------------------------------------


async def _init_producer_id(ctx: RequestContext, request: Any) -> Response | None:
    """An idempotent producer needs a topic to write to, or the old right to the cluster (KIP-679)."""
    if request.transactional_id is not None or may(ctx, Operation.IDEMPOTENT_WRITE, CLUSTER):
        return None
    if _may_write_some_topic(ctx):
        return None
    return await _refuse(ctx, request, _denied(ctx, Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME))


async def _add_partitions(ctx: RequestContext, request: Any) -> Response | None:
    """One topic that may not be written leaves all others untried: OPERATION_NOT_ATTEMPTED, where they are there."""
    topics = request.v3_and_below_topics
    denied = {topic.name for topic in await _allowed(ctx, WRITE, TOPIC, topics, "name", allowed=False)}
    if not denied:
        return None
    answer = await _refused(ctx, request, ErrorCode.OPERATION_NOT_ATTEMPTED)
    for result in answer.results_by_topic_v3_and_below:
        await STEP
        if result.name in denied:
            _denied(ctx, WRITE, TOPIC, result.name)
            for partition in result.results_by_partition:
                partition.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif result.name not in ctx.broker.image.topics:
            for partition in result.results_by_partition:
                partition.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ctx.refused(result.name, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"))
    return answer  # type: ignore[no-any-return]


async def _allowed(
    ctx: RequestContext, operation: Operation, kind: ResourceType, items: Sequence[Any], name: str, allowed: bool = True
) -> list[Any]:
    """Those of `items` that the client has the right to, or with allowed=False the others. name: the field with the
    name, which may be None where nothing is to be known."""
    kept = []
    for item in items:
        await STEP
        named = getattr(item, name)
        if (named is None or may(ctx, operation, kind, named)) is allowed:
            kept.append(item)
    return kept


async def _described_topics(ctx: RequestContext, request: Any, answer: Any) -> Response:
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        answer.topics = await _allowed(ctx, DESCRIBE, TOPIC, answer.topics, "name")
    return answer  # type: ignore[no-any-return]


async def _described_groups(ctx: RequestContext, _: Any, answer: Any) -> Response:
    if not may(ctx, DESCRIBE, CLUSTER):
        answer.groups = await _allowed(ctx, DESCRIBE, GROUP, answer.groups, "group_id")
    return answer  # type: ignore[no-any-return]


async def _described_transactions(ctx: RequestContext, _: Any, answer: Any) -> Response:
    states = answer.transaction_states
    answer.transaction_states = await _allowed(ctx, DESCRIBE, TRANSACTIONAL_ID, states, "transactional_id")
    return answer  # type: ignore[no-any-return]


async def _offsets_of_described_topics(ctx: RequestContext, request: Any, answer: Any) -> Response:
    """Offsets of topics that may not be described: left out where all were asked for, refused where they were named."""
    named = {group.group_id: group.topics is not None for group in request.groups}
    answer.topics = await _described_offsets(ctx, answer.topics, named=request.topics is not None)
    for group in answer.groups:
        group.topics = await _described_offsets(ctx, group.topics, named=named.get(group.group_id, False))
    return answer  # type: ignore[no-any-return]


async def _described_offsets(ctx: RequestContext, topics: list[Any], *, named: bool) -> list[Any]:
    kept = []
    for topic in topics:
        await STEP
        name = _name_of(ctx, topic)
        if name is not None and not may(ctx, DESCRIBE, TOPIC, name):
            if not named:
                continue
            code = _denied(ctx, DESCRIBE, TOPIC, name).code
            for partition in topic.partitions:
                await STEP
                partition.committed_offset, partition.metadata, partition.error_code = -1, "", code
        kept.append(topic)
    return kept


async def _configs_of_created(ctx: RequestContext, _: Any, answer: Any) -> Response:
    """A topic that was made says how it is set up to those who may describe that (KIP-525)."""
    for topic in answer.topics:
        await STEP
        if topic.error_code == ErrorCode.NONE and not may(ctx, DESCRIBE_CONFIGS, TOPIC, topic.name):
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
    return answer  # type: ignore[no-any-return]


async def _groups_of_described_topics(ctx: RequestContext, _: Any, answer: Any) -> Response:
    """A group whose members have topics that may not be described is refused, as in
    KafkaApis.handleConsumerGroupDescribe."""
    answer.groups = [await _without_hidden_topics(ctx, group) for group in answer.groups]
    return answer  # type: ignore[no-any-return]


async def _without_hidden_topics(ctx: RequestContext, group: Any) -> Any:
    assignments = [held for member in group.members for held in (member.assignment, member.target_assignment)]
    names = dict.fromkeys(topic.topic_name for held in assignments for topic in held.topic_partitions)
    for name in names:
        await STEP
        if not may(ctx, DESCRIBE, TOPIC, name):
            code = _denied(ctx, DESCRIBE, TOPIC, name).code
            return type(group)(
                error_code=code,
                error_message="The group has described topic(s) that the client is not authorized to describe.",
                group_id=group.group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
    return group


# -- refusals that name less, or other things, than was asked about: Kafka's getErrorResponse of each ------------------


def _empty(field: str) -> Callable[[RequestContext, Any, Any], None]:
    return lambda _, __, answer: setattr(answer, field, [])


def _offsets_of_no_group(ctx: RequestContext, _: Any, answer: Any) -> None:
    if ctx.api_version >= _TOP_LEVEL_OFFSET_FETCH:
        answer.topics = []
        for group in answer.groups:
            group.topics = []


def _no_quotas(_: RequestContext, __: Any, answer: Any) -> None:
    answer.entries = None


def _no_credentials(_: RequestContext, request: Any, answer: Any) -> None:
    kind = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    answer.results = [
        kind(user="", error_code=answer.error_code, error_message=answer.error_message, credential_infos=[])
        for _ in request.users or []
    ]


def _no_reassignments(_: RequestContext, request: Any, answer: Any) -> None:
    topic, partition = (
        m.ListPartitionReassignmentsResponse.OngoingTopicReassignment,
        m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment,
    )
    answer.topics = [
        topic(
            name=asked.name,
            partitions=[
                partition(partition_index=index, replicas=[], adding_replicas=[], removing_replicas=[])
                for index in asked.partition_indexes
            ],
        )
        for asked in request.topics or []
    ]


def _no_member(_: RequestContext, __: Any, answer: Any) -> None:
    answer.member_epoch = answer.heartbeat_interval_ms = 0


async def _known_names(ctx: RequestContext, answer: Any) -> None:
    """A topic that was asked for by its id is named to those who may describe it."""
    for topic in answer.responses:
        await STEP
        name = ctx.broker.image.topic_names.get(topic.topic_id)
        if name is not None and may(ctx, DESCRIBE, TOPIC, name):
            topic.name = name


_WHOLLY_REFUSED: dict[type[Request], Callable[[RequestContext, Any, Any], None]] = {
    m.OffsetFetchRequest: _offsets_of_no_group,
    m.OffsetDeleteRequest: _empty("topics"),
    m.AddPartitionsToTxnRequest: _empty("results_by_transaction"),
    m.DescribeQuorumRequest: _empty("topics"),
    m.UpdateFeaturesRequest: _empty("results"),
    m.DescribeClientQuotasRequest: _no_quotas,
    m.DescribeUserScramCredentialsRequest: _no_credentials,
    m.ListPartitionReassignmentsRequest: _no_reassignments,
    m.ConsumerGroupHeartbeatRequest: _no_member,
}
_MORE: dict[type[Request], Callable[[RequestContext, Any], _Later[Response | None]]] = {
    m.InitProducerIdRequest: _init_producer_id,
    m.AddPartitionsToTxnRequest: _add_partitions,
}
_AFTER: dict[type[Request], Callable[[RequestContext, Any, Any], _Later[Response]]] = {
    m.MetadataRequest: _described_topics,
    m.ListGroupsRequest: _described_groups,
    m.ListTransactionsRequest: _described_transactions,
    m.OffsetFetchRequest: _offsets_of_described_topics,
    m.CreateTopicsRequest: _configs_of_created,
    m.ConsumerGroupDescribeRequest: _groups_of_described_topics,
}
