"""One partition of `__consumer_offsets`: its groups and offsets (Kafka's GroupCoordinatorShard).

Classic groups, their members and rebalances live in memory; records say what survives. The shard's methods return what
must be made durable, and `replay` applies it.
"""

from __future__ import annotations

from typing import cast

from minibroker.coordinators.groups import records
from minibroker.coordinators.groups.classic.effects import AssignmentWritten, GroupCreated, StaticMemberReplaced
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.join import Join, creation, join_error
from minibroker.coordinators.groups.classic.membership import Membership, sync_error
from minibroker.coordinators.groups.classic.rebalance import Rebalance
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.commits import Commit, Committed, OffsetDecisions
from minibroker.coordinators.groups.consumer.effects import ClassicMemberJoined, Downgraded, ImageSeen, MembersTakenOver
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.members import ConsumerMembers
from minibroker.coordinators.groups.consumer.replay import replay_consumer_record
from minibroker.coordinators.groups.environment import ClientInfo, Environment
from minibroker.coordinators.groups.offsets import NO_PRODUCER_ID, OffsetStore
from minibroker.coordinators.groups.other_groups import STREAMS, OtherGroups, OtherRecord, in_words
from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult, Effect, Pending
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker_protocol import coordinator_records as c
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed

log = get_logger(__name__)


