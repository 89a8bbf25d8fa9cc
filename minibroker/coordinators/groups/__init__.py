"""The group coordinator: classic groups, KIP-848 consumer groups and the offsets of both.

A group lives in one partition of ``__consumer_offsets`` (`shard`). There are two machines, and one store for offsets:

* `classic`: members send JoinGroup, the leader of a generation assigns, SyncGroup hands the assignments out. The states
  (`classic.states`) and members change *in memory first*, as in Kafka; a record is written when a generation has its
  assignment, or the group is empty. A reload gives the last assignment and its members, whose sessions begin anew;
* `consumer`: the coordinator assigns. All that a heartbeat changes is records: member, target assignment, current
  assignment, group epoch. Three epochs tell how far a member is: the group's, the target's, its own; a partition moves
  when the member before has given it up (`consumer.reconcile`);
* `offsets`: committed ones, and those inside transactions, which wait for their marker (KIP-98, KIP-447). The
  order of the records in the log decides which offset of a partition counts.

Records are replayed at the append and the answer is held until they are durable (Kafka's CoordinatorRuntime). What a
refused append undoes is in `classic.effects` and `consumer.effects`. Timers of sessions and rebalances are in memory,
in real time, and restart with a reload.

What can go wrong: a member whose session ends is removed and its generation is over, so its commit is refused
(ILLEGAL_GENERATION, STALE_MEMBER_EPOCH), with transactional offsets too (KIP-447); a group changes its kind when its
last member of one protocol leaves (`consumer.group_migration`); offsets in a transaction whose marker was dropped stay
pending for ever. Kafka: GroupCoordinatorShard, GroupMetadataManager, OffsetMetadataManager.
"""
