"""Rights and refusals that only one API has, as values for the rows of the table (Kafka's ``KafkaApis``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from minibroker.requests.auth_helper import authorize as may
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.rights import (
    CLUSTER,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Also,
    Refused,
    Shown,
    denied,
    topic_of,
)
from minibroker.requests.slices import in_slices, in_slices_of
from minibroker.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_TOP_LEVEL_OFFSET_FETCH = 2
"""First version of OffsetFetch with a top-level error."""
_NAMES_OF_AN_ELEMENT: Final = 16
"""Members and their topics that are read in the time of one element of other work."""


def _may_be_idempotent(ctx: RequestContext, request: Any) -> ApiError | None:
    """An idempotent producer needs a topic to write to, or the old right to the cluster (KIP-679)."""
    if request.transactional_id is not None or may(ctx, AclOperation.IDEMPOTENT_WRITE, CLUSTER):
        return None
    authorizer, who = ctx.broker.authorizer, ctx.connection
    assert authorizer is not None
    acls = ctx.broker.image.acls
    if authorizer.allows_some(acls, who.principal, who.client_host, AclOperation.WRITE, ResourceType.TOPIC):
        return None
    return denied(ctx, AclOperation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)


# -- what the client may see of an answer ------------------------------------------------------------------------------


def _allowed(
    ctx: RequestContext, operation: AclOperation, kind: ResourceType, answer: Any, field: str, name: str
) -> Answer:
    """`answer` with those items of its list `field` that the client has the right to.

    name: the field with an item's name; items without one stay.
    """
    allowed: list[Any] = []

    def look(items: Sequence[Any]) -> None:
        for item in items:
            named = getattr(item, name)
            if named is None or may(ctx, operation, kind, named):
                allowed.append(item)

    def only_those() -> Answer:
        setattr(answer, field, allowed)
        return answer  # type: ignore[no-any-return]

    return in_slices(ctx, getattr(answer, field), look, only_those)


def _described_topics(ctx: RequestContext, request: Any, answer: Any) -> Answer:
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        return _allowed(ctx, DESCRIBE, TOPIC, answer, "topics", "name")
    return answer  # type: ignore[no-any-return]


def _described_groups(ctx: RequestContext, _: Any, answer: Any) -> Answer:
    if not may(ctx, DESCRIBE, CLUSTER):
        return _allowed(ctx, DESCRIBE, GROUP, answer, "groups", "group_id")
    return answer  # type: ignore[no-any-return]


def _described_transactions(ctx: RequestContext, _: Any, answer: Any) -> Answer:
    return _allowed(ctx, DESCRIBE, TRANSACTIONAL_ID, answer, "transaction_states", "transactional_id")


def _offsets_of_described_topics(ctx: RequestContext, request: Any, answer: Any) -> Answer:
    """Offsets of topics that may not be described: left out if the request asked for all, refused if it named them."""
    named = {group.group_id: group.topics is not None for group in request.groups}
    holders = [(answer, request.topics is not None)]
    holders += [(group, named.get(group.group_id, False)) for group in answer.groups]
    allowed: list[list[Any]] = [[] for _ in holders]
    hidden: list[tuple[Any, ErrorCode]] = []

    def look(topics: Sequence[tuple[int, Any]]) -> None:
        for number, topic in topics:
            name = topic_of(ctx, topic)
            if name is not None and not may(ctx, DESCRIBE, TOPIC, name):
                if not holders[number][1]:
                    continue
                code = denied(ctx, DESCRIBE, TOPIC, name).code
                hidden.extend((partition, code) for partition in topic.partitions)
            allowed[number].append(topic)

    def hide(partitions: Sequence[tuple[Any, ErrorCode]]) -> None:
        for partition, code in partitions:
            partition.committed_offset, partition.metadata, partition.error_code = -1, "", code

    def only_those() -> Answer:
        for (holder, _), topics in zip(holders, allowed, strict=True):
            holder.topics = topics
        return in_slices(ctx, hidden, hide, lambda: answer)

    every = [(number, topic) for number, (holder, _) in enumerate(holders) for topic in holder.topics]
    return in_slices(ctx, every, look, only_those)


def _configs_of_created(ctx: RequestContext, _: Any, answer: Any) -> Answer:
    """The configs of a created topic are only for clients that may describe them (KIP-525)."""

    def hide(topics: Sequence[Any]) -> None:
        for topic in topics:
            if topic.error_code == ErrorCode.NONE and not may(ctx, DESCRIBE_CONFIGS, TOPIC, topic.name):
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.num_partitions = topic.replication_factor = -1
                topic.configs = []

    return in_slices(ctx, answer.topics, hide, lambda: answer)


def _groups_of_described_topics(ctx: RequestContext, _: Any, answer: Any) -> Answer:
    """A group whose members have topics that may not be described is refused, as in
    KafkaApis.handleConsumerGroupDescribe."""
    named: dict[tuple[int, str], None] = {}
    refused: dict[int, ErrorCode] = {}

    def collect(some: Sequence[tuple[int, str] | None]) -> None:
        named.update(dict.fromkeys(each for each in some if each is not None))

    def look(names: Sequence[tuple[int, str]]) -> None:
        for number, name in names:
            if number not in refused and not may(ctx, DESCRIBE, TOPIC, name):
                refused[number] = denied(ctx, DESCRIBE, TOPIC, name).code

    def without_those() -> Answer:
        for number, code in refused.items():
            answer.groups[number] = _refused_group(answer.groups[number], code)
        return answer  # type: ignore[no-any-return]

    def look_at_each() -> Answer:
        return in_slices_of(ctx, iter(named), look, without_those, few=1)

    return in_slices_of(ctx, _topics_of(answer.groups), collect, look_at_each, few=_NAMES_OF_AN_ELEMENT)


def _topics_of(groups: Sequence[Any]) -> Iterator[tuple[int, str] | None]:
    """The topics of each member of each group, by the group's number, and None for each member."""
    for number, group in enumerate(groups):
        for member in group.members:
            yield None
            for held in (member.assignment, member.target_assignment):
                for topic in held.topic_partitions:
                    yield number, topic.topic_name


