"""Kinds of damage to what Apache Kafka 4.3.1 wrote, the rules that find each, and what is lawful and much like them."""

from __future__ import annotations

import struct
from collections.abc import Callable

from planting import Planted, changed, committed, flipped_marker, header_of, marker

from minibroker_protocol.records import Record, build_batch, decode_records
from minibroker_protocol.records.batch import crc32c

Change = Callable[[Planted], object]
SIZED = "sized-0/00000000000000000000"
FIRST = "append-time-0"
LAST = 6
"""Offset of the last batch of FIRST, which ends at 9."""


def patched(name: str, layout: str, at: int, *values: int) -> Change:
    """Numbers written over those in a file."""

    def change(planted: Planted) -> None:
        data = bytearray(planted.files[name])
        struct.pack_into(layout, data, at, *values)
        planted.files[name] = bytes(data)

    return change


def replaced(name: str, content: bytes) -> Change:
    return lambda planted: planted.files.update({name: content})


def removed(*beginnings: str) -> Change:
    def change(planted: Planted) -> None:
        for name in [name for name in planted.files if name.startswith(beginnings)]:
            del planted.files[name]

    return change


def cut(name: str, end: int) -> Change:
    return lambda planted: planted.files.update({name: planted.files[name][:end]})


def again(offset: int = LAST, partition: str = FIRST, **fields: int) -> Change:
    """A batch once more, after the last one."""
    return lambda planted: planted.append(partition, planted.find(partition, offset), **fields)


def header(partition: str, offset: int, **fields: int) -> Change:
    return lambda planted: planted.change(partition, offset, lambda batch: changed(batch, **fields))


def spoiled(partition: str, offset: int) -> Change:
    return lambda planted: planted.change(partition, offset, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))


def ended(partition: str, **fields: int | bool) -> Change:
    return lambda planted: planted.append(partition, marker(**fields))


def snapshot(field: int, layout: str) -> Change:
    """A field of the newest snapshot of `open` is another one, under a right checksum."""

    def change(planted: Planted) -> None:
        path = planted.path("open-0", ".snapshot")
        data = bytearray(planted.files[path])
        struct.pack_into(layout, data, 10 + field, 1000)
        data[2:6] = struct.pack(">I", crc32c(bytes(data[6:])))
        planted.files[path] = bytes(data)

    return change


def checkpoint(name: str, line: bytes, instead: bytes) -> Change:
    def change(planted: Planted) -> None:
        assert line in planted.files[name]
        planted.files[name] = planted.files[name].replace(line, instead)

    return change


def opened(planted: Planted) -> None:
    """A transaction of a producer that its coordinator has left behind."""
    planted.append(FIRST, planted.find("txn-a-0", 56), producer_id=16, producer_epoch=2)


def state(change: Callable[[bytearray], None], name: bytes = b"left-open") -> Change:
    """The newest record of a transactional id once more, changed."""

    def plant(planted: Planted) -> None:
        *_, record = (
            record
            for batch in planted.batches("__transaction_state-0")
            for record in decode_records(batch, 0, header_of(batch))
            if name in bytes(record.key or b"")
        )
        value = bytearray(record.value or b"")
        change(value)
        batch = build_batch([Record(0, 1, bytes(record.key or b""), bytes(value))])
        planted.append("__transaction_state-0", bytes(batch), producer_id=-1, producer_epoch=-1, base_sequence=-1)

    return plant


def complete(value: bytearray) -> None:
    value[16] = 4


def no_state(value: bytearray) -> None:
    value[16] = 99


def older(value: bytearray) -> None:
    struct.pack_into(">h", value, 10, struct.unpack_from(">h", value, 10)[0] - 1)


def commits(offset: int, group: bytes = b"g-consumer") -> Change:
    return lambda planted: planted.append("__consumer_offsets-0", committed(planted, group, offset))