class GroupShard:
    """Groups by id, and the offsets of all of them."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.groups: dict[str, ClassicGroup | ConsumerGroup] = {}
        self.others = OtherGroups()
        self.offsets = OffsetStore()
        self.decisions = OffsetDecisions(
            env, self.groups, self.offsets, lambda group_id: ClassicGroup(group_id, env.now_ms())
        )
        self.rebalance = Rebalance(env)
        self._join = Join(env, self.rebalance)
        self._membership = Membership(self.rebalance)
        self.consumers = ConsumerMembers(env, self.groups, self.others, self.rebalance)
        self._live = False

    # -- classic members -------------------------------------------------------------------------------------------

    def join(
        self, client: ClientInfo, request: m.JoinGroupRequest, answer: Deferred[m.JoinGroupResponse]
    ) -> CoordinatorResult[None]:
        """Decide about a JoinGroup; `answer` is resolved now or when the group has its next generation."""
        group_id, created = request.group_id, False
        group = self.groups.get(group_id)
        before: list[CoordinatorRecord] = []
        other = self.others.get(group_id)
        if other is not None:
            if not other.gives_way:
                answer.resolve(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
                return CoordinatorResult(None)
            before = other.tombstones()
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return self.consumers.classic.join(group, client, request, answer)
            # An empty group of the other protocol gives way (GroupMetadataManager.maybeDeleteEmptyConsumerGroup).
            before, group = group.tombstones(), None
        if group is None:
            # Only a new member makes a group. One with an id belongs to a group that is gone, and joins again without
            # it.
            if request.member_id:
                answer.resolve(join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return CoordinatorResult(None, tuple(before))
            group, created = ClassicGroup(group_id, self.env.now_ms()), True
            self.groups[group_id] = group
        decided = self._join.join(group, client, request, answer)
        if created:
            decided = creation(group, decided, answer)
            decided.records = (*before, *decided.records)
        return decided

    def sync(self, request: m.SyncGroupRequest, answer: Deferred[m.SyncGroupResponse]) -> CoordinatorResult[None]:
        group = self._member_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            answer.resolve(self.consumers.classic.sync(group, request))
            return CoordinatorResult(None)
        return self._membership.sync(group, request, answer)

    def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
        group = self._member_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return m.HeartbeatResponse(error_code=self.consumers.classic.heartbeat(group, request))
        return m.HeartbeatResponse(error_code=self._membership.heartbeat(group, request))

    def leave(self, request: m.LeaveGroupRequest) -> CoordinatorResult[m.LeaveGroupResponse]:
        group = self._member_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self.consumers.classic.leave(group, request)
        return self._membership.leave(group, request)

    def _member_group(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")
        return group

    # -- administration --------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> m.DescribeGroupsResponse.DescribedGroup:
        """A classic group; raises GROUP_ID_NOT_FOUND for any other."""
        self.others.check(group_id, "classic")
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            reason = "not found" if group is None else "is not a classic group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group.described()

    def listed(self) -> list[m.ListGroupsResponse.ListedGroup]:
        listed = m.ListGroupsResponse.ListedGroup
        return [
            listed(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state_name,
                group_type=group.type_name,
            )
            for group in self.groups.values()
        ] + [
            listed(
                group_id=group.group_id,
                protocol_type=group.type_name,
                group_state=GroupState.EMPTY.value,
                group_type=group.type_name,
            )
            for group in self.others.all()
        ]

    def delete_group(self, group_id: str) -> CoordinatorResult[None]:
        """As `OffsetDecisions.delete_group`; of a group that is not served, whatever members it had."""
        other = self.others.get(group_id)
        if other is None:
            return self.decisions.delete_group(group_id)
        offsets = [records.offset_tombstone(group_id, *key) for key in self.offsets.known(group_id)]
        return CoordinatorResult(None, (*offsets, *other.tombstones()))

    # -- offsets ---------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> CoordinatorResult[Committed]:
        other = self.others.get(commit.group_id)
        # A commit without a generation makes a group of its own, for which an empty streams group gives way.
        if other is not None and not (other.gives_way and commit.generation_id < 0):
            self.others.check(commit.group_id, "consumer")
        outcome = self.decisions.commit(commit)
        group = self.groups.get(commit.group_id)
        if isinstance(group, ClassicGroup) and not commit.transactional:
            self._membership.keep_alive(group, commit.member_id)
        return outcome

    def validate_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> bool:
        """Whether the group has offsets to show; False when it does not exist. Raises ApiError with a refusal."""
        other = self.others.get(group_id)
        if other is not None:
            return other.type_name == STREAMS
        group = self.groups.get(group_id)
        if group is None:
            return False
        try:
            group.validate_offset_fetch(member_id, member_epoch)
        except ApiError as error:
            # A group that is gone has no offsets, which is no error (OffsetMetadataManager.fetchOffsets).
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return False
            raise
        return True

    # -- the log ---------------------------------------------------------------------------------------------------

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        try:
            return records.decode(key, value)
        except Malformed as error:
            log.warning("a record of the groups cannot be read: %s", error)
            return None

    def replay(
        self, record: CoordinatorRecord, *, offset: int, producer_id: int, producer_epoch: int, transactional: bool
    ) -> None:
        key = record.key
        if isinstance(record, OtherRecord):
            self._replay_other(record)
        elif isinstance(key, c.OffsetCommitKey | c.LegacyOffsetCommitKey):
            self._replay_offset(key, record, offset, producer_id if transactional else NO_PRODUCER_ID)
        elif isinstance(key, c.GroupMetadataKey):
            self._replay_group(key.group, cast("c.GroupMetadataValue | None", record.value))
        else:
            replay_consumer_record(self.groups, record)

    def replay_marker(self, *, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.offsets.complete(producer_id, committed=committed)

    def _replay_offset(
        self,
        key: c.OffsetCommitKey | c.LegacyOffsetCommitKey,
        record: CoordinatorRecord,
        offset: int,
        producer_id: int,
    ) -> None:
        if record.value is not None and key.group not in self.groups and self.others.get(key.group) is None:
            self.groups[key.group] = ClassicGroup(key.group, self.env.now_ms())
        self.offsets.replay(
            key.group,
            key.topic,
            key.partition,
            cast("c.OffsetCommitValue | None", record.value),
            record_offset=offset,
            producer_id=producer_id,
        )

    def _replay_other(self, record: OtherRecord) -> None:
        self.others.replay(record)
        group_id = record.group_id
        group = self.groups.get(group_id)
        if self.others.get(group_id) is not None and isinstance(group, ClassicGroup) and not self._live:
            del self.groups[group_id]  # known by its offsets alone so far

    def _replay_group(self, group_id: str, value: c.GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                group.state = GroupState.DEAD
                del self.groups[group_id]
        elif self._live and isinstance(group, ClassicGroup):
            group.persisted = value  # the members in memory are ahead of the group's record
        else:
            forming = self.consumers.forming.pop(group_id, None)
            self.groups[group_id] = forming or ClassicGroup.from_value(group_id, value, self.env.now_ms())

    # -- before and after an append --------------------------------------------------------------------------------

    def note(self, pending: Pending) -> None:
        if isinstance(pending, Downgraded):
            self.consumers.forming[pending.classic.group_id] = pending.classic

    def refused(self, pending: Pending, code: ErrorCode) -> None:
        """The append of a noted decision was refused: answer its waiting requests, and undo what only memory has."""
        match pending:
            case AssignmentWritten():
                self._membership.assignment_refused(pending, code)
            case StaticMemberReplaced():
                self._join.static_member_refused(pending, code)
            case GroupCreated() if not pending.answer.done:
                pending.answer.resolve(join_error(code, ""))
            case ClassicMemberJoined():
                pending.answer.resolve(join_error(code, pending.request.member_id))
            case Downgraded():
                self.consumers.forming.pop(pending.classic.group_id, None)
            case ImageSeen():
                pending.group.seen_image = None

    def perform(self, effect: Effect) -> None:
        match effect:
            case AssignmentWritten():
                self._membership.assignment_written(effect)
            case StaticMemberReplaced():
                self._join.static_member_written(effect)
            case ClassicMemberJoined():
                self.consumers.classic.joined(effect)
            case MembersTakenOver():
                self.consumers.taken_over(effect)
            case Downgraded():
                self.consumers.downgraded(effect)

    def loaded(self) -> tuple[Effect, ...]:
        self._live = True
        if others := self.others.all():
            log.warning("%s", in_words(others))
        most = self.env.config().max_size
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                self.consumers.loaded(group)
                continue
            for member in group.members.values():
                self.rebalance.rearm_session(group, member)
            if len(group.members) > most:
                self.rebalance.prepare(group, "the group is larger than it may be now")
        return ()

    def resigned(self) -> None:
        """Answer what is parked; the members find the new coordinator."""
        self.rebalance.answers.finish()
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                continue
            for member in list(group.members.values()):
                group.complete_join(member, join_error(ErrorCode.NOT_COORDINATOR, member.member_id))
                group.complete_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))
            group.state = GroupState.DEAD

    def durable(self) -> dict[str, object]:
        """Everything the log decides, for comparing a live shard with a reloaded one."""
        return {
            "groups": {group_id: group.durable() for group_id, group in self.groups.items()},
            "offsets": self.offsets.snapshot(),
        }
