"""A classic group: its members, its generation and waiting requests (Kafka's ClassicGroup).

What is durable of a group is one GroupMetadata record, written when a generation got its assignment, when the group
became empty and when a static member was replaced. Everything else, the members that join and the requests they have
parked, lives in memory only and begins anew from that record after a load. Why the rules are as they are:
`minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from minibroker.coordinators.groups.classic.member import ClassicMember, Protocols
from minibroker.coordinators.groups.classic.states import PREVIOUS, GroupState, legal
from minibroker.coordinators.groups.records import group_tombstone
from minibroker.coordinators.result import CoordinatorRecord
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker_protocol.coordinator_records import ConsumerProtocolSubscription, GroupMetadataValue
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.messages.groups import DescribeGroupsResponse, JoinGroupResponse, SyncGroupResponse

log = get_logger(__name__)

CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicGroup:
    """Members by id, in the order they joined.

    persisted: the group's last record; None before the first one.
    subscribed_topics: topics of all members' subscriptions; None when they cannot be known.
    state_timestamp_ms: when the state was entered; None in a group loaded from a record too old to tell.
    """

    type_name = "classic"

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms: int | None = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.awaiting_joins = 0
        self.new_member_added = False
        self.persisted: GroupMetadataValue | None = None
        self._protocol_counts: Counter[str] = Counter()

    # -- state -----------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        if not legal(self.state, state):
            raise AssertionError(f"group {self.group_id}: {self.state.value} -> {state.value} is no transition")
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in PREVIOUS[GroupState.PREPARING_REBALANCE]

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of the members; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.awaiting_joins and not self.pending_joins

    def next_generation(self, now_ms: int) -> None:
        """Begin the next generation with the current members."""
        self.generation_id += 1
        self.choose_protocol()
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    # -- members ---------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, answer: Deferred[JoinGroupResponse] | None = None) -> None:
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        # A group without members takes any protocol type: the first one to join decides (ClassicGroup.add).
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._protocol_counts.update(name for name, _ in member.protocols)
        member.awaiting_join = answer
        self.awaiting_joins += answer is not None
        self.pending_joins.discard(member.member_id)

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        answer: Deferred[JoinGroupResponse] | None,
    ) -> None:
        """Update a member with its new JoinGroup."""
        self._protocol_counts.subtract(name for name, _ in member.protocols)
        self._protocol_counts.update(name for name, _ in protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        before = member.awaiting_join
        self.awaiting_joins += (answer is not None) - (before is not None)
        member.awaiting_join = answer
        if before is not None and answer is not None and not before.done:
            # The client gave up on its first request (Kafka never answers it).
            before.resolve(
                JoinGroupResponse(
                    error_code=ErrorCode.REBALANCE_IN_PROGRESS, protocol_name=None, member_id=member.member_id
                )
            )

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member; if it was the leader, another member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._protocol_counts.subtract(name for name, _ in member.protocols)
            self.awaiting_joins -= member.awaiting_join is not None
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace_static(self, group_instance_id: str, old_id: str, new_id: str) -> ClassicMember:
        """Give a static member a new id; requests parked by the old one are fenced."""
        old = self.members.pop(old_id)
        self.complete_join(
            old,
            JoinGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID, member_id=old_id, protocol_name=None),
        )
        self.complete_sync(old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        # Assignment, leadership and an outstanding SyncGroup belong to the instance, not to the id (KIP-345).
        new = replace(old, member_id=new_id)
        self.members[new_id] = new
        if self.leader_id == old_id:
            self.leader_id = new_id
        self.static_members[group_instance_id] = new_id
        if old_id in self.pending_syncs:
            self.pending_syncs.discard(old_id)
            self.pending_syncs.add(new_id)
        return new

    def elect_joined_leader(self) -> bool:
        """Keep the leader when it rejoined, else take the first member that did; False when there is none."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def validate_member(self, member_id: str, group_instance_id: str | None, operation: str) -> ClassicMember:
        """The member; raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when another id holds the instance."""
        # The instance before the id: a fenced instance must end, where an unknown member would join again (KIP-345).
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{operation}: no instance {group_instance_id}")
            if holder != member_id:
                raise ApiError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"{operation}: instance {group_instance_id} is member {holder} now, not {member_id}",
                )
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{operation}: {self.group_id} has no member {member_id!r}")
        return member

    # -- protocols -------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can join: at least one of them is supported by every member."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        everyone = len(self.members)
        return self.protocol_type == protocol_type and any(self._protocol_counts[name] == everyone for name in names)

    def choose_protocol(self) -> None:
        """The members' protocol becomes the group's, and their subscriptions are read."""
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._compute_subscribed_topics()

    def select_protocol(self) -> str:
        """Of the protocols that all members support, the one that most members prefer."""
        everyone = len(self.members)
        candidates = {name for name, count in self._protocol_counts.items() if count == everyone}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def is_subscribed_to(self, topic: str) -> bool:
        """Unknown subscriptions count as all topics of a consumer group and as none of any other."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def _compute_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        topics: set[str] = set()
        try:
            for member in self.members.values():
                # Version 0 is a prefix of every later version, so the version itself (an int16) is skipped.
                topics.update(ConsumerProtocolSubscription.decode(member.metadata(self.protocol_name), 0, 2).topics)
        except Malformed as error:
            log.debug("group %s: subscriptions cannot be read: %s", self.group_id, error)
            return None
        return frozenset(topics)

    # -- what others may do ----------------------------------------------------------------------------------------

    def validate_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> None:
        """Whether offsets may be committed in the name of this member (KIP-447 for transactional ones).

        Raises ApiError: COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS. A commit without a member (generation -1, no member id) passes when the group is
        empty, and in a transaction always: request versions before TxnOffsetCommit v3 cannot say more.
        """
        self.check_alive()
        # An admin client, or a consumer with partitions of its own choice (ClassicGroup.validateOffsetCommit).
        if generation_id < 0 and self.is_empty:
            return
        if generation_id >= 0 or member_id or group_instance_id is not None:
            self.validate_member(member_id, group_instance_id, "offset commit")
            self.check_generation(generation_id)
        elif not transactional and not self.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has members, the commit names none")
        # The member knows the generation and should wait for its assignment first. In PreparingRebalance it may commit:
        # the next owner of the partition reads it, and the heartbeat tells of the rebalance.
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} awaits assignments")

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Offsets may be fetched in any state. Raises GROUP_ID_NOT_FOUND for a Dead group."""
        self._check_exists()

    def validate_offset_delete(self) -> None:
        """Raises GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP when members run another protocol than the consumer's."""
        self._check_exists()
        # Offsets in use are spared by the members' subscriptions, and only a consumer's can be read (KIP-496).
        if not self.is_empty and not self.uses_consumer_protocol:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id} has members")

    def validate_delete(self) -> None:
        self._check_exists()
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id} is {self.state.value}")

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """The time from which an offset's retention counts (KIP-211); None while it must not expire."""
        # A consumer without group management: there is no membership whose end could be counted from.
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is GroupState.EMPTY:
            return commit_timestamp_ms if self.state_timestamp_ms is None else self.state_timestamp_ms
        # Topics that the members read were spared before this. In a rebalance the subscriptions are not settled
        # (offsetExpirationCondition).
        if self.uses_consumer_protocol and self.subscribed_topics is not None and self.state is GroupState.STABLE:
            return commit_timestamp_ms
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group."""
        return [group_tombstone(self.group_id)]

    def check_alive(self) -> None:
        if self.is_dead:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id} moved away")

    def check_generation(self, generation_id: int) -> None:
        if generation_id != self.generation_id:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION,
                f"group {self.group_id} is in generation {self.generation_id}, the request in {generation_id}",
            )

    def _check_exists(self) -> None:
        if self.is_dead:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")

    # -- answers ---------------------------------------------------------------------------------------------------

    def join_members(self) -> list[JoinGroupResponse.JoinGroupResponseMember]:
        """The members as the JoinGroup response lists them for the leader."""
        return [
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]

    def join_response(
        self, member_id: str, *, leader: str | None = None, with_members: bool = False, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        """The JoinGroup response for the current generation."""
        response = self.generation()(
            member_id=member_id,
            skip_assignment=skip_assignment,
            members=self.join_members() if with_members else [],
        )
        if leader is not None:
            response.leader = leader
        return response

    def generation(self) -> Callable[..., JoinGroupResponse]:
        """Creates JoinGroup responses of the current generation, also after it has ended."""
        return partial(
            JoinGroupResponse,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
        )

    def described(self) -> DescribeGroupsResponse.DescribedGroup:
        """What DescribeGroups shows; protocol and subscriptions only of a stable group."""
        protocol = self.protocol_name if self.state is GroupState.STABLE else None
        return DescribeGroupsResponse.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=protocol or "",
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=b"" if protocol is None else member.metadata(protocol),
                    member_assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    def complete_join(self, member: ClassicMember, response: JoinGroupResponse) -> None:
        """Answer the parked JoinGroup of a member, if it has one."""
        answer = self.take_join(member)
        if answer is not None and not answer.done:
            answer.resolve(response)

    def complete_sync(self, member: ClassicMember, response: SyncGroupResponse) -> None:
        """Answer the parked SyncGroup of a member, if it has one."""
        answer = self.take_sync(member)
        if answer is not None and not answer.done:
            answer.resolve(response)

    def take_join(self, member: ClassicMember) -> Deferred[JoinGroupResponse] | None:
        """The parked JoinGroup of a member, if it has one, for the caller to answer."""
        answer, member.awaiting_join = member.awaiting_join, None
        self.awaiting_joins -= answer is not None
        return answer

    def take_sync(self, member: ClassicMember) -> Deferred[SyncGroupResponse] | None:
        answer, member.awaiting_sync = member.awaiting_sync, None
        return answer

    def durable(self) -> GroupMetadataValue | None:
        return self.persisted

    # -- durable form ----------------------------------------------------------------------------------------------

    def metadata_value(self, assignments: Callable[[ClassicMember], bytes] | None = None) -> GroupMetadataValue:
        """The group's record.

        assignments: by member; default: the current ones.
        """
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=[
                GroupMetadataValue.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=member.assignment if assignments is None else assignments(member),
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue, now_ms: int) -> ClassicGroup:
        """The group that a record describes: Stable with members, Empty without."""
        group = cls(group_id, now_ms)
        group.state = GroupState.STABLE if value.members else GroupState.EMPTY
        group.generation_id = value.generation
        group.protocol_name = value.protocol
        group.leader_id = value.leader
        group.state_timestamp_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
        for stored in value.members:
            # The record holds the subscription for the chosen protocol only.
            protocols: Protocols = () if value.protocol is None else ((value.protocol, bytes(stored.subscription)),)
            group.add(
                ClassicMember(
                    stored.member_id,
                    group_instance_id=stored.group_instance_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    # Records of version 0 have none (as JoinGroup v0): the session timeout counted for both.
                    rebalance_timeout_ms=(
                        stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
                    ),
                    session_timeout_ms=stored.session_timeout,
                    protocol_type=value.protocol_type,
                    protocols=protocols,
                    assignment=bytes(stored.assignment),
                )
            )
        group.protocol_type = value.protocol_type or None
        group.subscribed_topics = group._compute_subscribed_topics()
        group.persisted = value
        return group
