"""The transaction coordinator: what it knows of a transactional id, who may change it, and in which order.

A transactional id is in one state of `states.TransactionState`. The legal transitions are `states.TRANSITIONS`; docs/
reference/transaction-states.md draws them. What is known of an id has two parts (`metadata`):

* durable, `TransactionMetadata`: it is in ``__transaction_state``, replaced as a whole, and only
  `TransactionShard.replay` sets it;
* volatile, `Volatile`: never logged. A reload (start, failover) begins with an empty one. It holds the state that an
  append in flight leads to, the epoch of a fence that could not be logged, and the partitions without their marker.

A request is decided by a function of the shard, the request and now, one module for each kind: `init_producer_id`
(KIP-98, 360, 588), `partitions` (AddPartitionsToTxn, AddOffsetsToTxn, verification: KIP-890), `end_txn` (EndTxn, and
aborts by the coordinator itself), `expiry` (timeouts and forgotten ids). It returns a `CoordinatorResult` and leaves
the durable state as it is, except for a new id, which is in memory from its first request on (Kafka caches it too).
`transitions` builds the next durable state. The way of an EndTxn, which the transcripts of
tests/minibroker/coordinator_runtime/test_transcripts.py show step by step:

    decide     end_txn: Ongoing → PrepareCommit; the record, and SendMarkers as what follows
    pending    no other request gets in between: it meets CONCURRENT_TRANSACTIONS
    append     the record is in the log, and below the high watermark
    replay     the state is PrepareCommit; the pending one is CompleteCommit until every marker is written
    answer     the client has the epoch of its next transaction (KIP-890)
    SendMarkers   each partition's leader gets the marker; each answer is an input (`end_txn.marker_written`)
    Complete      after the last one: decide, append and replay CompleteCommit

What can go wrong: the append is refused (the id is where it was; a fence below transaction.version 2 keeps its epoch,
Kafka's hasFailedEpochFence); a partition has no leader (Kafka drops its marker, `marker_without_leader`); the
coordinator moves (the new one loads Prepare* and sends the same markers with its own epoch, and the old one's are
fenced); the completion cannot be logged (tried again while the coordinator has no quorum). Kafka:
TransactionCoordinator, TransactionStateManager, TransactionMetadata, TransactionMarkerChannelManager.
"""
