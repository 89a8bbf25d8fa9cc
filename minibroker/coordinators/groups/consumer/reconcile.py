"""A member's next step towards its target assignment (Kafka's CurrentAssignmentBuilder, KIP-848).

Why the rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from minibroker.coordinators.groups.consumer.member import NOTHING, ConsumerMember, MemberState, Target
from minibroker_protocol.errors import ApiError, ErrorCode

Owned = Iterable[tuple[bytes, Iterable[int]]] | None
"""What a heartbeat says the member owns; None when it says nothing."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Target,
    *,
    subscribed: Callable[[], frozenset[bytes]],
    changed: bool,
    held: Callable[[bytes, int], bool],
    owned: Owned,
) -> ConsumerMember:
    """The member after this heartbeat.

    held: whether some member owns the partition now.
    subscribed: the ids of topics that the member subscribes to. It gets no partition of another topic, even if the
        target has one, and when its subscription `changed` it must give those up before there is a new target.

    A member first gives up the partitions that it must not keep, and stays in its epoch until it reports that. Then it
    takes the target's epoch and the free partitions of its target. Partitions that others still hold follow in later
    heartbeats. Raises FENCED_MEMBER_EPOCH for a member in a state that this version does not know and that still owns
    partitions.
    """
    if member.reconciled_to(target_epoch):
        return _within(member, subscribed(), owned) if changed else member
    epoch = member.member_epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if not member.owns_nothing_of(owned, member.pending_revocation):
            return _within(member, subscribed(), owned) if changed else member
        # One epoch on: by the report it has acknowledged the step before (CurrentAssignmentBuilder).
        epoch = min(epoch + 1, target_epoch)
    elif member.state is MemberState.UNKNOWN:
        # A later version wrote that state and was downgraded: only a member that owns nothing can start from scratch.
        if owned is None or any(True for _ in owned):
            raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is unknown here; it must rejoin")
        epoch = target_epoch
    topic_ids = subscribed()
    within = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in topic_ids}
    return _next(member, epoch, target_epoch, within, held, owned)


def _within(member: ConsumerMember, topic_ids: frozenset[bytes], owned: Owned) -> ConsumerMember:
    """The member without partitions of other topics; those that it still owns it must revoke first."""
    gone = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id not in topic_ids}
    if not gone:
        return member
    keep = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id in topic_ids}
    revoke: dict[bytes, Mapping[int, int]] = dict(member.pending_revocation)
    for topic_id, epochs in gone.items():
        revoke[topic_id] = {**revoke.get(topic_id, {}), **epochs}
    if member.owns_nothing_of(owned, revoke):
        return replace(member, assigned=keep)
    return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=keep, pending_revocation=revoke)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Target,
    held: Callable[[bytes, int], bool],
    owned: Owned,
) -> ConsumerMember:
    keep: dict[bytes, dict[int, int]] = {}
    revoke: dict[bytes, dict[int, int]] = {}
    for topic_id, epochs in member.assigned.items():
        wanted = target.get(topic_id, frozenset())
        for partition, since in epochs.items():
            (keep if partition in wanted else revoke).setdefault(topic_id, {})[partition] = since
    if revoke and not member.owns_nothing_of(owned, revoke):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            member_epoch=epoch,
            previous_member_epoch=member.member_epoch,
            assigned=keep,
            pending_revocation=revoke,
        )
    unreleased = False
    for topic_id, wanted in target.items():
        kept = keep.get(topic_id, NOTHING)
        for partition in sorted(wanted):
            if partition in kept:
                continue
            if held(topic_id, partition) and partition not in member.pending_revocation.get(topic_id, NOTHING):
                unreleased = True
            else:
                keep.setdefault(topic_id, {})[partition] = target_epoch
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        member_epoch=target_epoch,
        previous_member_epoch=member.member_epoch,
        assigned=keep,
        pending_revocation=NOTHING,
    )