def no_transaction(planted: Planted) -> None:
    """In place of the data a marker stands alone, whose coordinator decided it."""
    other = bytes(build_batch([Record(0, 1, b"k", b"v")]))
    planted.change("txn-b-1", 68, lambda batch: changed(other, base_offset=68, partition_leader_epoch=0))


EPOCHS = f"{FIRST}/leader-epoch-checkpoint"
ENTRY = 8
TIME_ENTRY = 12

#: (kind of damage, how, the rules that find it)
DAMAGE: list[tuple[str, Change, set[str]]] = [
    # sequences and epochs
    ("a sequence left out", again(base_sequence=11), {"sequence-gap"}),
    ("a new epoch that does not begin at 0", again(base_sequence=3, producer_epoch=1), {"sequence-gap"}),
    ("a batch twice", again(3), {"duplicate"}),
    ("the last batch twice", again(), {"duplicate"}),
    (
        "an older epoch after a newer one",
        lambda p: [again(base_sequence=0, producer_epoch=1)(p), again(base_sequence=9)(p)],
        {"epoch-back"},
    ),
    ("a write after the fencing marker", again(53, "txn-a-0", base_sequence=2), {"write-after-fencing"}),
    (
        "a transactional batch of nobody",
        again(53, "txn-a-0", producer_id=-1, producer_epoch=-1, base_sequence=-1),
        {"no-producer-id"},
    ),
    ("a plain batch inside a transaction", again(2, "open-0", base_sequence=2, attributes=0), {"outside-transaction"}),
    (
        "a partition its coordinator does not know",
        lambda p: p.append(FIRST, p.find("open-0", 2)),
        {"outside-transaction"},
    ),
    (
        "a plain batch after a transaction",
        again(53, "txn-a-0", producer_epoch=2, base_sequence=0, attributes=0),
        {"not-transactional"},
    ),
    # markers
    ("a transaction that hangs", opened, {"hanging-transaction"}),
    ("a marker nobody decided", ended(FIRST, producer_id=19, producer_epoch=0), {"marker-without-transaction"}),
    ("a marker of an epoch nobody had", header("txn-b-1", 74, producer_epoch=2), {"marker-epoch", "producer-snapshot"}),
    (
        "a marker of an older coordinator",
        lambda p: p.change(
            "txn-a-0",
            55,
            lambda _: changed(marker(producer_id=1000, producer_epoch=1, coordinator_epoch=1), base_offset=55),
        ),
        {"coordinator-epoch"},
    ),
    (
        "COMMIT where ABORT was decided",
        lambda p: p.change("txn-a-1", 41, flipped_marker),
        {"torn-transaction", "abort-index"},
    ),
    ("a decided transaction that is not there", no_transaction, {"torn-transaction", "producer-snapshot"}),
    # the index of aborted transactions, snapshots
    ("an aborted transaction left out of .txnindex", cut("rolled-0/00000000000000000000.txnindex", 0), {"abort-index"}),
    (
        "an entry too many in .txnindex",
        lambda p: p.files.update(
            {
                p.path("txn-a-0", ".txnindex"): p.files[p.path("txn-a-0", ".txnindex")]
                + struct.pack(">hqqqq", 0, 77, 57, 58, 59)
            }
        ),
        {"abort-index"},
    ),
    ("a torn .txnindex", cut("txn-a-0/00000000000000000000.txnindex", 135), {"abort-index"}),
    (
        "another first offset in .txnindex",
        patched("txn-a-0/00000000000000000000.txnindex", ">q", 10, 7),
        {"abort-index"},
    ),
    ("a torn snapshot", cut("txn-a-0/00000000000000000058.snapshot", 101), {"producer-snapshot"}),
    ("another sequence in a snapshot", snapshot(10, ">i"), {"producer-snapshot"}),
    ("another epoch in a snapshot", snapshot(8, ">h"), {"producer-snapshot"}),
    ("another open transaction in a snapshot", snapshot(38, ">q"), {"producer-snapshot"}),
    # batches and records
    ("offsets left out", again(base_offset=12, base_sequence=9), {"offset-hole"}),
    (
        "a missing segment",
        removed("sized-0/00000000000000000256."),
        {"offset-hole", "sequence-gap", "producer-snapshot"},
    ),
    ("a flipped bit in a record", spoiled(FIRST, 3), {"checksum"}),
    ("a torn end of a closed log", cut(f"{FIRST}/00000000000000000000.log", 366), {"torn-batch", "lost-data"}),
    (
        "a length that is wrong",
        lambda p: p.change("sized-0", 100, lambda batch: changed(batch, crc=False, batch_length=7), 0),
        {"torn-batch"},
    ),
    ("fewer records than offsets", header(FIRST, 3, record_count=2), {"record-count"}),
    (
        "a largest timestamp that no record has",
        lambda p: p.change("txn-a-0", 0, lambda b: changed(b, max_timestamp=header_of(b).max_timestamp - 1)),
        {"timestamp"},
    ),
    ("leader epochs that fall", header(FIRST, 3, partition_leader_epoch=1), {"leader-epoch"}),
    # offset and time indexes
    ("an index entry for another offset", patched(f"{SIZED}.index", ">i", ENTRY * 5, 24), {"offset-index"}),
    ("an index entry inside a batch", patched(f"{SIZED}.index", ">i", ENTRY * 5 + 4, 100_000), {"offset-index"}),
    ("index entries that fall", patched(f"{SIZED}.index", ">ii", ENTRY * 5, 1, 1), {"offset-index"}),
    ("a torn index", cut(f"{SIZED}.index", 501), {"offset-index"}),
    ("zeros inside an index", patched(f"{SIZED}.index", ">iiii", ENTRY * 5, 0, 0, 0, 0), {"offset-index"}),
    ("an index of no log", replaced(f"{FIRST}/00000000000000000003.index", b""), {"offset-index"}),
    ("a missing index", removed(f"{SIZED}.index"), {"offset-index"}),
    ("a time index entry with another time", patched(f"{SIZED}.timeindex", ">q", 0, 1), {"time-index"}),
    ("a time index entry of no batch", patched(f"{SIZED}.timeindex", ">i", 8, 0), {"time-index"}),
    ("times that fall", patched(f"{SIZED}.timeindex", ">q", TIME_ENTRY * 3, 1), {"time-index"}),
    ("a torn time index", cut(f"{SIZED}.timeindex", 527), {"time-index"}),
    # leader epochs
    ("a checkpoint of other leader epochs", replaced(EPOCHS, b"0\n1\n7 0\n"), {"epoch-checkpoint"}),
    ("a leader epoch that begins too early", replaced(EPOCHS, b"0\n2\n0 0\n2 4\n"), {"epoch-checkpoint"}),
    ("a leader epoch that begins after the end", replaced(EPOCHS, b"0\n2\n0 0\n2 99\n"), {"epoch-checkpoint"}),
    (
        "a leader epoch above the first one in the checkpoint",
        lambda p: [
            replaced(EPOCHS, b"0\n1\n1 9\n")(p),
            *(header(FIRST, at, partition_leader_epoch=2)(p) for at in (0, 3, 6)),
        ],
        {"epoch-checkpoint"},
    ),
    ("a checkpoint of leader epochs that is none", replaced(EPOCHS, b"1\n"), {"epoch-checkpoint"}),
    # checkpoints and identity
    (
        "a high watermark past the end",
        checkpoint("replication-offset-checkpoint", b"plain 0 50", b"plain 0 51"),
        {"lost-data"},
    ),
    (
        "a recovery point past the end",
        checkpoint("recovery-point-offset-checkpoint", b"plain 0 50", b"plain 0 51"),
        {"lost-data"},
    ),
    (
        "a log start past the high watermark",
        replaced("log-start-offset-checkpoint", b"0\n1\nplain 0 60\n"),
        {"checkpoint", "lost-data"},
    ),
    ("a cleaner past the end", replaced("cleaner-offset-checkpoint", b"0\n1\nplain 0 51\n"), {"checkpoint"}),
    (
        "a checkpoint of fewer lines than it says",
        replaced("log-start-offset-checkpoint", b"0\n9\nplain 0 0\n"),
        {"checkpoint"},
    ),
    ("a partition without its directory", removed("plain-0/"), {"checkpoint"}),
    (
        "a partition of another topic id",
        replaced("txn-a-1/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"),
        {"topic-id"},
    ),
    ("a topic id that is none", replaced("txn-a-1/partition.metadata", b"version: 9\n"), {"topic-id"}),
    ("an identity without a node", replaced("meta.properties", b"version=1\ncluster.id=x\n"), {"data-directory"}),
    ("no identity", removed("meta.properties"), {"data-directory"}),
    (
        "files left over after a clean end",
        replaced("plain-0/00000000000000000000.log.swap", b""),
        {"data-directory"},
    ),
    # coordinators
    ("a transaction that was complete, and open", state(complete), {"txn-state"}),
    ("a state that is none", state(no_state), {"txn-state"}),
    ("a producer epoch that falls in the states", state(older), {"txn-state"}),
    ("a group's offset past the end", commits(151), {"offset-end"}),
    (
        "offsets beyond their transaction's outcome",
        lambda p: p.change("__consumer_offsets-1", 5, flipped_marker),
        {"offset-outcome", "torn-transaction", "abort-index"},
    ),
]


