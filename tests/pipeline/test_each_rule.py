"""Each rule that is judged from files: its fault, planted in what Apache Kafka 4.3.1 wrote, is found by the command,
with the evidence that the rule's row in the catalogue promises; the command that the finding names shows something.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from planting import Planted, changed, committed, flipped_marker, golden_files, header_of, marker, rewound, write_files
from sampling import thinned

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.client.transactions_command import add_arguments
from minibroker.coordinators.transactions.states import TransactionState
from minibroker.rules.catalogue import ERROR, NOTICE, RULES
from minibroker_protocol.records import Record, build_batch, decode_records

OUTSIDE = 0x10
STATUS_AT = 16
"""Byte of the state in a value of __transaction_state: after version, producer id and epoch, and timeout."""
LINEAGE = ("--lineage", "in=out", "--group", "app")
NOT_FROM_FILES = {
    "lost-record",
    "duplicate-record",
    "aborted-read",
    "stray-record",
    "order",
    "offset-back",
    "reload",
    "refusal",
    "no-progress",
    "shared-id",
    "offsets-without-member",
    "offsets-twice",
    "offsets-mixed",
    "input-uncommitted",
}


class Fault(NamedTuple):
    """Files with a fault, how to audit them, and where the finding must be: log, first and last offset."""

    planted: Planted
    log: str
    first: int
    last: int
    options: tuple[str, ...] = ()
    severity: str = ERROR


def appended(partition: str, source: str, offset: int, name: str = "clean", **fields: int) -> tuple[Planted, int, int]:
    """A copy of a batch after the last one, and the offsets it gets."""
    planted = Planted(name)
    batch, end = planted.find(source, offset), planted.end(partition)
    planted.append(partition, batch, **fields)
    return planted, end, end + header_of(batch).last_offset_delta


def sequence_gap() -> Fault:
    planted, first, last = appended("append-time-0", "append-time-0", 6, base_sequence=11)
    return Fault(planted, "append-time-0", first, last)


def duplicate() -> Fault:
    planted, first, last = appended("append-time-0", "append-time-0", 3)
    return Fault(planted, "append-time-0", first, last)


def duplicate_content() -> Fault:
    planted, first, _ = appended("append-time-0", "append-time-0", 0, base_sequence=0, producer_epoch=1)
    return Fault(planted, "append-time-0", first, first, ("--content",))


def epoch_back() -> Fault:
    planted, _, _ = appended("append-time-0", "append-time-0", 6, base_sequence=0, producer_epoch=1)
    first = planted.end("append-time-0")
    planted.append("append-time-0", planted.find("append-time-0", 6), base_sequence=9)
    return Fault(planted, "append-time-0", first, first + 2)


def write_after_fencing() -> Fault:
    planted, first, last = appended("txn-a-0", "txn-a-0", 53, base_sequence=2)
    return Fault(planted, "txn-a-0", first, last)


def no_producer_id() -> Fault:
    nobody = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    planted, first, last = appended("txn-a-0", "txn-a-0", 53, **nobody)
    return Fault(planted, "txn-a-0", first, last)


def outside_transaction() -> Fault:
    attributes = header_of(Planted().find("open-0", 2)).attributes & ~OUTSIDE
    planted, first, last = appended("open-0", "open-0", 2, base_sequence=2, attributes=attributes)
    return Fault(planted, "open-0", first, last)


def not_transactional() -> Fault:
    """After its last transaction, which was aborted, the producer writes what a reader of committed records gets."""
    attributes = header_of(Planted().find("txn-a-0", 53)).attributes & ~OUTSIDE
    changes = {"producer_epoch": 2, "base_sequence": 0, "attributes": attributes}
    planted, first, last = appended("txn-a-0", "txn-a-0", 53, **changes)
    return Fault(planted, "txn-a-0", first, last)


def hanging_transaction() -> Fault:
    """Half an hour later nobody has ended it, and its timeout was a minute."""
    planted = Planted("open-transactions")
    opened = next(b for b in reversed(planted.batches("t-1")) if header_of(b).is_transactional)
    first, last = header_of(opened).base_offset, header_of(opened).last_offset
    later = header_of(opened).max_timestamp + 1_800_000
    return Fault(planted, "t-1", first, last, ("--as-of", str(later)))


def marker_without_transaction() -> Fault:
    planted = Planted()
    end = planted.end("append-time-0")
    planted.append("append-time-0", marker(producer_id=19, producer_epoch=0))
    return Fault(planted, "append-time-0", end, end)


def marker_epoch() -> Fault:
    planted = Planted()
    planted.change("txn-b-1", 74, lambda batch: changed(batch, producer_epoch=2))
    return Fault(planted, "txn-b-1", 74, 74)


def coordinator_epoch() -> Fault:
    planted = Planted()
    end = planted.end("txn-a-0")
    planted.append("txn-a-0", marker(producer_id=1000, producer_epoch=2, coordinator_epoch=1, commit=False))
    return Fault(planted, "txn-a-0", end, end)


def torn_transaction() -> Fault:
    planted = Planted()
    planted.change("txn-a-1", 41, flipped_marker)
    return Fault(planted, "txn-a-1", 36, 41)


def abort_index() -> Fault:
    planted = Planted()
    path = planted.path("txn-a-0", ".txnindex")
    planted.files[path] += struct.pack(">hqqqq", 0, 77, 57, 58, 59)
    return Fault(planted, "txn-a-0", 57, 58)


def producer_snapshot() -> Fault:
    planted = Planted()
    path = planted.path("txn-a-0", ".snapshot")
    planted.files[path] = planted.files[path][:-1]
    return Fault(planted, "txn-a-0", 58, 58)


def offset_hole() -> Fault:
    planted, _, _ = appended("append-time-0", "append-time-0", 6, base_offset=12, base_sequence=9)
    planted.files |= golden_files("metadata")  # by which its cleanup.policy is delete
    return Fault(planted, "append-time-0", 9, 11)


def checksum() -> Fault:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))
    return Fault(planted, "append-time-0", 3, 5)


def torn_batch() -> Fault:
    planted = Planted()
    path = planted.path("append-time-0")
    planted.files[path] = planted.files[path][:-1]
    return Fault(planted, "append-time-0", 6, 6)


def record_count() -> Fault:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: changed(batch, record_count=4))
    return Fault(planted, "append-time-0", 3, 5)


def timestamp() -> Fault:
    planted = Planted()
    latest = header_of(planted.find("txn-a-0", 0)).max_timestamp
    planted.change("txn-a-0", 0, lambda batch: changed(batch, max_timestamp=latest + 1))
    return Fault(planted, "txn-a-0", 0, 0)


def offset_outcome() -> Fault:
    planted = Planted()
    planted.change("__consumer_offsets-1", 5, flipped_marker)
    return Fault(planted, "__consumer_offsets-1", 4, 5)


def offset_end() -> Fault:
    planted = Planted()
    past, end = committed(planted, b"g-consumer", 151), planted.end("__consumer_offsets-0")
    planted.append("__consumer_offsets-0", past)
    return Fault(planted, "__consumer_offsets-0", end, end)


def offset_rewind() -> Fault:
    """The member is back, and commits half of what it had."""
    planted, at = rewound(60)
    return Fault(planted, "__consumer_offsets-0", at, at, severity=NOTICE)


def txn_state() -> Fault:
    """An open transaction is complete, and nobody decided it."""
    planted = Planted()
    *_, record = (
        record
        for batch in planted.batches("__transaction_state-0")
        for record in decode_records(batch, 0, header_of(batch))
        if b"left-open" in bytes(record.key or b"")
    )
    assert record.key is not None
    assert record.value is not None
    value = bytearray(record.value)
    assert value[STATUS_AT] == TransactionState.ONGOING
    value[STATUS_AT] = TransactionState.COMPLETE_COMMIT
    done = build_batch([Record(0, 1, record.key, bytes(value))], producer_id=-1, producer_epoch=-1, base_sequence=-1)
    end = planted.end("__transaction_state-0")
    planted.append("__transaction_state-0", bytes(done))
    return Fault(planted, "__transaction_state-0", end, end)


def leader_epoch() -> Fault:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: changed(batch, partition_leader_epoch=1))
    return Fault(planted, "append-time-0", 6, 6)


def small_file(name: str, content: bytes, log: str, first: int, last: int, severity: str = ERROR) -> Fault:
    planted = Planted()
    assert planted.files.get(name) != content
    planted.files[name] = content
    return Fault(planted, log, first, last, severity=severity)


def offset_index() -> Fault:
    name = f"sized-0/{0:020d}.index"
    content = bytearray(Planted().files[name])
    struct.pack_into(">i", content, 40, 30)
    return small_file(name, bytes(content), "sized-0", 30, 30)


def time_index() -> Fault:
    name = f"sized-0/{0:020d}.timeindex"
    content = bytearray(Planted().files[name])
    (offset,) = struct.unpack_from(">i", content, 8)
    struct.pack_into(">q", content, 0, 1)
    return small_file(name, bytes(content), "sized-0", offset, offset)


def epoch_checkpoint() -> Fault:
    return small_file("append-time-0/leader-epoch-checkpoint", b"0\n2\n0 0\n2 4\n", "append-time-0", 0, 8)


def checkpoint() -> Fault:
    return small_file("cleaner-offset-checkpoint", b"0\n1\nplain 0 51\n", "plain-0", 51, 51)


def topic_id() -> Fault:
    content = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    return small_file("txn-a-1/partition.metadata", content, "txn-a-1", -1, -1)


def data_directory() -> Fault:
    return small_file("meta.properties", b"version=1\ncluster.id=x\n", "--1", -1, -1)


def lost_data() -> Fault:
    name = "replication-offset-checkpoint"
    content = Planted().files[name].replace(b"plain 0 50", b"plain 0 51")
    return small_file(name, content, "plain-0", 51, 51)


def lineage_lost() -> Fault:
    planted = Planted("loop")
    planted.change("out-0", 0, lambda batch: rekeyed(batch, {b"k0": b"k2"}))
    return Fault(planted, "in-0", 0, 0, LINEAGE)


def lineage_duplicate() -> Fault:
    planted = Planted("loop")
    planted.change("out-0", 0, lambda batch: rekeyed(batch, {b"k0": b"k2"}))
    return Fault(planted, "out-0", 1, 1, LINEAGE)


def lineage_stray() -> Fault:
    planted = Planted("loop")
    planted.change("out-0", 0, lambda batch: rekeyed(batch, {b"k0": b"other"}))
    return Fault(planted, "out-0", 0, 0, LINEAGE)


def rekeyed(batch: bytes, keys: dict[bytes, bytes]) -> bytes:
    """The same batch with other keys."""
    header = header_of(batch)
    records = [
        Record(n, record.timestamp, keys.get(bytes(record.key or b""), bytes(record.key or b"")), record.value)
        for n, record in enumerate(decode_records(batch, 0, header))
    ]
    return bytes(
        build_batch(
            records,
            base_offset=header.base_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
        )
    )


FAULTS: dict[str, Callable[[], Fault]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        sequence_gap,
        duplicate,
        duplicate_content,
        epoch_back,
        write_after_fencing,
        no_producer_id,
        outside_transaction,
        not_transactional,
        hanging_transaction,
        marker_without_transaction,
        marker_epoch,
        coordinator_epoch,
        torn_transaction,
        abort_index,
        producer_snapshot,
        offset_hole,
        checksum,
        torn_batch,
        record_count,
        timestamp,
        offset_outcome,
        offset_end,
        offset_rewind,
        txn_state,
        leader_epoch,
        offset_index,
        time_index,
        epoch_checkpoint,
        checkpoint,
        topic_id,
        data_directory,
        lost_data,
        lineage_lost,
        lineage_duplicate,
        lineage_stray,
    )
}


def test_every_rule_is_here() -> None:
    assert FAULTS.keys() | NOT_FROM_FILES == RULES.keys()
    assert not FAULTS.keys() & NOT_FROM_FILES


def understood(command: str) -> bool:
    """Nothing is left to fill in but what only the operator knows, and the options of our own commands are theirs."""
    words = shlex.split(command)
    if words[0] != "minibroker":
        return words[0].endswith(".sh") and "--bootstrap-server" in words and "{" not in command
    if words[1] == "dump":
        return main(words[1:]) == 0
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    asked = parser.parse_args(words[2:])
    return words[1] == "transactions" and asked.bootstrap == "HOST:PORT"


def test_every_rule_of_the_audit_has_a_remedy() -> None:
    assert {rule.id for rule in RULES.values() if rule.remedies} == FAULTS.keys()


def audit(path: Path, out: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["audit", str(path), "--json", str(out), *options])
    return code, json.loads(out.read_text())["shown"]


@pytest.mark.parametrize("rule", thinned(list(FAULTS), 2))
def test_a_planted_fault(rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = FAULTS[rule]()
    path = write_files(fault.planted.files, tmp_path / "a directory")
    code, shown = audit(path, tmp_path / "summary.json", *fault.options)
    assert code == (fault.severity == ERROR)
    found = [one for one in shown if one["rule"] == rule and one["severity"] == fault.severity]
    places = [(f"{one['topic']}-{one['partition']}", one["first_offset"], one["last_offset"]) for one in found]
    assert (fault.log, fault.first, fault.last) in places
    one = found[places.index((fault.log, fault.first, fault.last))]
    promised = RULES[rule].evidence
    if "file" in promised:
        assert one["file"] in fault.planted.files
    if "producer" in promised:
        assert one["producer_id"] >= 0 or rule in ("no-producer-id", "producer-snapshot")
    if "byte" in promised:
        data = fault.planted.files[one["file"]]
        assert 0 <= one["position"] < len(data)
        if rule not in ("torn-batch", "offset-hole", "offset-index", "time-index"):
            assert struct.unpack_from(">q", data, one["position"])[0] == fault.first
    assert one["remedies"]
    for remedy in one["remedies"]:
        assert understood(remedy["command"]), remedy
        assert len(remedy["risk"].split()) > 3
    capsys.readouterr()
    words = shlex.split(one["show"])
    assert words[:2] == ["minibroker", "audit"]
    assert main(words[1:]) == 0
    out = capsys.readouterr().out
    assert f"{one['file']} " in out if one["file"] else re.search(r"\.log ", out)
    if rule == "offset-hole":
        assert [line.split(":")[0] for line in out.splitlines()] == [
            "nothing at these offsets; before them",
            "nothing at these offsets; after them",
        ]


@pytest.mark.parametrize(
    "options", [("--group", "ap"), ("--group", "app", "--topic", "in", "--topic", "out")], ids=["name", "topics"]
)
def test_a_group_whose_offsets_were_not_read_is_refused(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_files(Planted("loop").files, tmp_path / "data")
    assert main(["audit", str(path), "--lineage", "in=out", *options]) == 2
    said = f"minibroker audit: --group {options[1]}: no offset that it committed for in was read: "
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1


def test_the_loop_as_it_is(tmp_path: Path) -> None:
    path = write_files(Planted("loop").files, tmp_path / "data")
    assert audit(path, tmp_path / "s.json", *LINEAGE) == (0, [])
    code, shown = audit(path, tmp_path / "s.json", *LINEAGE, "--lineage-key", "value")  # which changes on the way
    assert (code, {one["rule"] for one in shown}) == (1, {"lineage-lost", "lineage-stray"})
