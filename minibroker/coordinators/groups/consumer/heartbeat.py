"""ConsumerGroupHeartbeat: join, follow, leave (Kafka's GroupMetadataManager.consumerGroupHeartbeat, KIP-848).

Why the rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from minibroker.coordinators.groups.consumer import records
from minibroker.coordinators.groups.consumer.assignors import ASSIGNORS, Candidate
from minibroker.coordinators.groups.consumer.change import Change
from minibroker.coordinators.groups.consumer.effects import ImageSeen
from minibroker.coordinators.groups.consumer.expressions import Expressions, Subscribed
from minibroker.coordinators.groups.consumer.group import ConsumerGroup, metadata_hash
from minibroker.coordinators.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_TARGET,
    NOTHING,
    STATIC_LEAVE_EPOCH,
    Assigned,
    ConsumerMember,
    MemberState,
    Target,
)
from minibroker.coordinators.groups.consumer.reconcile import Owned, reconcile
from minibroker.coordinators.groups.environment import ClientInfo, Environment, TimerKey, rebalance_key, session_key
from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult
from minibroker.kernel.logs import get_logger
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

log = get_logger(__name__)

CLIENT_MEMBER_ID_VERSION = 1
_TRIMMED = "".join(map(chr, range(ord(" ") + 1)))

Response = ConsumerGroupHeartbeatResponse


def validate(request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: tuple[str, ...]) -> None:
    """Validate the request without looking at the group. Raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    # In the words and the order of GroupMetadataManager.throwIfConsumerGroupHeartbeatRequestIsInvalid. Until version 1
    # the coordinator gave out member ids (KIP-1082).
    epoch = request.member_epoch
    if _is_blank(request.member_id) and (api_version >= CLIENT_MEMBER_ID_VERSION or epoch > 0 or epoch == LEAVE_EPOCH):
        raise _invalid("MemberId can't be empty.")
    if _is_blank(request.group_id):
        raise _invalid("GroupId can't be empty.")
    if _is_blank(request.instance_id):
        raise _invalid("InstanceId can't be empty.")
    if _is_blank(request.rack_id):
        raise _invalid("RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _is_blank(text: str | None) -> bool:
    """Whether nothing is left after Java's String.trim (Utils.throwIfEmptyString)."""
    return text is not None and not text.strip(_TRIMMED)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


class HeartbeatDecisions:
    """Decides about one heartbeat on a group that exists or is about to; sessions are armed here as well.

    find: the group as it is when a wait is over.
    expired: what the end of a member's session means.
    """

    def __init__(
        self,
        env: Environment,
        find: Callable[[str], ConsumerGroup | None],
        expired: Callable[[ConsumerGroup, ConsumerMember], CoordinatorResult[None]],
    ) -> None:
        self._env = env
        self._find = find
        self._expired = expired
        self._expressions = Expressions(env, find)
        #: Groups whose target was made a short time ago.
        self._held: set[str] = set()

    # -- members that stay -----------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, member_id: str, change: Change
    ) -> CoordinatorResult[Response]:
        """Changes nothing but `change`, so that it may run on another thread.

        Raises ApiError: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID,
        GROUP_MAX_SIZE_REACHED, INVALID_REGULAR_EXPRESSION."""
        group = change.group
        self.check_room(group, member_id)
        owned: Owned = None
        if request.topic_partitions is not None:
            owned = [(topic.topic_id, topic.partitions) for topic in request.topic_partitions]
        member = self._subscribe(request, member_id, owned, change)
        updated = _updated(member, change.client, request)
        _, updated = self.follow(change, member, updated, owned)
        change.effects.append(partial(self.watch, group.group_id, updated))
        response = Response(
            member_id=member_id,
            member_epoch=updated.member_epoch,
            heartbeat_interval_ms=self._env.config_of(group.group_id).consumer_heartbeat_interval_ms,
        )
        # A client that sends all its fields has lost track of what it was told: it gets its whole assignment again.
        full = request.member_epoch == JOIN_EPOCH or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        if full or (
            updated.assigned is not member.assigned and _numbers(updated.assigned) != _numbers(member.assigned)
        ):
            response.assignment = _assignment(updated.assigned)
        return CoordinatorResult(response, tuple(change.records), pending=(ImageSeen(change.live),))

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        if member_id not in group.members and len(group.members) >= self._env.config().consumer_max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id} is full")

    def _subscribe(
        self, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: Owned, change: Change
    ) -> ConsumerMember:
        """The member that sent the request: a known one, a new one, or a returning static one."""
        group = change.group
        joins = request.member_epoch == JOIN_EPOCH
        if request.instance_id is None:
            if joins:
                return group.members.get(member_id) or ConsumerMember(member_id)
            member = group.member(member_id)
            _check_epoch(member, request.member_epoch, owned)
            return member
        held_by = group.static_member(request.instance_id)
        if joins:
            if held_by is None:
                return group.members.get(member_id) or ConsumerMember(member_id)
            if not held_by.uses_classic_protocol and held_by.member_epoch != STATIC_LEAVE_EPOCH:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {request.instance_id} cannot join the group because "
                    f"the instance id is owned by {held_by.member_id} member.",
                )
            return self.replace_static(change, held_by, member_id)
        check_instance(held_by, request.instance_id, member_id)
        assert held_by is not None
        _check_epoch(held_by, request.member_epoch, owned)
        return held_by

    def replace_static(self, change: Change, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member takes over the assignment of its earlier instance, under its new member id."""
        group = change.group
        # Epoch 0 makes the next step give it the whole assignment (KIP-848).
        new = replace(old, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        change.effects.append(partial(self.cancel, group.group_id, old.member_id))
        change.records += records.member_tombstones(group.group_id, old.member_id)
        change.records.append(records.member_metadata(group.group_id, new))
        change.records.append(records.target_assignment(group.group_id, member_id, group.target(old.member_id)))
        change.records.append(records.current_assignment(group.group_id, new))
        return new

    # -- the three steps of every heartbeat ------------------------------------------------------------------------

    def follow(
        self, change: Change, member: ConsumerMember, updated: ConsumerMember, owned: Owned
    ) -> tuple[int, ConsumerMember]:
        """Advance the group epoch, the target and the member's assignment: (target epoch, member)."""
        group = change.group
        # A member that joins is written even if all its fields are the defaults; one that replaces another has its
        # record already.
        if updated != member or (updated.member_id not in group.members and not change.records):
            change.records.append(records.member_metadata(group.group_id, updated))
        by_name = updated.subscribed_topic_names != member.subscribed_topic_names
        by_expression = self._expressions.follow(change, member.subscribed_topic_regex, updated.subscribed_topic_regex)
        must = by_name or by_expression is Subscribed.RESOLVED or self._assignor_changes(group, member, updated)
        epoch = self._bump(change, updated, must=must)
        target_epoch, target = self._retarget(change, updated, epoch)
        reconciled = reconcile(
            updated,
            target_epoch,
            target,
            subscribed=lambda: self._topic_ids(change, updated),
            changed=by_name or by_expression is not Subscribed.AS_BEFORE,
            held=self._holds(change, updated),
            owned=owned,
        )
        if reconciled is not updated and _assignment_of(reconciled) != _assignment_of(updated):
            change.records.append(records.current_assignment(change.group_id, reconciled))
            if not reconciled.uses_classic_protocol:
                change.effects.append(partial(self.watch_rebalance, change.group_id, reconciled))
        return target_epoch, reconciled

    def _assignor_changes(self, group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember) -> bool:
        """Whether most members now ask for another assignor, where that is a reason for a new target."""
        config = self._env.config()
        if updated.server_assignor == member.server_assignor or not config.assignor_bumps_epoch:
            return False
        default, members = config.consumer_assignors[0], self._members_with(group, updated)
        return group.preferred_assignor(members, default) != group.preferred_assignor(group.members.values(), default)

    def _bump(self, change: Change, updated: ConsumerMember, *, must: bool) -> int:
        """The group epoch, bumped if required or if the subscribed topics have changed."""
        group, image = change.group, change.image
        # Hashing every topic of every member is dear, and the same metadata have the same hash.
        if not must and group.seen_image is image:
            return group.group_epoch
        topics = group.subscribed_topics(self._members_with(group, updated), group.expressions)
        now_hash = metadata_hash(image, topics)
        change.effects.append(change.see_image)
        if not must and now_hash == group.metadata_hash:
            return group.group_epoch
        epoch = group.group_epoch + 1
        change.records.append(records.group_epoch(group.group_id, epoch, now_hash))
        log.debug("group %s: epoch %d", group.group_id, epoch)
        return epoch

    def _topic_ids(self, change: Change, member: ConsumerMember) -> frozenset[bytes]:
        """Topics that there are, and that the member subscribes to. An expression that is not resolved has none."""
        names, topics = change.group.topics_of(member, change.group.expressions), change.image.topics
        return frozenset(topics[name].topic_id for name in names if name in topics)

    @staticmethod
    def _members_with(group: ConsumerGroup, updated: ConsumerMember) -> list[ConsumerMember]:
        """All members after this request, without a static member's earlier instance."""
        replaced = group.static_member(updated.instance_id)
        gone = replaced.member_id if replaced is not None else ""
        others = [m for m in group.members.values() if m.member_id not in (updated.member_id, gone)]
        return [*others, updated]

    def _retarget(self, change: Change, updated: ConsumerMember, epoch: int) -> tuple[int, Target]:
        """The member's part of the target for the group's epoch, which is computed again when the target is older."""
        group = change.group
        if epoch <= group.target_epoch or group.group_id in self._held:
            return group.target_epoch, self._target_of(group, updated)
        image, config = change.image, self._env.config()
        members = self._members_with(group, updated)
        candidates, counts = [], {}
        for member in members:
            ids = set()
            for name in group.topics_of(member, group.expressions):
                topic = image.topics.get(name)
                if topic is not None:
                    ids.add(topic.topic_id)
                    counts[topic.topic_id] = len(topic.partitions)
            current = self._target_of(group, member)
            candidates.append(Candidate(member.member_id, member.instance_id, frozenset(ids), current))
        name = group.preferred_assignor(members, config.consumer_assignors[0])
        assignment = ASSIGNORS[name](candidates, counts)
        for candidate in candidates:
            target = assignment.get(candidate.member_id, {})
            if candidate.member_id not in group.targets or target != candidate.current:
                change.records.append(records.target_assignment(group.group_id, candidate.member_id, target))
        change.records.append(records.target_epoch(group.group_id, epoch, self._env.now_ms()))
        change.effects.append(partial(self._hold, group.group_id))
        return epoch, assignment.get(updated.member_id, NO_TARGET)

    def _hold(self, group_id: str) -> None:
        """No other target for a while (group.consumer.assignment.interval.ms). Nothing happens by itself when it is
        over: the next heartbeat of any member brings the new target."""
        interval_ms = self._env.config_of(group_id).consumer_assignment_interval_ms
        if interval_ms:
            self._held.add(group_id)
            self._env.timers.schedule(("assignment", group_id, ""), interval_ms, partial(self._release, group_id))

    def _release(self, group_id: str) -> CoordinatorResult[None]:
        self._held.discard(group_id)
        return CoordinatorResult(None)

    @staticmethod
    def _target_of(group: ConsumerGroup, member: ConsumerMember) -> Target:
        """A static member that rejoins gets the target of the member it replaces."""
        if member.member_id in group.targets:
            return group.targets[member.member_id]
        before = group.static_member(member.instance_id)
        return NO_TARGET if before is None else group.target(before.member_id)

    @staticmethod
    def _holds(change: Change, member: ConsumerMember) -> _Holder:
        before = change.group.static_member(member.instance_id)
        return _Holder(change.group, before.member_id if before is not None else None, member)

    # -- members that go -------------------------------------------------------------------------------------------

    def leave(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
        """The member that leaves. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if request.instance_id is None:
            return group.member(request.member_id)
        held_by = group.static_member(request.instance_id)
        check_instance(held_by, request.instance_id, request.member_id)
        assert held_by is not None
        return held_by

    def leave_for_now(self, group: ConsumerGroup, member: ConsumerMember) -> list[CoordinatorRecord]:
        """A static member leaves and will return: it keeps its assignment."""
        away = replace(member, member_epoch=STATIC_LEAVE_EPOCH, pending_revocation=NOTHING)
        return [records.current_assignment(group.group_id, away)]

    def removal(self, group: ConsumerGroup, *members: ConsumerMember) -> list[CoordinatorRecord]:
        """Take members out and bump the group's epoch; their sessions end."""
        group_id = group.group_id
        gone = {member.member_id for member in members}
        result: list[CoordinatorRecord] = []
        for member in members:
            self.cancel(group_id, member.member_id)
            result += records.member_tombstones(group_id, member.member_id)
        remaining = [member for member in group.members.values() if member.member_id not in gone]
        wanted = {member.subscribed_topic_regex for member in remaining}
        result += [
            records.regular_expression_tombstone(group_id, expression)
            for expression in group.expressions
            if expression not in wanted
        ]
        topics, epoch = group.subscribed_topics(remaining, group.expressions), group.group_epoch + 1
        result.append(records.group_epoch(group_id, epoch, metadata_hash(self._env.image(), topics)))
        if not remaining and self._env.config().empty_group_is_assigned:
            result.append(records.target_epoch(group_id, epoch, self._env.now_ms()))
            self._held.discard(group_id)
        return result

    # -- waits -----------------------------------------------------------------------------------------------------

    def watch(self, group_id: str, member: ConsumerMember) -> None:
        """Start the timer of the next heartbeat."""
        timeout_ms = self._env.config_of(group_id).consumer_session_timeout_ms
        # A member of the classic protocol chooses its session timeout; for others the group has one (KIP-848).
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._expire_in(session_key(group_id, member.member_id), timeout_ms, None)

    def watch_rebalance(self, group_id: str, member: ConsumerMember) -> None:
        """Start the timer within which a member must revoke its partitions; cancel it when there are none."""
        key = rebalance_key(group_id, member.member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self._expire_in(key, member.rebalance_timeout_ms, member.member_epoch)
        else:
            self._env.timers.cancel(key)

    def _expire_in(self, key: TimerKey, delay_ms: int, epoch: int | None) -> None:
        self._env.timers.schedule(key, delay_ms, self.removal_when_over(key, epoch))

    def removal_when_over(self, key: TimerKey, epoch: int | None) -> Callable[[], CoordinatorResult[None]]:
        """Takes the member out when its wait is over, if it is still in `epoch` (None: in any)."""

        def over() -> CoordinatorResult[None]:
            what, group_id, member_id = key
            group = self._find(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or epoch not in (None, member.member_epoch):
                return CoordinatorResult(None)
            log.info("group %s: %s of member %s expired", group_id, what, member_id)
            return self._expired(group, member)

        return over

    def cancel(self, group_id: str, member_id: str) -> None:
        self._env.timers.cancel(session_key(group_id, member_id))
        self._env.timers.cancel(rebalance_key(group_id, member_id))
        # Waits of a member that speaks the classic protocol (`classic_members`).
        for kind in ("join", "sync"):
            self._env.timers.cancel((kind, group_id, member_id))

    def loaded(self, group: ConsumerGroup) -> None:
        """Restart the sessions of all members after a load."""
        for member in group.members.values():
            self.watch(group.group_id, member)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self.watch_rebalance(group.group_id, member)


@dataclass(frozen=True, slots=True)
class _Holder:
    """Whether a member owns a partition; a static member's former instance does not count."""

    group: ConsumerGroup
    former_id: str | None
    member: ConsumerMember

    def __call__(self, topic_id: bytes, partition: int) -> bool:
        owner = self.group.owners.get((topic_id, partition))
        if owner is None:
            return False
        return self.former_id is None or owner != self.former_id or owner == self.member.member_id


def check_instance(held_by: ConsumerMember | None, instance_id: str, member_id: str) -> None:
    """Raises UNKNOWN_MEMBER_ID when no member holds the instance id, FENCED_INSTANCE_ID when another member does."""
    if held_by is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if held_by.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held_by.member_id}.",
        )


def _check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """The member's epoch, or the one before when the answer with the new one may have been lost."""
    if epoch == member.member_epoch:
        return
    lost_answer = (
        epoch == member.previous_member_epoch
        and owned is not None
        and all(p in member.assigned.get(topic_id, {}) for topic_id, partitions in owned for p in partitions)
    )
    if epoch > member.member_epoch or not lost_answer:
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {'greater' if epoch > member.member_epoch else 'smaller'} member epoch "
            f"({epoch}) than the one known by the group coordinator ({member.member_epoch}). The member must abandon "
            "all its partitions and rejoin.",
        )


def _updated(member: ConsumerMember, client: ClientInfo, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """The member with the fields of the request; a null field leaves the old value."""
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=client.client_id,
        client_host=client.client_host,
        classic=None,
    )


def _numbers(assigned: Assigned) -> dict[bytes, set[int]]:
    return {topic_id: set(epochs) for topic_id, epochs in assigned.items()}


def _assignment_of(member: ConsumerMember) -> tuple[object, ...]:
    return (
        member.member_epoch,
        member.previous_member_epoch,
        member.state,
        member.assigned,
        member.pending_revocation,
    )


def _assignment(assigned: Assigned) -> Response.Assignment:
    return Response.Assignment(
        topic_partitions=[
            Response.TopicPartitions(topic_id=topic_id, partitions=sorted(epochs))
            for topic_id, epochs in sorted(assigned.items())
        ]
    )
