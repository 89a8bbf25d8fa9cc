"""The transaction coordinator, a pure state machine: (state, request, now) → CoordinatorResult.

`states` holds the legal transitions, `metadata` one transactional id's durable and volatile parts, `transitions` builds
the next durable state, `init_producer_id`, `partitions`, `end_txn` and `expiry` decide per request, `shard` keeps the
ids of one partition of ``__transaction_state``, `records` is their form in the log.
"""
