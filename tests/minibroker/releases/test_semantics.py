"""The semantics as settings: mixtures, what cannot hold together, and what a data directory is bound to."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from minibroker.config.keys import BROKER_KEYS, SEMANTICS_PREFIX
from minibroker.config.types import ConfigError
from minibroker.releases.semantics import (
    FIELDS,
    KAFKA,
    KIP,
    RECOVERABLE_TIMED_OUT_CODES,
    TRANSACTION_VERSION_FIELD,
    Semantics,
    TimedOutCode,
    parse_timed_out_codes,
)
from minibroker.server.options import make_options
from minibroker.server.service import Service
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.producer_rules import ProducerRules


def _service(semantics: str = "kafka", level: int | None = None, **fields: str) -> Service:
    config = {f"{SEMANTICS_PREFIX}{name}": value for name, value in fields.items()}
    return Service(make_options(semantics=semantics, transaction_version=level, config=config))


def test_every_field_has_a_setting_and_unset_it_is_the_presets() -> None:
    for spec in FIELDS:
        assert (f"{SEMANTICS_PREFIX}{spec.name}" in BROKER_KEYS) == (spec.name != TRANSACTION_VERSION_FIELD)
        assert spec.doc
    assert _service("kafka").semantics is KAFKA
    assert _service("kip").semantics is KIP


def test_the_table_has_the_fields_of_both_classes_and_their_values() -> None:
    without_row = {"name", "producer", "advertised", "producer_id_expiration_ms", "verification_enabled"}
    hints = get_type_hints(Semantics) | get_type_hints(ProducerRules)
    values = {name: get_args(hint) if get_origin(hint) is Literal else () for name, hint in hints.items()}
    values["stale_sequence_error"] = ("OUT_OF_ORDER_SEQUENCE_NUMBER", "DUPLICATE_SEQUENCE_NUMBER")
    rows = {spec.name: spec.choices for spec in FIELDS}
    assert rows == {name: values[name] for name in hints if name not in without_row}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("persist_last_epoch", "false", False),
        ("timeout_keeps_last_epoch", "always", "always"),
        ("timed_out_codes", "recoverable", RECOVERABLE_TIMED_OUT_CODES),
        ("timed_out_codes", "EndTxn:2:abort=49, AddOffsetsToTxn:0=59", None),
        ("fenced_code", "91", 91),
        ("init_compares_epoch_while_ongoing", "true", True),
        ("join_while_ending", "refused after its producer", "refused after its producer"),
        ("leaders_add_for_version", "0", 0),
        ("remember_offered_producer_id", "true", True),
        ("check_unknown_producer", "true", True),
        ("log_start_with_unknown_producer", "true", True),
        ("advertise_describe_transaction_state", "true", True),
        ("producer_state_expiration", "transactional.id.expiration.ms", "transactional.id.expiration.ms"),
        ("marker_without_leader", "retried", "retried"),
        ("unknown_producer_sequence", "unknown_producer_id", "unknown_producer_id"),
        ("stale_sequence_error", "DUPLICATE_SEQUENCE_NUMBER", ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
        ("waiting_sequence_check", "unless_in_sequence", "unless_in_sequence"),
        ("verification_ends", "with_its_request", "with_its_request"),
        ("snapshot_all_batches", "true", True),
        ("rebuild_from", "first_segment", "first_segment"),
        ("expire_by", "arrival", "arrival"),
    ],
)
def test_a_mixture(name: str, text: str, value: object) -> None:
    mixture = _service("kafka", **{name: text}).semantics
    (spec,) = [f for f in FIELDS if f.name == name]
    if value is not None:
        assert spec.of(mixture) == value
    changed = {f.name for f in FIELDS if f.of(mixture) != f.of(KAFKA)}
    assert changed == {name}


def test_a_table_of_timed_out_codes() -> None:
    rows = parse_timed_out_codes("EndTxn:2:abort=49,AddOffsetsToTxn:0=59")
    assert rows == (TimedOutCode(26, 2, "abort", 49), TimedOutCode(25, 0, None, 59))
    mixture = _service("kip", timed_out_codes="EndTxn:2:abort=49,EndTxn:0=59").semantics
    codes = [mixture.timed_out_code(26, v, e) for v, e in ((1, "abort"), (2, "abort"), (2, "commit"))]  # type: ignore[arg-type]
    assert codes == [59, 49, 59]
    assert mixture.timed_out_code(24, 3) is None


@pytest.mark.parametrize("text", ["Fetch:0=49", "EndTxn=49", "EndTxn:1:never=49", "EndTxn:x=1", "sometimes"])
def test_a_table_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"minibroker\.semantics\.timed_out_codes: .* is neither none, recoverable"):
        _service(timed_out_codes=text)


@pytest.mark.parametrize(
    ("semantics", "level", "fields", "reason"),
    [
        ("kafka", 1, {"timed_out_codes": "recoverable"}, "timed_out_codes name an epoch"),
        ("kip", None, {"timed_out_codes": "draft"}, "both use 90"),
        ("kafka", None, {"transaction_state_layout": "kip-360"}, "needs transaction.version 1 or 0"),
        (
            "kip",
            1,
            {"transaction_state_layout": "kip-360", "persist_last_epoch": "false"},
            "always holds the last epoch",
        ),
    ],
)
def test_what_cannot_hold_together(semantics: str, level: int | None, fields: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        _service(semantics, level, **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("expire_by", "mood"), ("persist_last_epoch", "maybe")])
def test_values_out_of_range(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{SEMANTICS_PREFIX}{name}"):
        _service(**{name: value})


@pytest.mark.parametrize(
    ("level", "row", "reason"),
    [
        (1, "EndTxn:5:commit=120", "with transaction.version 1 clients send EndTxn up to version 4"),
        (1, "Produce:12=47", "with transaction.version 1 clients send Produce up to version 11"),
        (1, "TxnOffsetCommit:5=120", "with transaction.version 1 clients send TxnOffsetCommit up to version 4"),
        (2, "EndTxn:6=49", "with transaction.version 2 clients send EndTxn up to version 5"),
        (2, "AddPartitionsToTxn:4=59", "with transaction.version 2 clients send AddPartitionsToTxn up to version 3"),
        (2, "AddOffsetsToTxn:5=59", "with transaction.version 2 clients send AddOffsetsToTxn up to version 4"),
        (2, "Produce:3:commit=49", "Produce neither commits nor aborts"),
        (2, "InitProducerId:4=59", "is the claim of the next one"),
        (2, "EndTxn:0=49,EndTxn:0:commit=49,EndTxn:0:abort=49", "other rows stand before it in every version"),
        (2, "TxnOffsetCommit:0=59,TxnOffsetCommit:0=120", "other rows stand before it in every version"),
    ],
)
def test_a_row_that_can_never_act_is_refused(level: int, row: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"can never act: .*{reason}") as caught:
        _service("kip", level, timed_out_codes=row)
    assert "\n" not in str(caught.value)


def test_rows_of_transaction_version_2_act_there() -> None:
    table = "EndTxn:5:commit=120,EndTxn:5:abort=0,Produce:12=47,TxnOffsetCommit:5=120"
    semantics = _service("kip", 2, timed_out_codes=table).semantics
    assert [semantics.timed_out_code(28, version) for version in (4, 5)] == [None, 120]


@pytest.mark.parametrize("row", ["Produce:3=0", "EndTxn:0=0", "EndTxn:2:commit=0", "TxnOffsetCommit:0=0"])
def test_only_an_abort_can_be_taken_as_done(row: str) -> None:
    with pytest.raises(ConfigError, match="which holds for an abort only"):
        _service("kip", timed_out_codes=row)


def test_produce_can_only_answer_with_codes_of_kafka() -> None:
    with pytest.raises(ConfigError, match="999 is none of Kafka's error codes"):
        _service("kip", timed_out_codes="Produce:0=999")
    with pytest.raises(ConfigError, match="999 is none of Kafka's error codes"):
        _service("kip", timed_out_codes="TxnOffsetCommit:0=999")
    assert _service("kip", timed_out_codes="EndTxn:0=999").semantics.timed_out_code(26, 0) == 999


async def test_a_directory_at_another_level_is_refused_too(tmp_path: Path) -> None:
    from minibroker.server.service import StartError

    data_dir = str(tmp_path / "data")
    older = Service(make_options(data_dir=data_dir, transaction_version=0))
    await older.start()
    await older.stop()
    config = {f"{SEMANTICS_PREFIX}timed_out_codes": "recoverable"}
    with pytest.raises(StartError, match=r"has transaction\.version 0: timed_out_codes name an epoch"):
        await Service(make_options(data_dir=data_dir, config=config)).start()
    raised = Service(make_options(data_dir=data_dir, config=config, transaction_version=2))
    await raised.start()
    await raised.stop()


def test_a_dump_reads_the_literal_layout() -> None:
    from minibroker.coordinators.transactions import records
    from minibroker.coordinators.transactions.metadata import TransactionMetadata
    from minibroker.coordinators.transactions.states import EMPTY, ONGOING
    from minibroker_storage.dump_decoders import TRANSACTIONS, decode_coordinator_record

    for state, partitions in ((EMPTY, frozenset[tuple[str, int]]()), (ONGOING, frozenset({("topic", 3), ("t", 0)}))):
        for producer_id, previous in itertools.product((0, 3, 1 << 40), (-1, 0, 1, 2, 3, 255, 1 << 40)):
            metadata = TransactionMetadata(
                transactional_id="tx",
                producer_id=producer_id,
                producer_epoch=2,
                previous_producer_id=previous,
                last_producer_epoch=1,
                timeout_ms=60_000,
                state=state,
                partitions=partitions,
                last_update_ms=1_700_000_000_000,
            )
            record = records.record_of(metadata, value_version=1, with_last_epoch=True, layout="kip-360")
            row = decode_coordinator_record(TRANSACTIONS, record.key_bytes(), record.value_bytes())
            assert row is not None
            assert (row["type"], row["key"]["transactional_id"]) == ("LiteralTransactionLog", "tx")
            assert (row["value"]["producer_id"], row["value"]["last_epoch"]) == (producer_id, 1)
            assert row["value"]["last_producer_id"] == previous
            kafkas = records.record_of(metadata, value_version=1, with_last_epoch=True)
            row = decode_coordinator_record(TRANSACTIONS, kafkas.key_bytes(), kafkas.value_bytes())
            assert row is not None
            assert (row["type"], row["value"]["previous_producer_id"]) == ("TransactionLog", previous)


def test_the_audit_reads_the_literal_layout() -> None:
    """A state is the same row, whichever layout it was written in."""
    from minibroker.coordinators.transactions import records
    from minibroker.coordinators.transactions.metadata import TransactionMetadata
    from minibroker.coordinators.transactions.states import PREPARE_ABORT
    from minibroker.releases.semantics import TransactionStateLayout
    from minibroker.rules.rows import Log
    from minibroker.rules.scan import coordinator_rows
    from minibroker_protocol.records import Record, build_batch, parse_header
    from minibroker_storage.dump_decoders import TRANSACTIONS

    metadata = TransactionMetadata(
        transactional_id="tx",
        producer_id=7,
        producer_epoch=2,
        previous_producer_id=7,
        last_producer_epoch=1,
        timeout_ms=60_000,
        state=PREPARE_ABORT,
        partitions=frozenset({("topic", 3), ("t", 0)}),
        start_ms=1_700_000_000_000,
        last_update_ms=1_700_000_000_500,
    )
    rows = []
    layouts: tuple[TransactionStateLayout, ...] = ("kafka", "kip-360")
    for layout in layouts:
        record = records.record_of(metadata, value_version=1, with_last_epoch=True, layout=layout)
        batch = memoryview(build_batch([Record(0, 0, record.key_bytes(), record.value_bytes(), [])]))
        log = Log("", TRANSACTIONS, 0)
        (row,) = coordinator_rows(log, parse_header(batch, 0), batch)
        rows.append(row)
    assert rows[0] == rows[1]
    assert "PrepareAbort" in str(rows[1])
