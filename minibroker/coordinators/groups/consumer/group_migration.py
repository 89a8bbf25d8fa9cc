"""Migration of live groups between the classic and the consumer protocol (KIP-848).

A classic group becomes a consumer group when the first native member joins, and a classic one again when the last
native member is gone. Kafka: GroupMetadataManager.convertToConsumerGroup, convertToClassicGroup. Why the rules are as
they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minibroker.coordinators.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from minibroker.coordinators.groups.classic.join import join_error
from minibroker.coordinators.groups.classic.member import ClassicMember
from minibroker.coordinators.groups.classic.membership import sync_error
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.consumer import records
from minibroker.coordinators.groups.consumer.consumer_protocol import (
    CustomAssignor,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from minibroker.coordinators.groups.consumer.group import ConsumerGroup, metadata_hash
from minibroker.coordinators.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, protocols_of
from minibroker.coordinators.groups.consumer.replay import AnyGroup, replay_consumer_record
from minibroker.coordinators.groups.environment import Environment
from minibroker.coordinators.groups.records import group_metadata
from minibroker.coordinators.result import CoordinatorRecord
from minibroker.kernel.logs import get_logger
from minibroker_protocol.coordinator_records import ConsumerGroupMemberMetadataValue, GroupMetadataKey
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed

_ClassicProtocol = ConsumerGroupMemberMetadataValue.ClassicProtocol

log = get_logger(__name__)

_CUSTOM = (
    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor "
    "before re-attempting the upgrade"
)
_UPGRADES = ("upgrade", "bidirectional")
_DOWNGRADES = ("downgrade", "bidirectional")


def check_upgrade(env: Environment, group: ClassicGroup) -> None:
    """Whether a native member may join this group of classic consumers; raises GROUP_ID_NOT_FOUND."""
    config = env.config()
    if config.consumer_migration_policy not in _UPGRADES:
        raise _cannot_upgrade(group, "the online upgrade is disabled")
    if not group.uses_consumer_protocol:
        raise _cannot_upgrade(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > config.consumer_max_size:
        raise _cannot_upgrade(group, "the group size exceeds the consumer group maximum size")


def _cannot_upgrade(group: ClassicGroup, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.",
    )


def upgraded(env: Environment, group: ClassicGroup) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
    """The group with its members under the other protocol, and the records that make it so.

    Members that wait in a rebalance are answered with an error on which they join again. Raises GROUP_ID_NOT_FOUND when
    a member's subscription or assignment cannot be read.
    """
    image = env.image()
    # Its members know this number as their generation and go on with it.
    epoch = group.generation_id
    members: list[ConsumerMember] = []
    targets: dict[str, Mapping[bytes, frozenset[int]]] = {}
    for classic in group.members.values():
        try:
            blob = classic.metadata(group.protocol_name or classic.protocols[0][0])
            subscription = read_subscription(blob)
            target = read_assignment(classic.assignment, image)
        except Malformed as error:
            log.debug("group %s: %s", group.group_id, error)
            raise _cannot_upgrade(group, "the embedded consumer protocol is malformed") from None
        except CustomAssignor:
            raise _cannot_upgrade(group, _CUSTOM) from None
        targets[classic.member_id] = target
        members.append(_native(classic, subscription.topics, subscription.rack_id, epoch, target))
    # In the order of ConsumerGroup.createConsumerGroupRecords: each record is replayed on what the earlier ones made.
    result = group.tombstones()
    result += [records.member_metadata(group.group_id, member) for member in members]
    topics = {name for member in members for name in member.subscribed_topic_names}
    result.append(records.group_epoch(group.group_id, epoch, metadata_hash(image, topics)))
    result += [records.target_assignment(group.group_id, name, target) for name, target in targets.items()]
    result.append(records.target_epoch(group.group_id, epoch, env.now_ms()))
    result += [records.current_assignment(group.group_id, member) for member in members]
    for classic in group.members.values():
        rebalancing = ErrorCode.REBALANCE_IN_PROGRESS
        group.complete_join(classic, join_error(rebalancing, classic.member_id))
        group.complete_sync(classic, sync_error(rebalancing))
    return _replayed(group.group_id, result), result


def _replayed(group_id: str, result: Iterable[CoordinatorRecord]) -> ConsumerGroup:
    """The group after these records, for further decisions about the same request."""
    groups: dict[str, AnyGroup] = {}
    for record in result:
        if not isinstance(record.key, GroupMetadataKey):
            replay_consumer_record(groups, record)
    group = groups[group_id]
    assert isinstance(group, ConsumerGroup)
    return group


def _native(
    classic: ClassicMember,
    topics: Iterable[str],
    rack_id: str | None,
    epoch: int,
    target: Mapping[bytes, frozenset[int]],
) -> ConsumerMember:
    # It owns what its leader had assigned, and its number is its generation's, so that commits under way pass.
    return ConsumerMember(
        classic.member_id,
        member_epoch=epoch,
        previous_member_epoch=epoch,
        instance_id=classic.group_instance_id,
        rack_id=rack_id,
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        client_id=classic.client_id,
        client_host=classic.client_host,
        subscribed_topic_names=tuple(sorted(set(topics))),
        classic=ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[_ClassicProtocol(name=n, metadata=metadata) for n, metadata in classic.protocols],
        ),
        assigned={topic_id: dict.fromkeys(sorted(partitions), epoch) for topic_id, partitions in target.items()},
    )


def can_downgrade(env: Environment, group: ConsumerGroup, leaving: ConsumerMember) -> bool:
    """Whether only classic members are left after `leaving` has left."""
    config = env.config()
    remaining = [member for member in group.members.values() if member.member_id != leaving.member_id]
    return (
        bool(remaining)
        and config.consumer_migration_policy in _DOWNGRADES
        # Kinds of groups have limits of their own, and a group over its limit would rebalance at once.
        and len(remaining) <= config.max_size
        and not leaving.uses_classic_protocol
        and all(member.uses_classic_protocol for member in remaining)
    )


def downgraded(
    env: Environment, group: ConsumerGroup, leaving: ConsumerMember
) -> tuple[ClassicGroup, list[CoordinatorRecord]]:
    """The group without `leaving`, Stable, with the targets as assignments, and the records."""
    image = env.image()
    classic = ClassicGroup(group.group_id, env.now_ms())
    classic.state = GroupState.STABLE
    # Not below any epoch that its members have, so that no generation comes twice.
    classic.generation_id = group.group_epoch
    for member in group.members.values():
        if member.member_id == leaving.member_id:
            continue
        assert member.classic is not None
        classic.add(
            ClassicMember(
                member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocols=protocols_of(member),
            )
        )
    classic.choose_protocol()
    for member_ in classic.members.values():
        version = version_of(member_.metadata(classic.protocol_name))
        member_.assignment = write_assignment(group.target(member_.member_id), version, image)
    value = classic.metadata_value()
    classic.persisted = value
    return classic, [*group.tombstones(), group_metadata(group.group_id, value)]