def not_closed(*changes: Change) -> Change:
    """The broker was killed, or copied while it ran."""

    def plant(planted: Planted) -> None:
        for change in (removed(".kafka_cleanshutdown"), *changes):
            change(planted)

    return plant


def allocated_ahead(planted: Planted) -> None:
    for suffix in (".index", ".timeindex"):
        name = f"sized-0/00000000000000000512{suffix}"
        planted.files[name] += bytes(
            10_485_756 - len(planted.files[name]) // 12 * 12 if suffix == ".timeindex" else 1 << 20
        )


def deleted_up_to(planted: Planted) -> None:
    """DeleteRecords inside the second batch: the leader epochs begin there too."""
    planted.files["log-start-offset-checkpoint"] = b"0\n1\nappend-time 0 4\n"
    planted.files[EPOCHS] = b"0\n2\n0 4\n2 9\n"


def new_leader(planted: Planted) -> None:
    """Epochs leave numbers out where a leader wrote nothing."""
    planted.files[EPOCHS] = b"0\n2\n0 0\n7 9\n"
    planted.append(FIRST, planted.find(FIRST, LAST), base_sequence=9)


def no_root_files(planted: Planted) -> None:
    for name in [name for name in planted.files if "/" not in name]:
        del planted.files[name]


#: Lawful, and much like damage.
LAWFUL: list[tuple[str, Change]] = [
    ("the next sequence", again(base_sequence=9)),
    ("a new epoch from 0 on", again(base_sequence=0, producer_epoch=1)),
    ("a producer that no one has seen, in the middle of its sequences", again(base_sequence=40, producer_id=77_000)),
    (
        "an index with fewer entries",
        lambda p: p.files.update({f"{SIZED}.index": p.files[f"{SIZED}.index"][: ENTRY * 9]}),
    ),
    (
        "a time index with fewer entries",
        lambda p: p.files.update({f"{SIZED}.timeindex": p.files[f"{SIZED}.timeindex"][: TIME_ENTRY * 9]}),
    ),
    ("indexes allocated ahead", not_closed(allocated_ahead)),
    ("leader epochs that leave some out", new_leader),
    ("records deleted up to the middle of a batch", deleted_up_to),
    ("the same and a kill before the log start was written", replaced(EPOCHS, b"0\n1\n0 4\n")),
    ("the same of all records", replaced(EPOCHS, b"0\n1\n0 9\n")),
    ("the same of all records of an older epoch", replaced(EPOCHS, b"0\n1\n2 9\n")),
    ("a high watermark below the end", checkpoint("replication-offset-checkpoint", b"plain 0 50", b"plain 0 44")),
    ("a recovery point of 0", checkpoint("recovery-point-offset-checkpoint", b"plain 0 50", b"plain 0 0")),
    ("a copy without the files at the root", no_root_files),
    ("a copy of some partitions of a broker that ran", not_closed(removed("plain-0/"))),
    ("a compaction that was cut short", not_closed(replaced("plain-0/00000000000000000000.log.cleaned", b"x"))),
    (
        "a topic that is being deleted",
        not_closed(replaced("gone-0.0c4f8b6f5d2e4c5cb0a8-delete/00000000000000000000.log", b"")),
    ),
    (
        "an index above the recovery point",
        not_closed(
            checkpoint("recovery-point-offset-checkpoint", b"sized 0 600", b"sized 0 0"), removed(f"{SIZED}.index")
        ),
    ),
    ("files that wait for their deletion", replaced("plain-0/00000000000000000000.log.deleted", b"x")),
    ("a state written twice", state(lambda _: None)),
    ("a group's offset at the end", commits(150)),
    ("an offset committed again", commits(150, b"g-classic")),
]


