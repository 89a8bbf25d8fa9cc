"""The rules by name: what each promises, where that is said, and how bad a breach is."""

from __future__ import annotations

from typing import NamedTuple

from minibroker.audit.rows import NONE, Finding, Log

ERROR = "error"
NOTICE = "notice"
"""Worth knowing, and lawful: it does not make an audit fail."""


class Rule(NamedTuple):
    """`source`: the KIP or the part of Kafka that makes the promise."""

    id: str
    severity: str
    title: str
    source: str
    promise: str


_ALL = (
    Rule(
        "sequence-gap",
        ERROR,
        "sequence gap",
        "KIP-98, ProducerAppendInfo",
        "Within an epoch each batch of a producer begins one sequence after the last; a new epoch begins at 0.",
    ),
    Rule(
        "duplicate",
        ERROR,
        "duplicate batch",
        "KIP-98, ProducerStateManager",
        "No sequence of a producer's epoch is in the log twice.",
    ),
    Rule(
        "duplicate-content",
        ERROR,
        "the same record twice",
        "KIP-360",
        "A producer that goes on with a new epoch writes no record again that it wrote with the old one.",
    ),
    Rule(
        "epoch-back",
        ERROR,
        "epoch going back",
        "KIP-98, ProducerAppendInfo",
        "The epochs of a producer's batches never fall.",
    ),
    Rule(
        "write-after-fencing",
        ERROR,
        "write after fencing",
        "KIP-98, KIP-890",
        "Once a marker of a higher epoch is in the partition, the older epoch writes nothing more.",
    ),
    Rule(
        "no-producer-id",
        ERROR,
        "transactional batch without producer id",
        "KIP-98",
        "A batch with the transactional bit names its producer; without one it is read as committed at once. "
        "Apache Kafka 4.3.1 accepts such batches.",
    ),
    Rule(
        "outside-transaction",
        ERROR,
        "batch outside its transaction",
        "KIP-98, KIP-890",
        "While a transaction is open its producer writes nothing outside it, and only into partitions that the "
        "coordinator knows of.",
    ),
    Rule(
        "hanging-transaction",
        ERROR,
        "hanging transaction",
        "KIP-664, KIP-890",
        "A transaction ends with a marker within its timeout, and every one that was decided gets it.",
    ),
    Rule(
        "marker-without-transaction",
        ERROR,
        "marker without transaction",
        "KIP-98, KIP-890",
        "A marker stands only where a transaction of its producer was decided.",
    ),
    Rule(
        "marker-epoch",
        ERROR,
        "wrong marker epoch",
        "KIP-98, KIP-890",
        "A marker has its transaction's epoch or, with transaction.version 2 and when fencing, the next one.",
    ),
    Rule(
        "coordinator-epoch",
        ERROR,
        "wrong coordinator epoch",
        "KIP-98, ProducerAppendInfo",
        "The coordinator epochs of a producer's markers never fall, and none is older than who decided.",
    ),
    Rule(
        "torn-transaction",
        ERROR,
        "torn transaction",
        "KIP-98",
        "A transaction ends the same way on every partition it wrote to: as its coordinator decided.",
    ),
    Rule(
        "abort-index",
        ERROR,
        "index of aborted transactions disagrees",
        "KIP-98, TransactionIndex",
        "The .txnindex files name exactly the transactions that the log shows as aborted; consumers skip by them.",
    ),
    Rule(
        "producer-snapshot",
        ERROR,
        "producer snapshot disagrees",
        "KIP-98, ProducerStateManager",
        "A .snapshot file holds what going through the log up to its offset gives.",
    ),
    Rule(
        "offset-hole",
        ERROR,
        "offset hole or overlap",
        "UnifiedLog",
        "Offsets follow one another without a hole, except where compaction took batches, and none comes twice.",
    ),
    Rule("checksum", ERROR, "wrong checksum", "DefaultRecordBatch", "A batch has the CRC-32C that its header names."),
    Rule(
        "torn-batch",
        ERROR,
        "bytes that are no batch",
        "DefaultRecordBatch",
        "A file holds whole batches; only the end of a log that was not closed may be torn.",
    ),
    Rule(
        "record-count",
        ERROR,
        "wrong record count",
        "DefaultRecordBatch",
        "A batch holds as many records as its header says, and as its offsets take where nothing was compacted.",
    ),
    Rule(
        "timestamp",
        ERROR,
        "wrong timestamp",
        "DefaultRecordBatch",
        "A batch's largest timestamp is the largest of its records.",
    ),
    Rule(
        "offset-outcome",
        ERROR,
        "committed offset beyond its transaction's outcome",
        "KIP-98, KIP-447",
        "Offsets committed in a transaction take effect exactly if the transaction's records do.",
    ),
    Rule(
        "offset-end",
        ERROR,
        "committed offset beyond the log's end",
        "KIP-98",
        "A group's committed offset is not past the end of the partition.",
    ),
    Rule(
        "lineage-lost",
        ERROR,
        "input without output",
        "KIP-447",
        "Each consumed input record is found in the committed output.",
    ),
    Rule(
        "lineage-duplicate",
        ERROR,
        "input processed twice",
        "KIP-447",
        "No input record is found in the committed output more than once.",
    ),
    Rule(
        "lineage-stray",
        ERROR,
        "output without input",
        "KIP-447",
        "Each committed output record comes from an input record.",
    ),
    Rule(
        "lost-record",
        ERROR,
        "acknowledged record lost",
        "KIP-98",
        "A record whose send succeeded, and whose transaction committed, is in the log.",
    ),
    Rule("duplicate-record", ERROR, "record stored twice", "KIP-98", "An idempotent producer's record is there once."),
    Rule(
        "aborted-read",
        ERROR,
        "aborted record read",
        "KIP-98",
        "A read_committed reader is given no record of an aborted transaction.",
    ),
    Rule("stray-record", ERROR, "record nobody sent", "KIP-98", "Every record that is read was sent."),
    Rule(
        "order",
        ERROR,
        "offsets read out of order",
        "KIP-98",
        "A reader is given a partition's records in the order of their offsets, each once.",
    ),
    Rule(
        "offset-back",
        ERROR,
        "log offsets going back",
        "KIP-98, KIP-101",
        "Log start offset, last stable offset and high watermark of a log never fall, and keep their order.",
    ),
    Rule(
        "reload",
        ERROR,
        "reload differs from live state",
        "KIP-98",
        "What a broker rebuilds from its log is what it had in memory.",
    ),
    Rule(
        "refusal",
        ERROR,
        "client refused without cause",
        "KIP-98, KIP-360",
        "A client that keeps to the protocol, in time and with no newer instance beside it, is not refused for good.",
    ),
    Rule(
        "no-progress",
        ERROR,
        "client stuck",
        "KIP-98",
        "Once brokers and network are whole again, every client comes to an end, and all that is stable can be read.",
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
