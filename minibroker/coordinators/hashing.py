"""Where an id lives: Java's String.hashCode over UTF-16, as Kafka's partitioners of internal topics use it."""

from __future__ import annotations

from functools import lru_cache


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode`` as an unsigned 32-bit number."""
    value = 0
    if text.isascii():
        for byte in text.encode("ascii"):
            value = (31 * value + byte) & 0xFFFFFFFF
        return value
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=4096)
def partition_for(key: str, partition_count: int) -> int:
    """Partition of an internal topic that owns `key` (Kafka's ``Utils.abs(key.hashCode) % count``)."""
    return (java_string_hash(key) & 0x7FFFFFFF) % partition_count