def below_the_cleaner(*changes: Change) -> Change:
    """In `t-0` of the set `compacted`, whose cleaner then says that it has passed over all of this."""

    def plant(planted: Planted) -> None:
        checkpoint("cleaner-offset-checkpoint", b"t 0 580", b"t 0 650")(planted)
        for change in changes:
            change(planted)

    return plant


def without(partition: str, *offsets: int) -> Change:
    """Batches taken out of the newest file, as compaction does."""

    def change(planted: Planted) -> None:
        kept = [batch for batch in planted.batches(partition) if header_of(batch).base_offset not in offsets]
        planted.write(partition, kept)

    return change


def index_entry(name: str, *entry: int, instead: bool = False) -> Change:
    """A first entry of `.txnindex`, or another one `instead`: producer id, first, last and last stable offset."""

    def change(planted: Planted) -> None:
        rest = planted.files[name][34 if instead else 0 :]
        planted.files[name] = struct.pack(">hqqqq", 0, *entry) + rest

    return change


COMPACTED_INDEX = "t-0/00000000000000000580.txnindex"

#: Damage to a compacted log, in the set `compacted`: (kind, how, the rules of the errors)
COMPACTED_DAMAGE: list[tuple[str, Change, set[str]]] = [
    ("a COMMIT marker taken out before an abort", without("t-0", 601), {"abort-index"}),
    ("an entry that names a committed transaction", index_entry(COMPACTED_INDEX, 0, 591, 601, 602), {"abort-index"}),
    (
        "an entry that names the committed one before too",
        index_entry(COMPACTED_INDEX, 0, 591, 612, 613, instead=True),
        {"abort-index"},
    ),
    ("an entry that is not there", replaced(COMPACTED_INDEX, b""), {"abort-index"}),
    ("sequences left out and no offsets", header("t-0", 624, base_sequence=65), {"sequence-gap"}),
]


