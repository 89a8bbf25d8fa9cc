"""The phases of a rebalance: collect joins, answer with the generation, wait for assignments, watch sessions.

Kafka: the classic half of GroupMetadataManager (prepareRebalance, completeClassicGroupJoin and their timers). Why the
rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from minibroker.coordinators.groups.classic.answers import Answer, Answers
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.member import ClassicMember
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.environment import Environment, join_key, session_key, sync_key
from minibroker.coordinators.groups.records import group_metadata
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker.kernel.turns import STEPS_AT_ONCE
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

T = TypeVar("T")

log = get_logger(__name__)

_REBALANCED: Final = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class Rebalance:
    """What happens to classic groups between requests; every method returns what must be made durable."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.answers = Answers(env.timers)

    def now_ms(self) -> int:
        return self._env.now_ms()

    # -- sessions --------------------------------------------------------------------------------------------------

    def rearm_session(self, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None) -> None:
        """Restart a member's session: `timeout_ms`, by default its session timeout."""
        self.watch(group, member.member_id, member.session_timeout_ms if timeout_ms is None else timeout_ms)

    def watch(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        """Remove a member, or a generated id, if it sends nothing in time."""
        self._env.timers.schedule(
            session_key(group.group_id, member_id), session_timeout_ms, lambda: self.expire_session(group, member_id)
        )

    def cancel_session(self, group: ClassicGroup, member_id: str) -> None:
        self._env.timers.cancel(session_key(group.group_id, member_id))

    def expire_session(self, group: ClassicGroup, member_id: str) -> CoordinatorResult[None]:
        if group.is_dead:
            return CoordinatorResult(None)
        if member_id in group.pending_joins:
            group.remove(member_id)
            return self.maybe_complete(group)
        member = group.members.get(member_id)
        if member is None or member.satisfied_heartbeat:
            return CoordinatorResult(None)
        log.info("group %s: session of member %s expired", group.group_id, member_id)
        self.drop(group, member)
        return self.after_removal(group, f"session of {member_id} expired")

    def drop(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member; its parked JoinGroup is answered with UNKNOWN_MEMBER_ID."""
        self.cancel_session(group, member.member_id)
        group.complete_join(
            member,
            JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, protocol_name=None, member_id=""),
        )
        # Kafka leaves a parked SyncGroup of a removed member unanswered; the client would wait for its timeout.
        group.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    def after_removal(self, group: ClassicGroup, reason: str) -> CoordinatorResult[None]:
        if group.state in _REBALANCED:
            return self.maybe_prepare(group, reason)
        # It may have been the last one that the join phase waits for.
        return self.maybe_complete(group)

    # -- join phase ------------------------------------------------------------------------------------------------

    def maybe_prepare(self, group: ClassicGroup, reason: str) -> CoordinatorResult[None]:
        """Start a rebalance, or check whether the running one can complete."""
        return self.prepare(group, reason) if group.can_rebalance else self.maybe_complete(group)

    def prepare(self, group: ClassicGroup, reason: str) -> CoordinatorResult[None]:
        log.info("group %s: rebalance after generation %d: %s", group.group_id, group.generation_id, reason)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The generation is over before it had an assignment: they join the next one.
            self.fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        # It waits for members of the generation that ends here.
        self._env.timers.cancel(sync_key(group.group_id))
        initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self._env.now_ms())
        # Members of a new group start together, and each later one would cost a rebalance (KIP-134).
        if initial:
            delay_ms = self._env.config().initial_rebalance_delay_ms
            if delay_ms <= 0:
                return self.complete(group)
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._wait_for_more(group, delay_ms, delay_ms, remaining_ms)
            return CoordinatorResult(None)
        if group.all_joined:
            return self.complete(group)
        self._wait_for_all(group)
        return CoordinatorResult(None)

    def _wait_for_all(self, group: ClassicGroup) -> None:
        self._env.timers.schedule(join_key(group.group_id), group.rebalance_timeout_ms, lambda: self.complete(group))

    def _wait_for_more(self, group: ClassicGroup, wait_ms: int, delay_ms: int, remaining_ms: int) -> None:
        """Give further members time to join a new group, `remaining_ms` in all at most."""
        self._env.timers.schedule(
            join_key(group.group_id), wait_ms, lambda: self._try_complete_initial(group, delay_ms, remaining_ms)
        )

    def _try_complete_initial(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> CoordinatorResult[None]:
        if not (group.new_member_added and remaining_ms):
            return self.complete(group)
        group.new_member_added = False
        wait_ms = min(self._env.config().initial_rebalance_delay_ms, remaining_ms)
        self._wait_for_more(group, wait_ms, wait_ms, max(remaining_ms - delay_ms, 0))
        return CoordinatorResult(None)

    def maybe_complete(self, group: ClassicGroup) -> CoordinatorResult[None]:
        """End the join phase when all members have joined; the first one of a group always lasts its whole delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_joined
        ):
            return self.complete(group)
        return CoordinatorResult(None)

    def complete(self, group: ClassicGroup) -> CoordinatorResult[None]:
        """End the join phase with the members that have joined."""
        self._env.timers.cancel(join_key(group.group_id))
        if group.state is not GroupState.PREPARING_REBALANCE:
            return CoordinatorResult(None)
        # A static member keeps its place until its session ends: it may just be restarting (KIP-345).
        for member in [m for m in group.members.values() if m.awaiting_join is None and not m.static]:
            log.info("group %s: member %s did not rejoin", group.group_id, member.member_id)
            self.cancel_session(group, member.member_id)
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members that did not rejoin are left: wait for their sessions to end.
            self._wait_for_all(group)
            return CoordinatorResult(None)
        group.next_generation(self._env.now_ms())
        if group.is_empty:
            log.info("group %s: empty in generation %d", group.group_id, group.generation_id)
            # Else a reload would bring back the members of the last record.
            return CoordinatorResult(None, (group_metadata(group.group_id, group.metadata_value()),))
        self._tell_generation(group)
        return CoordinatorResult(None)

    def _tell_generation(self, group: ClassicGroup) -> None:
        log.info("group %s: generation %d of %d members", group.group_id, group.generation_id, len(group.members))
        generation = group.generation()
        answers: list[Answer] = []
        last: list[Answer] = []
        for member in group.members.values():
            group.pending_syncs.add(member.member_id)
            member.is_new = False
            make = partial(generation, member_id=member.member_id)
            if member.member_id == group.leader_id:
                make = partial(make, members=group.join_members())
            answer = self._answer(group, member, group.take_join(member), make)
            if member.member_id == group.leader_id and len(group.members) > STEPS_AT_ONCE:
                last.append(answer)  # it names all members: not in the turn that has most to do
            else:
                answers.append(answer)
        self.answers.give(answers + last)
        generation_id = group.generation_id
        self._env.timers.schedule(
            sync_key(group.group_id), group.rebalance_timeout_ms, lambda: self._expire_sync(group, generation_id)
        )

    # -- sync phase ------------------------------------------------------------------------------------------------

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        """A member has sent SyncGroup."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._env.timers.cancel(sync_key(group.group_id))

    def _expire_sync(self, group: ClassicGroup, generation_id: int) -> CoordinatorResult[None]:
        if generation_id != group.generation_id or group.state not in _REBALANCED or not group.pending_syncs:
            return CoordinatorResult(None)
        # They would own partitions that nobody reads, with heartbeats that keep their sessions (expirePendingSync).
        late = sorted(group.pending_syncs)
        for member_id in late:
            self.cancel_session(group, member_id)
            group.remove(member_id)
        return self.prepare(group, f"{len(late)} members sent no SyncGroup in time")

    def fail_syncs(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Forget the assignment and answer all members that wait for it."""
        for member in group.members.values():
            member.assignment = b""
        self._answer_syncs(group, partial(SyncGroupResponse, error_code=error))

    def propagate(self, group: ClassicGroup) -> None:
        """Answer each member that waits with its assignment."""
        self._answer_syncs(
            group,
            partial(SyncGroupResponse, protocol_type=group.protocol_type, protocol_name=group.protocol_name),
        )

    def _answer_syncs(self, group: ClassicGroup, response: Callable[..., SyncGroupResponse]) -> None:
        answers: list[Answer] = []
        for member in group.members.values():
            parked = group.take_sync(member)
            if parked is not None:
                # A session that ended while the leader was awaited was forgiven and not armed again.
                make = partial(response, assignment=member.assignment)
                answers.append(self._answer(group, member, parked, make))
        self.answers.give(answers)

    def _answer(
        self, group: ClassicGroup, member: ClassicMember, parked: Deferred[T] | None, make: Callable[[], T]
    ) -> Answer:
        """Answer a member when its turn comes. Its session starts then, so it cannot expire before."""
        member.unanswered = True

        def response() -> T:
            member.unanswered = False
            self.rearm_session(group, member)
            return make()

        return Answer(parked, response)
