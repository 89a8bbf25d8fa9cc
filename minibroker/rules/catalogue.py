"""The rules by name: what each promises, where that is said, and how bad a breach is."""

from __future__ import annotations

from typing import NamedTuple

from minibroker.rules.rows import NONE, Finding, Log

ERROR = "error"
NOTICE = "notice"
"""Worth knowing, and lawful: it does not make an audit fail."""


_BATCHES = "the batches: offsets, producer id and epoch, file and byte of the first"
_MARKER = "the marker: offset, producer id and epoch, file"
_TRANSACTION = (
    "the transaction in its partition: offsets from its first batch to its marker, producer, file, id if known"
)
_BATCH = "the batch: offsets, file and byte"
_RECORD = "the record: partition and offset"


class Rule(NamedTuple):
    """A promise. `source`: the KIP or the part of Kafka that makes it; `evidence`: what a finding points at;
    `notice`: when the severity is notice instead."""

    id: str
    severity: str
    title: str
    source: str
    promise: str
    evidence: str
    notice: str = ""


_ALL = (
    Rule(
        "sequence-gap",
        ERROR,
        "sequence gap",
        "KIP-98, ProducerAppendInfo",
        "Within an epoch each batch of a producer begins one sequence after the last; a new epoch begins at 0.",
        _BATCHES,
    ),
    Rule(
        "duplicate",
        ERROR,
        "duplicate batch",
        "KIP-98, ProducerStateManager",
        "No sequence of a producer's epoch is in the log twice.",
        _BATCHES,
    ),
    Rule(
        "duplicate-content",
        ERROR,
        "the same record twice",
        "KIP-360",
        "A producer with a new epoch writes no record again that it wrote with the old one.",
        _RECORD,
    ),
    Rule(
        "epoch-back",
        ERROR,
        "epoch going back",
        "KIP-98, ProducerAppendInfo",
        "The epochs of a producer's batches never fall.",
        _BATCHES,
    ),
    Rule(
        "write-after-fencing",
        ERROR,
        "write after fencing",
        "KIP-98, KIP-890",
        "After a marker of a higher epoch the partition has no batch of an older epoch.",
        _BATCHES,
    ),
    Rule(
        "no-producer-id",
        ERROR,
        "transactional batch without producer id",
        "KIP-98",
        "A batch with the transactional bit names its producer; without one it is read as committed at once. "
        "Apache Kafka 4.3.1 accepts such batches.",
        _BATCHES,
    ),
    Rule(
        "outside-transaction",
        ERROR,
        "batch outside its transaction",
        "KIP-98, KIP-890",
        "While a transaction is open its producer writes nothing outside it, and only into partitions that the "
        "coordinator knows of.",
        _BATCHES,
    ),
    Rule(
        "hanging-transaction",
        ERROR,
        "hanging transaction",
        "KIP-664, KIP-890",
        "A transaction ends with a marker within its timeout, and every decided transaction gets its markers.",
        _TRANSACTION,
    ),
    Rule(
        "marker-without-transaction",
        ERROR,
        "marker without transaction",
        "KIP-98, KIP-890",
        "A marker is written only where a transaction of its producer was decided.",
        _MARKER,
        "a transaction that was aborted by an administrator, as with kafka-transactions.sh",
    ),
    Rule(
        "marker-epoch",
        ERROR,
        "wrong marker epoch",
        "KIP-98, KIP-890",
        "A marker has its transaction's epoch or, with transaction.version 2 and when fencing, the next one.",
        _MARKER,
    ),
    Rule(
        "coordinator-epoch",
        ERROR,
        "wrong coordinator epoch",
        "KIP-98, ProducerAppendInfo",
        "The coordinator epochs of a producer's markers never fall, and none is older than that of the decision.",
        _MARKER,
    ),
    Rule(
        "torn-transaction",
        ERROR,
        "torn transaction",
        "KIP-98",
        "A transaction ends the same way on every partition it wrote to: as its coordinator decided.",
        _TRANSACTION,
    ),
    Rule(
        "abort-index",
        ERROR,
        "index of aborted transactions disagrees",
        "KIP-98, TransactionIndex",
        "The .txnindex files name exactly the transactions that the log shows as aborted; consumers skip by them.",
        "the transaction's offsets, the index file, or the marker without an entry",
    ),
    Rule(
        "producer-snapshot",
        ERROR,
        "producer snapshot disagrees",
        "KIP-98, ProducerStateManager",
        "A .snapshot file has the producer state that the log gives up to its offset.",
        "the snapshot file, its offset and the producer",
        "a producer that may have expired, a snapshot past the end of a log that was not closed",
    ),
    Rule(
        "offset-hole",
        ERROR,
        "offset hole or overlap",
        "KIP-98, UnifiedLog",
        "Offsets have no holes, except where compaction removed batches, and no duplicates.",
        "the offsets, file and byte of the batch after them",
    ),
    Rule(
        "checksum",
        ERROR,
        "wrong checksum",
        "KIP-98, DefaultRecordBatch",
        "A batch has the CRC-32C that its header names.",
        _BATCH,
        "at the end of a log that was not closed",
    ),
    Rule(
        "torn-batch",
        ERROR,
        "bytes that are not a batch",
        "KIP-98, DefaultRecordBatch",
        "A file holds whole batches; only the end of a log that was not closed may be torn.",
        "file and byte, the offset expected there",
        "at the end of a log that was not closed",
    ),
    Rule(
        "record-count",
        ERROR,
        "wrong record count",
        "KIP-98, DefaultRecordBatch",
        "A batch has as many records as its header says, and as its offset range unless it was compacted.",
        _BATCH,
    ),
    Rule(
        "timestamp",
        ERROR,
        "wrong timestamp",
        "KIP-32, KIP-98, DefaultRecordBatch",
        "A batch's largest timestamp is the largest of its records.",
        _BATCH,
    ),
    Rule(
        "offset-outcome",
        ERROR,
        "committed offset beyond its transaction's outcome",
        "KIP-98, KIP-447",
        "Offsets committed in a transaction take effect exactly if the transaction's records do.",
        "the commit's offset in __consumer_offsets up to its marker, the producer",
    ),
    Rule(
        "offset-end",
        ERROR,
        "committed offset beyond the log's end",
        "KIP-98",
        "A group's committed offset is not past the end of the partition.",
        "the commit's offset in __consumer_offsets",
    ),
    Rule(
        "lost-data",
        ERROR,
        "missing data",
        "UnifiedLog, LogManager",
        "A log reaches every offset that its checkpoints, producer snapshots and indexes name; the metadata journal "
        "has everything that was acknowledged. A power loss may lose unsynced data, a killed process loses nothing.",
        "the file and the offset that it names, where the log ends",
    ),
    Rule(
        "lineage-lost",
        ERROR,
        "input without output",
        "KIP-447",
        "Each consumed input record is found in the committed output.",
        _RECORD,
    ),
    Rule(
        "lineage-duplicate",
        ERROR,
        "input processed twice",
        "KIP-447",
        "No input record is found in the committed output more than once.",
        _RECORD,
    ),
    Rule(
        "lineage-stray",
        ERROR,
        "output without input",
        "KIP-447",
        "Each committed output record comes from an input record.",
        _RECORD,
    ),
    Rule(
        "lost-record",
        ERROR,
        "acknowledged record lost",
        "KIP-98",
        "A record whose send succeeded, and whose transaction committed, is in the log.",
        "the partition and the record's name",
    ),
    Rule(
        "duplicate-record",
        ERROR,
        "record stored twice",
        "KIP-98",
        "An idempotent producer's record is in the log once.",
        _RECORD,
    ),
    Rule(
        "aborted-read",
        ERROR,
        "aborted record read",
        "KIP-98",
        "A read_committed reader gets no record of an aborted transaction.",
        _RECORD,
    ),
    Rule(
        "stray-record",
        ERROR,
        "record that was never sent",
        "KIP-98",
        "Every record that is read was sent.",
        _RECORD,
    ),
    Rule(
        "order",
        ERROR,
        "offsets read out of order",
        "KIP-98",
        "A reader gets a partition's records in the order of their offsets, each once.",
        _RECORD,
    ),
    Rule(
        "offset-back",
        ERROR,
        "log offsets going back",
        "KIP-98, KIP-101",
        "Log start offset, last stable offset and high watermark of a log never fall, and keep their order.",
        "the partition and the last stable offset",
    ),
    Rule(
        "reload",
        ERROR,
        "reload differs from live state",
        "KIP-98",
        "What a broker rebuilds from its log is what it had in memory.",
        "the partition and the name of what differs",
    ),
    Rule(
        "refusal",
        ERROR,
        "client refused without cause",
        "KIP-98, KIP-360",
        "A client that follows the protocol, in time and without a newer instance, is not refused for good.",
        "the client and its last request",
    ),
    Rule(
        "no-progress",
        ERROR,
        "client stuck",
        "KIP-98",
        "After all failures are over every client finishes, and every stable record can be read.",
        "the client and its last request",
    ),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _ALL}


def finding(
    rule: str,
    log: Log,
    message: str,
    *,
    producer_id: int = NONE,
    producer_epoch: int = NONE,
    first_offset: int = NONE,
    last_offset: int | None = None,
    file: str = "",
    position: int = NONE,
    transactional_id: str = "",
    severity: str | None = None,
) -> Finding:
    """A finding of a rule of this catalogue; KeyError for another one."""
    return Finding(
        rule,
        severity or RULES[rule].severity,
        log,
        producer_id,
        producer_epoch,
        first_offset,
        first_offset if last_offset is None else last_offset,
        file,
        position,
        transactional_id,
        message,
    )