Plant = Callable[[Planted, str], object]
"""Damages the log of a partition."""


def _first(planted: Planted, partition: str) -> int:
    """Offset of the first batch in the newest file."""
    return header_of(planted.batches(partition)[0]).base_offset


def _again(planted: Planted, partition: str, **fields: int) -> None:
    """The last batch once more, after it."""
    planted.append(partition, planted.batches(partition)[-1], **fields)


def _next_sequence(planted: Planted, partition: str) -> int:
    return header_of(planted.batches(partition)[-1]).last_sequence + 1


def _nobodys(planted: Planted, partition: str) -> None:
    data = bytes(build_batch([Record(0, 1, b"k", b"v")], transactional=True))
    planted.append(partition, data, producer_id=-1, producer_epoch=-1, base_sequence=-1)


def _older_epoch(planted: Planted, partition: str) -> None:
    after = _next_sequence(planted, partition)
    _again(planted, partition, base_sequence=0, producer_epoch=1)
    _again(planted, partition, base_sequence=after, producer_epoch=0)


def _in_first(change: Callable[[bytes], bytes]) -> Plant:
    return lambda planted, partition: planted.change(partition, _first(planted, partition), change)


def _stem(planted: Planted, partition: str) -> str:
    return planted.path(partition).removesuffix(".log")


