"""KIP-848 groups of one shard: heartbeats and descriptions.

Why the rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.rebalance import Rebalance
from minibroker.coordinators.groups.consumer.change import Change
from minibroker.coordinators.groups.consumer.classic_members import ClassicMembers
from minibroker.coordinators.groups.consumer.effects import Downgraded, MembersTakenOver
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.group_migration import can_downgrade, check_upgrade, downgraded, upgraded
from minibroker.coordinators.groups.consumer.heartbeat import HeartbeatDecisions
from minibroker.coordinators.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from minibroker.coordinators.groups.consumer.replay import AnyGroup
from minibroker.coordinators.groups.environment import ClientInfo, Environment
from minibroker.coordinators.groups.other_groups import OtherGroups
from minibroker.coordinators.patterns import takes_long
from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import MetadataImage
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed

R = TypeVar("R")

log = get_logger(__name__)

_Request = m.ConsumerGroupHeartbeatRequest
_Response = m.ConsumerGroupHeartbeatResponse
_Decision = CoordinatorResult[_Response]
_Described = m.ConsumerGroupDescribeResponse.DescribedGroup
_Member = m.ConsumerGroupDescribeResponse.Member
_Assignment = m.ConsumerGroupDescribeResponse.Assignment
_TopicPartitions = m.ConsumerGroupDescribeResponse.TopicPartitions

_CONSUMER_MEMBER = 1
_CLASSIC_MEMBER = 0


class ConsumerMembers:
    """Handles the requests of members of KIP-848 groups, and describes the groups."""

    def __init__(
        self, env: Environment, groups: Mapping[str, AnyGroup], others: OtherGroups, rebalance: Rebalance
    ) -> None:
        self._env = env
        self._groups = groups
        self._others = others
        self._rebalance = rebalance
        self._heartbeat = HeartbeatDecisions(env, self._find, self.remove)
        self.classic = ClassicMembers(env, self._heartbeat)
        # Classic groups whose first record is being written: it tells less of them than is known.
        self.forming: dict[str, ClassicGroup] = {}

    def heartbeat(self, client: ClientInfo, request: _Request) -> _Decision:
        """For a request that `validate` has passed. Raises GROUP_ID_NOT_FOUND beside what Heartbeat raises."""
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(self.group(request.group_id), request)
        change = self._change(client, request)
        return self._decided(change, self._heartbeat.heartbeat(request, self._member_id(request), change))

    def _member_id(self, request: _Request) -> str:
        return request.member_id or self._env.new_id()

    def _decided(self, change: Change, outcome: _Decision) -> _Decision:
        # Timers are memory's and follow the decision. One that runs out after a refused append meets no such member.
        change.take_effect()
        if self._groups.get(change.group_id) is not change.live:
            # Made in this breath: members it took over from a classic group are not watched yet.
            taken_over = tuple(member for member in change.group.members.values() if member.uses_classic_protocol)
            outcome.on_append = (MembersTakenOver(change.group_id, taken_over),)
        return outcome

    def takes_long(self, request: _Request) -> bool:
        """Whether a heartbeat is decided on another thread, because it computes a large assignment or brings
        an expression that takes long."""
        group = self._groups.get(request.group_id)
        if request.member_epoch < JOIN_EPOCH or isinstance(group, ClassicGroup):
            return False
        group = group or ConsumerGroup(request.group_id)
        image = self._env.image()
        if takes_long(request.subscribed_topic_regex, image.topics):
            return True
        return not _says_nothing_new(request, group, image) and _is_large(request, group, image)

    def aside(
        self, client: ClientInfo, request: _Request
    ) -> tuple[Callable[[], _Decision], Callable[[_Decision], _Decision | None]]:
        """`heartbeat` in two halves, where it takes long: what may be done on another thread, and what makes of it a
        result here, or None where the group has changed since."""
        change = self._change(client, request)
        live = self._groups.get(request.group_id)
        change.group, member_id = change.live.copy(), self._member_id(request)

        def decide() -> _Decision:
            outcome = self._heartbeat.heartbeat(request, member_id, change)
            for record in outcome.records:
                record.encode()
            return outcome

        def accept(outcome: _Decision) -> _Decision | None:
            if self._groups.get(request.group_id) is not live or change.live.version != change.group.version:
                return None
            return self._decided(change, outcome)

        return decide, accept

    def taken_over(self, effect: MembersTakenOver) -> None:
        for member in effect.members:
            self._heartbeat.watch(effect.group_id, member)

    def group(self, group_id: str) -> ConsumerGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        self._others.check(group_id, "consumer")
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            reason = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def _change(self, client: ClientInfo, request: _Request) -> Change:
        """The group, made when a member joins; an empty classic group gives way, one of consumers changes over."""
        self._others.check(request.group_id, "consumer")
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._new(client, group)
        joins = request.member_epoch == JOIN_EPOCH
        if group is None:
            if joins:
                return self._new(client, ConsumerGroup(request.group_id))
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        if joins and group.is_empty:
            return self._new(client, ConsumerGroup(request.group_id), group.tombstones())
        if not joins:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        check_upgrade(self._env, group)
        return self._new(client, *upgraded(self._env, group))

    def _new(self, client: ClientInfo, group: ConsumerGroup, records: Iterable[CoordinatorRecord] = ()) -> Change:
        return Change(client, group, self._env.image(), group, list(records))

    def _leave(self, group: ConsumerGroup, request: _Request) -> _Decision:
        member = self._heartbeat.leave(group, request)
        response = _Response(member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return CoordinatorResult(response, tuple(self._heartbeat.leave_for_now(group, member)))
        return self._without(group, member, response)

    def _find(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def remove(self, group: ConsumerGroup, member: ConsumerMember) -> CoordinatorResult[None]:
        """The group without a member whose session has ended, or is ended."""
        return self._without(group, member, None)

    def _without(self, group: ConsumerGroup, member: ConsumerMember, response: R) -> CoordinatorResult[R]:
        """The group without a member; when only classic members are left it becomes a classic group and rebalances."""
        if not can_downgrade(self._env, group, member):
            return CoordinatorResult(response, tuple(self._heartbeat.removal(group, member)))
        try:
            classic, changes = downgraded(self._env, group, member)
        except Malformed as error:
            log.warning("group %s stays a consumer group: %s", group.group_id, error)
            return CoordinatorResult(response, tuple(self._heartbeat.removal(group, member)))
        for each in group.members:
            self._heartbeat.cancel(group.group_id, each)

        downgrade = Downgraded(classic)
        return CoordinatorResult(response, tuple(changes), pending=(downgrade,), on_append=(downgrade,))

    def downgraded(self, effect: Downgraded) -> None:
        for member in effect.classic.members.values():
            self._rebalance.rearm_session(effect.classic, member)
        self._rebalance.prepare(effect.classic, "the last member of the consumer protocol left")

    def loaded(self, group: ConsumerGroup) -> None:
        self._heartbeat.loaded(group)

    # -- telling ---------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> _Described:
        """Raises GROUP_ID_NOT_FOUND."""
        group, image = self.group(group_id), self._env.image()
        default = self._env.config().consumer_assignors[0]
        return _Described(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.preferred_assignor(group.members.values(), default),
            members=[_described(group, member, image) for member in group.members.values()],
        )


LARGE = 1000
"""Topics and partitions, over all members: about 10 ms to assign them."""


def _says_nothing_new(request: _Request, group: ConsumerGroup, image: MetadataImage) -> bool:
    """Whether a heartbeat changes nothing and its response has no news."""
    member = group.members.get(request.member_id)
    return (
        member is not None
        and group.seen_image is image
        and group.group_epoch == group.target_epoch == request.member_epoch
        and member.reconciled_to(group.target_epoch)
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.topic_partitions is None
    )


def _is_large(request: _Request, group: ConsumerGroup, image: MetadataImage) -> bool:
    size = len(group.owners) + sum(len(topic.partitions) for topic in request.topic_partitions or ())
    if request.subscribed_topic_regex or any(member.subscribed_topic_regex for member in group.members.values()):
        size += len(image.topics)
    lists = [request.subscribed_topic_names or (), *(each.subscribed_topic_names for each in group.members.values())]
    for names in lists:
        size += len(names)
        for name in names:
            if size > LARGE:
                return True
            topic = image.topics.get(name)
            size += 0 if topic is None else len(topic.partitions)
    return size > LARGE


def _described(group: ConsumerGroup, member: ConsumerMember, image: MetadataImage) -> _Member:
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(member.owned, image),
        target_assignment=_assignment(group.target(member.member_id), image),
        member_type=_CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Any], image: MetadataImage) -> _Assignment:
    """Topics that are gone are left out."""
    topics = []
    for topic_id, numbers in partitions.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(_TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers)))
    return _Assignment(topic_partitions=topics)
