"""The part of a semantics that the partition log needs: named behaviours, nothing else."""

from typing import Literal, NamedTuple

from minibroker_protocol.errors import ErrorCode


class ProducerRules(NamedTuple):
    """How a partition treats producers. The defaults are Apache Kafka 4.3's."""

    unknown_producer_sequence: Literal["accept", "unknown_producer_id", "unknown_producer_id_before_2.4"] = "accept"
    """A non-zero first sequence where the sequences of that producer and epoch are not known: taken as it comes unless
    Kafka's rules see a break in it, or always refused with UNKNOWN_PRODUCER_ID (KIP-360, KAFKA-5793). Before Kafka 2.4
    that was the answer too, except to a bumped epoch of a known producer, which was out of order."""
    forget_with_records: bool = False
    """Whether state goes with the last record of its producer, as it did before Kafka 2.4 (KAFKA-7190)."""
    stale_sequence_error: ErrorCode = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    """A batch that starts at or below the last sequence and is not remembered."""
    waiting_sequence_check: Literal["always", "unless_in_sequence"] = "always"
    """A batch above the lowest sequence that still waits for verification is out of order. Kafka says so even of the
    right next sequence, when a duplicate opened the verification."""
    verification_ends: Literal["with_a_write", "with_its_request"] = "with_a_write"
    """How long the sequence of a batch that had to be verified counts as waiting: until a batch is written or the
    transaction ends, although its own request was refused, or until that is answered. With the latter, batches and
    markers of an older epoch do not end a verification either."""
    snapshot_all_batches: bool = False
    """Keep the whole duplicate window over a restart (in a side file), not only the newest batch."""
    rebuild_from: Literal["log_start", "first_segment"] = "log_start"
    """What a start, or a truncation, rebuilds producers from: in Kafka no snapshot at or below the log start and no
    batch below it, so that producers go with their deleted records then; or from all records in the files (KIP-360)."""
    expire_by: Literal["record_timestamp", "arrival"] = "record_timestamp"
    """An idle producer's age: by the largest timestamp of its last batch, or by the broker's clock when it came."""
    producer_id_expiration_ms: int = 86_400_000
    verification_enabled: bool = True
    """transaction.partition.verification.enable (KIP-890)."""
