"""The named behaviours of a semantics that the partition log needs."""

from typing import Literal, NamedTuple

from minibroker_protocol.errors import ErrorCode


class ProducerRules(NamedTuple):
    """How a partition treats producers. The defaults are Apache Kafka 4.4.0's."""

    unknown_producer_sequence: Literal["accept", "unknown_producer_id", "unknown_producer_id_before_2.4"] = "accept"
    """A non-zero first sequence where the sequences of that producer and epoch are not known: accepted unless Kafka's
    rules find a gap, or always refused with UNKNOWN_PRODUCER_ID (KIP-360, KAFKA-5793). Before Kafka 2.4 it was refused
    too, but a bumped epoch of a known producer with OUT_OF_ORDER_SEQUENCE_NUMBER."""
    forget_with_records: bool = False
    """Whether a producer's state is removed with its last record, as before Kafka 2.4 (KAFKA-7190)."""
    stale_sequence_error: ErrorCode = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    """The error for a batch that starts at or below the last sequence and is not remembered."""
    waiting_sequence_check: Literal["always", "unless_in_sequence"] = "always"
    """A batch above the lowest sequence that still waits for verification is out of order. Kafka refuses even the
    correct next sequence, if a duplicate started the verification."""
    verification_ends: Literal["with_a_write", "with_its_request"] = "with_a_write"
    """How long the sequence of a batch that had to be verified counts as waiting: until a batch is written or the
    transaction ends, even if its own request was refused; or until its request is answered. In the second case batches
    and markers of an older epoch do not end a verification either."""
    stale_epoch_is_verified: bool = False
    """Whether a batch of an older epoch is verified before it is refused, as in Kafka 4.0: its sequence then counts as
    waiting, and the owner's next batches are out of order."""
    snapshot_all_batches: bool = False
    """Keep the whole duplicate window over a restart (in a side file), not only the newest batch."""
    rebuild_from: Literal["log_start", "first_segment"] = "log_start"
    """What producers are rebuilt from at a start or a truncation. Kafka uses no snapshot at or below the log start and
    no batch below it, so that producers are lost with their deleted records; or all records in the files (KIP-360)."""
    expire_by: Literal["record_timestamp", "arrival"] = "record_timestamp"
    """An idle producer's age: by the largest timestamp of its last batch, or by its arrival on the broker's clock."""
    producer_id_expiration_ms: int = 86_400_000
    verification_enabled: bool = True
    """transaction.partition.verification.enable (KIP-890)."""
