"""The partition of a group or transactional id: Java's String.hashCode over UTF-16, as in Kafka."""

from __future__ import annotations

from functools import lru_cache

_SMALLEST_INT = -(1 << 31)


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``, a signed 32-bit number."""
    value = 0
    if text.isascii():
        for byte in text.encode("ascii"):
            value = (31 * value + byte) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(units), 2):
            value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@lru_cache(maxsize=4096)
def partition_for(key: str, partition_count: int) -> int:
    """Partition of an internal topic that owns `key`: Kafka's ``Utils.abs(key.hashCode) % count``, where the smallest
    int, which has no positive counterpart, counts as 0."""
    value = java_string_hash(key)
    return 0 if value == _SMALLEST_INT else abs(value) % partition_count
