"""What a Fetch request is about: its session, its partitions, and which of them the client may read.

A session outlives its client's rights, and its id is no secret. So every request checks the right to each topic of
the session here, not in `minibroker.requests.authorization`.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchSession,
    FetchTarget,
    PartitionKey,
)
from minibroker.handlers import follower_fetch
from minibroker.partitions.partition import Partition
from minibroker.requests.auth_helper import authorize
from minibroker.requests.context import RequestContext
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TOPIC_IDS_VERSION = 13

Named = tuple[FetchRequest.FetchTopic, FetchRequest.FetchPartition]


class Fetch:
    """One request while it is served.

    idle: partitions of a session that were not read, because there is nothing new for its client.
    nodes: addresses of the leaders of partitions that this broker does not lead.
    """

    __slots__ = (
        "denied", "follower", "full", "idle", "isolation", "max_bytes", "min_bytes", "nodes", "nothing_yet", "reads",
        "remaining", "replica_id", "responses", "session", "targets",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext, request: FetchRequest) -> None:
        state = request.replica_state
        self.replica_id = (-1 if state is None else state.replica_id) if ctx.api_version >= 15 else request.replica_id
        self.follower = self.replica_id >= 0
        limit = ctx.broker.settings.get_int("fetch.max.bytes")
        self.max_bytes = min(request.max_bytes, limit) if self.replica_id < 0 else request.max_bytes
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.isolation = request.isolation_level
        self.session: FetchSession | None = None
        self.full = True
        self.targets: list[FetchTarget] = []
        self.denied: dict[str, ApiError] = {}
        self.remaining = self.max_bytes
        self.nothing_yet = True
        self.reads: list[Read] = []
        self.idle: list[tuple[Partition, FetchTarget]] = []
        self.responses: list[FetchResponse.FetchableTopicResponse] = []
        self.nodes: dict[int, FetchResponse.NodeEndpoint] = {}


class Read:
    """The result of reading one partition.

    size: bytes of records.
    failed: the answer must not wait.
    routed: its log was read.
    """

    __slots__ = ("data", "failed", "partition", "routed", "size", "target")

    def __init__(
        self,
        target: FetchTarget,
        data: FetchResponse.PartitionData,
        partition: Partition | None,
        *,
        routed: bool = True,
    ) -> None:
        self.routed = routed
        self.target = target
        self.data = data
        self.partition = partition
        self.size = 0
        self.failed = False


def open_fetch(
    ctx: RequestContext,
    request: FetchRequest,
    fetch: Fetch,
    targets: dict[PartitionKey, FetchTarget],
    forgotten: list[PartitionKey],
) -> FetchResponse | None:
    """Open the session; the answer if it is refused, else None."""
    try:
        _open_session(ctx, request, fetch, list(targets.values()), forgotten)
    except ApiError as error:
        ctx.refused(f"fetch session {request.session_id}", error)
        return FetchResponse(error_code=error.code, session_id=INVALID_SESSION_ID)
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED) and any(
        ctx.broker.image.partition(_name_now(ctx, target), target.index) is not None for target in fetch.targets
    ):
        return _no_such_isolation(ctx, request)
    if ctx.broker.authorizer is not None:
        fetch.denied = _denied_topics(ctx, fetch)
    return None


def _no_such_isolation(ctx: RequestContext, request: FetchRequest) -> FetchResponse:
    """Kafka fails with an exception; versions with topic ids name no partition then (FetchRequest.getErrorResponse)."""
    error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"there is no isolation level {request.isolation_level}")
    ctx.refused("the fetch", error)
    responses = [
        FetchResponse.FetchableTopicResponse(
            topic=topic.topic,
            partitions=[follower_fetch.refused(p.partition, error, aborted=[]) for p in topic.partitions],
        )
        for topic in (request.topics if ctx.api_version < TOPIC_IDS_VERSION else ())
    ]
    return FetchResponse(error_code=error.code, session_id=request.session_id, responses=responses)


# -- sessions ----------------------------------------------------------------------------------------------------------


def _open_session(
    ctx: RequestContext,
    request: FetchRequest,
    fetch: Fetch,
    targets: list[FetchTarget],
    forgotten: list[PartitionKey],
) -> None:
    sessions = ctx.broker.fetch_sessions
    by_id = ctx.api_version >= TOPIC_IDS_VERSION
    if ctx.api_version < 7 or request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if request.session_id != INVALID_SESSION_ID:
            sessions.close(request.session_id)
        fetch.targets = targets
        if ctx.api_version >= 7 and request.session_epoch == INITIAL_EPOCH:
            fetch.session = sessions.create(targets, by_id, ctx.broker.clock.now_ms())
        return
    session = sessions.resume(request.session_id, request.session_epoch, by_id, ctx.broker.clock.now_ms())
    session.apply(targets, forgotten)
    session.next_epoch()
    if not session.targets:
        # Kafka closes a session that has no partitions left, and answers the request's partitions without a session.
        sessions.close(session.id)
        fetch.targets = targets
        return
    fetch.full = False
    fetch.targets = list(session.targets.values())
    fetch.session = session


def name_targets(
    ctx: RequestContext,
    targets: dict[PartitionKey, FetchTarget],
    named: Sequence[Named],
) -> None:
    """Add the partitions that the request names. One named twice is read once, with the values of the later entry
    (FullFetchContext keeps them in a map)."""
    image = ctx.broker.image
    by_id = ctx.api_version >= TOPIC_IDS_VERSION
    for topic, p in named:
        name = image.topic_names.get(topic.topic_id, "") if by_id else topic.topic
        target = FetchTarget(
            name,
            topic.topic_id if by_id else NO_ID,
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
        )
        targets[target.key] = target


def forget_targets(
    ctx: RequestContext, forgotten: list[PartitionKey], topics: Sequence[FetchRequest.ForgottenTopic]
) -> None:
    """Add the partitions that the session is to forget."""
    by_id = ctx.api_version >= TOPIC_IDS_VERSION
    for topic in topics:
        name = "" if by_id else topic.topic
        forgotten += [(name, topic.topic_id if by_id else NO_ID, index) for index in topic.partitions]


# -- rights ------------------------------------------------------------------------------------------------------------


def _denied_topics(ctx: RequestContext, fetch: Fetch) -> dict[str, ApiError]:
    """The topics that the client may not read: CLUSTER_ACTION is the right of a replica, READ that of a consumer."""
    names = dict.fromkeys(_name_now(ctx, target) for target in fetch.targets)
    if fetch.follower and authorize(ctx, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return {}
    may_read = [
        fetch.follower is False and authorize(ctx, AclOperation.READ, ResourceType.TOPIC, name) for name in names
    ]
    what = "CLUSTER_ACTION CLUSTER, as a replica's fetch of" if fetch.follower else "READ TOPIC"
    return {
        name: ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{ctx.connection.principal} may not {what} {name}")
        for name, may in zip(names, may_read, strict=True)
        if not may
    }


def _name_now(ctx: RequestContext, target: FetchTarget) -> str:
    """The name of a target's topic; that of an id can have come after the session, or gone since."""
    return ctx.broker.image.topic_names.get(target.topic_id, target.topic)