def _file(suffix: str, layout: str, *values: int) -> Plant:
    """An index of the newest file, or a file beside it, that has these numbers."""

    def plant(planted: Planted, partition: str) -> None:
        planted.files[_stem(planted, partition) + suffix] = struct.pack(layout, *values)

    return plant


def _another_epoch(planted: Planted, partition: str) -> None:
    name = f"{partition}/leader-epoch-checkpoint"
    version, count, *entries = planted.files[name].split()
    lines = [version, b"%d" % (int(count) + 1), *map(b" ".join, zip(entries[::2], entries[1::2], strict=True))]
    planted.files[name] = b"\n".join([*lines, b"99 999999", b""])


def _beyond(planted: Planted, partition: str) -> None:
    topic, _, number = partition.rpartition("-")
    line = f"{topic} {number} {planted.end(partition) + 1}"
    planted.files["recovery-point-offset-checkpoint"] = f"0\n1\n{line}\n".encode()


#: What `check` and the audit must find in any log, however lawful its directory looks odd: kind, how, the rule, and
#: whether the log must have a producer.
IN_ANY_LOG: list[tuple[str, Plant, str, bool]] = [
    (
        "a sequence left out",
        lambda p, log: _again(p, log, base_sequence=_next_sequence(p, log) + 5),
        "sequence-gap",
        True,
    ),
    ("a batch twice", lambda p, log: _again(p, log), "duplicate", True),
    ("an older epoch after a newer one", _older_epoch, "epoch-back", True),
    ("a transactional batch of nobody", _nobodys, "no-producer-id", False),
    ("a flipped bit", _in_first(lambda batch: batch[:-1] + bytes([batch[-1] ^ 1])), "checksum", False),
    ("a length that is wrong", _in_first(lambda batch: changed(batch, crc=False, batch_length=7)), "torn-batch", False),
    (
        "more records than offsets",
        _in_first(lambda batch: changed(batch, record_count=header_of(batch).last_offset_delta + 2)),
        "record-count",
        False,
    ),
    ("leader epochs that fall", _in_first(lambda b: changed(b, partition_leader_epoch=77)), "leader-epoch", False),
    ("an epoch that begins after the end", _another_epoch, "epoch-checkpoint", False),
    (
        "another epoch than the checkpoint's",
        lambda p, log: _again(p, log, partition_leader_epoch=77),
        "epoch-checkpoint",
        False,
    ),
    ("an index entry inside a batch", _file(".index", ">ii", 1, 1), "offset-index", False),
    ("a time index entry of no batch", _file(".timeindex", ">qi", 5, 1 << 20), "time-index", False),
    (
        "an aborted transaction that is not there",
        _file(".txnindex", ">hqqqq", 0, 9, 1 << 40, 1 << 40, 1 << 40),
        "abort-index",
        False,
    ),
    ("a snapshot that cannot be read", _file(".snapshot", ">hi", 1, 7), "producer-snapshot", False),
    ("offsets that come twice", lambda p, log: _again(p, log, base_offset=_first(p, log)), "offset-hole", False),
    ("a recovery point past the end", _beyond, "lost-data", False),
    (
        "a topic id that is none",
        lambda p, log: p.files.update({f"{log}/partition.metadata": b"version: 9\n"}),
        "topic-id",
        False,
    ),
    (
        "a checkpoint that cannot be read",
        lambda p, _: p.files.update({"replication-offset-checkpoint": b"x"}),
        "checkpoint",
        False,
    ),
]