def _refused_group(group: Any, code: ErrorCode) -> Any:
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


# -- refusals that name less, or other things, than was asked about: Kafka's getErrorResponse of each ------------------


def _empty(field: str) -> Refused:
    def shape(_: RequestContext, __: Any, answer: Any) -> None:
        setattr(answer, field, [])

    return Refused(shape)


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
        kind(user="", error_code=answer.error_code, error_message=answer.error_message) for _ in request.users or []
    ]


def _each_user_once(_: RequestContext, __: Any, answer: Any) -> None:
    answer.results = list({result.user: result for result in answer.results}.values())


def _no_reassignments(_: RequestContext, request: Any, answer: Any) -> None:
    topic, partition = (
        m.ListPartitionReassignmentsResponse.OngoingTopicReassignment,
        m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment,
    )
    answer.topics = [
        topic(
            name=wanted.name,
            partitions=[
                partition(partition_index=index, replicas=[], adding_replicas=[], removing_replicas=[])
                for index in wanted.partition_indexes
            ],
        )
        for wanted in request.topics or []
    ]


def _no_member(_: RequestContext, __: Any, answer: Any) -> None:
    answer.member_epoch = answer.heartbeat_interval_ms = 0


def _known_names(ctx: RequestContext, _: Any, answer: Any) -> Answer:
    """The name of a topic requested by id is only for clients that may describe it."""

    def name(topics: Sequence[Any]) -> None:
        for topic in topics:
            topic_name = ctx.broker.image.topic_names.get(topic.topic_id)
            if topic_name is not None and may(ctx, DESCRIBE, TOPIC, topic_name):
                topic.name = topic_name

    return in_slices(ctx, answer.responses, name, lambda: None)


IDEMPOTENT = Also(_may_be_idempotent)
DESCRIBED_TOPICS = Shown(_described_topics)
DESCRIBED_GROUPS = Shown(_described_groups)
DESCRIBED_TRANSACTIONS = Shown(_described_transactions)
OFFSETS_OF_DESCRIBED_TOPICS = Shown(_offsets_of_described_topics)
CONFIGS_OF_CREATED = Shown(_configs_of_created)
GROUPS_OF_DESCRIBED_TOPICS = Shown(_groups_of_described_topics)
OFFSETS_OF_NO_GROUP = Refused(_offsets_of_no_group, part=True)
NO_TOPICS = _empty("topics")
NO_RESULTS = _empty("results")
NO_TRANSACTIONS = _empty("results_by_transaction")
NO_QUOTAS = Refused(_no_quotas)
NO_CREDENTIALS = Refused(_no_credentials)
EACH_USER_ONCE = Refused(_each_user_once)
NO_REASSIGNMENTS = Refused(_no_reassignments)
NO_MEMBER = Refused(_no_member)
KNOWN_NAMES = Refused(_known_names, whole=False, part=True)
