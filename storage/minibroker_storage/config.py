"""The topic configs a partition log obeys (Kafka's ``LogConfig``), named as in Kafka with dots as underscores."""

from __future__ import annotations

from dataclasses import dataclass, field

INT64_MAX = (1 << 63) - 1
LONGEST_RECORD = (1 << 31) - 9
"""Bytes of the longest array that Java can have, and so of a record in Kafka."""

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's configuration. Sizes are bytes, times are milliseconds, -1 in a retention field means no limit.

    Defaults are those of Kafka 4.4. ``compression_type`` is ``producer``, ``uncompressed`` or a codec's name.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1024 * 1024 + 12
    max_decompressed_message_bytes: int = LONGEST_RECORD
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3600 * 1000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_zstd_level: int = 3
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60 * 1000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    min_insync_replicas: int = 1
    # Every append asks for them.
    compacts: bool = field(init=False, repr=False, compare=False)
    deletes: bool = field(init=False, repr=False, compare=False)
    stamps_append_time: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compacts", "compact" in self.cleanup_policy)
        object.__setattr__(self, "deletes", "delete" in self.cleanup_policy)
        object.__setattr__(self, "stamps_append_time", self.message_timestamp_type == LOG_APPEND_TIME)
