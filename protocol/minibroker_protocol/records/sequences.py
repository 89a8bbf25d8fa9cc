"""Arithmetic of producer sequence numbers, which count 0..2^31-1 and then start again (Kafka's DefaultRecordBatch)."""

MAX_SEQUENCE = 2**31 - 1
NO_SEQUENCE = -1


def increment_sequence(sequence: int, n: int) -> int:
    """The sequence `n` records after `sequence`."""
    return (sequence + n) & MAX_SEQUENCE


def decrement_sequence(sequence: int, n: int) -> int:
    """The sequence `n` records before `sequence`."""
    return (sequence - n) & MAX_SEQUENCE
