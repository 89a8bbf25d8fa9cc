"""What is left of a request for a client that may not do everything (Kafka's ``KafkaApis``).

The guard stands before the handlers, only where an authorizer is set. A request without the right to its group,
transactional id or cluster is refused as a whole; of one about many topics, groups or ids the handler sees those that
the client has a right to, and the answer gets the others back with their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from minibroker.handlers.api import Api
from minibroker.handlers.auth_helper import authorize as may
from minibroker.handlers.context import Answer, RequestContext, settled
from minibroker.handlers.dispatch import CloseConnection
from minibroker.handlers.error_responses import refused
from minibroker.handlers.rights import (
    CLUSTER,
    CODES,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    RequestRight,
    denied,
    topic_of,
)
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEP
from minibroker.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

_T = TypeVar("_T")
_Later = Coroutine[Any, Any, _T]

_TOP_LEVEL_OFFSET_FETCH = 2
"""First version of OffsetFetch with an error of the whole."""


def _may_write_some_topic(ctx: RequestContext) -> bool:
    authorizer, who = ctx.broker.authorizer, ctx.connection
    assert authorizer is not None
    return authorizer.allows_some(
        ctx.broker.image.acls, who.principal, who.client_host, AclOperation.WRITE, ResourceType.TOPIC
    )


def guarded(api: Api) -> Api:
    """The row with its rights in front."""
    more = _MORE.get(api.request)
    after = _AFTER.get(api.request)
    handler = api.handler

    async def handle(ctx: RequestContext, request: Any) -> Response | None:
        others: list[Response] = []
        left = True
        for rule in api.rights:
            if isinstance(rule, RequestRight):
                error = await rule.error(ctx, request)
                if error is not None:
                    return await _refuse(ctx, request, error)
                continue
            for field in rule.fields(api.request):
                allowed, rest = await rule.split(ctx, request, field)
                if rest:
                    others.append(await _refuse_some(ctx, _with(request, field, rest), CODES[rule.kind]))
                    request, left = _with(request, field, allowed), bool(allowed)
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
    """`refused`; of a long request on the thread that computes, as nothing else holds the request."""
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
    if request.transactional_id is not None or may(ctx, AclOperation.IDEMPOTENT_WRITE, CLUSTER):
        return None
    if _may_write_some_topic(ctx):
        return None
    return await _refuse(ctx, request, denied(ctx, AclOperation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME))


async def _allowed(
    ctx: RequestContext, operation: AclOperation, kind: ResourceType, items: Sequence[Any], name: str
) -> list[Any]:
    """Those of `items` that the client has the right to. name: the field with the name; items without one stay."""
    kept = []
    for item in items:
        await STEP
        named = getattr(item, name)
        if named is None or may(ctx, operation, kind, named):
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
        name = topic_of(ctx, topic)
        if name is not None and not may(ctx, DESCRIBE, TOPIC, name):
            if not named:
                continue
            code = denied(ctx, DESCRIBE, TOPIC, name).code
            for partition in topic.partitions:
                await STEP
                partition.committed_offset, partition.metadata, partition.error_code = -1, "", code
        kept.append(topic)
    return kept


async def _configs_of_created(ctx: RequestContext, _: Any, answer: Any) -> Response:
    """The configs of a created topic are only for clients that may describe them (KIP-525)."""
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
            code = denied(ctx, DESCRIBE, TOPIC, name).code
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
    """The name of a topic requested by id is only for clients that may describe it."""
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
    m.InitProducerIdRequest: _init_producer_id
}
_AFTER: dict[type[Request], Callable[[RequestContext, Any, Any], _Later[Response]]] = {
    m.MetadataRequest: _described_topics,
    m.ListGroupsRequest: _described_groups,
    m.ListTransactionsRequest: _described_transactions,
    m.OffsetFetchRequest: _offsets_of_described_topics,
    m.CreateTopicsRequest: _configs_of_created,
    m.ConsumerGroupDescribeRequest: _groups_of_described_topics,
}
