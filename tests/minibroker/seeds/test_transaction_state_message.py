"""The transaction state message on disk: two versions, two layouts of the second, and every change between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from seed_client import ID, OK, SeedClient

from minibroker.cluster.metadata import TRANSACTION_STATE_TOPIC
from minibroker.coordinators.transactions import records
from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.states import ONGOING
from minibroker.semantics import KAFKA, KIP
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, decode_records, iter_batches, parse_header
from minibroker_storage.origin import Origin

Start = Callable[..., SeedClient]
LITERAL = replace(KIP, transaction_state_layout="kip-360", transaction_version=1)
FENCED = ErrorCode.PRODUCER_FENCED


def _values(client: SeedClient) -> list[bytes]:
    """Every value in the log of the id's partition of ``__transaction_state``."""
    index = client.cluster.broker.transactions.host.partition_for(ID)
    log = client.cluster.broker.partition(TRANSACTION_STATE_TOPIC, index).log
    data = log.read(log.log_start_offset, 1 << 20, bound=log.log_end_offset).records
    return [
        bytes(record.value)
        for position, _ in iter_batches(data)
        for record in decode_records(data, position, parse_header(data, position), max_bytes=1 << 20)
        if record.value is not None
    ]


def test_the_literal_layout_byte_by_byte() -> None:
    metadata = TransactionMetadata(
        transactional_id=ID,
        producer_id=3,
        producer_epoch=2,
        previous_producer_id=3,
        last_producer_epoch=1,
        timeout_ms=60_000,
        state=ONGOING,
        partitions=frozenset({("t", 1), ("t", 0)}),
        start_ms=5,
        last_update_ms=6,
    )
    record = records.record_of(metadata, value_version=1, with_last_epoch=True, layout="kip-360")
    fields = [
        "0001",  # version
        "0000000000000003",  # producer id
        "0000000000000003",  # last producer id
        "0002",  # current epoch
        "0001",  # last epoch
        "0000ea60",  # timeout
        "01",  # status
        "00000001" + "000174" + "00000002" + "00000000" + "00000001",  # partitions
        "0000000000000006",  # last update
        "0000000000000005",  # start
    ]
    value = record.value_bytes()
    assert value is not None
    assert value.hex() == "".join(fields)
    decoded = records.decode(record.key_bytes(), value, "kip-360")
    assert decoded is not None
    assert decoded.metadata == metadata
    assert records.record_of(metadata, value_version=0, with_last_epoch=True, layout="kip-360").value_bytes() == (
        records.record_of(metadata, value_version=0, with_last_epoch=True).value_bytes()
    )


@pytest.mark.seed("360-5", "360-7", semantics="kip")
def test_the_literal_layout_survives_a_failover_and_a_restart(start: Start) -> None:
    client = start(LITERAL)
    held = client.new()
    bumped = client.claim(held)
    assert _values(client)[-1][:2] == b"\x00\x01"
    client.reload_coordinator()
    assert client.claim(held) == bumped
    client.add(bumped)
    client.produce(bumped, 0)
    client.restart()
    assert client.described().state == "Ongoing"
    assert client.end(bumped, commit=True) == OK
    assert client.described().state == "CompleteCommit"


@pytest.mark.parametrize("semantics", [KAFKA, LITERAL], ids=["kafka", "kip-360"])
@pytest.mark.seed("360-7", semantics="kafka kip")
def test_versions_load_before_and_after_a_change_of_level(start: Start, semantics: object) -> None:
    """transaction.version 0 writes version 0 of the message, 1 writes version 1; each reads both."""
    plain = replace(semantics, remember_offered_producer_id=False)  # type: ignore[type-var]
    client = start(plain, transaction_version=0)
    held = client.new()
    bumped = client.claim(held)
    assert {value[:2] for value in _values(client)} == {b"\x00\x00"}
    client.restart(transaction_version=1)
    assert client.init(held)[0] == FENCED  # version 0 has no last epoch
    again = client.claim(bumped)
    assert again == (bumped[0], bumped[1] + 1)
    assert {value[:2] for value in _values(client)} == {b"\x00\x00", b"\x00\x01"}
    client.restart(transaction_version=1)
    assert client.claim(bumped) == again  # version 1 has it
    client.restart(transaction_version=0)
    assert client.claim(bumped) == again
    assert _values(client)[-1][:2] == b"\x00\x00"
    client.restart(transaction_version=0)
    assert client.init(bumped)[0] == FENCED


@pytest.mark.seed("360-7", semantics="kafka kip")
def test_a_change_of_level_while_it_runs(start: Start) -> None:
    """New records follow the level at once, old ones stay readable; a level that the layout cannot hold is refused."""
    client = start("kafka", transaction_version=0)
    held = client.new()
    assert _level(client, 1) == OK
    bumped = client.claim(held)
    assert [value[:2] for value in _values(client)] == [b"\x00\x00", b"\x00\x01"]
    assert _level(client, 0) == OK
    again = client.claim(bumped)
    client.reload_coordinator()
    assert client.claim(again) == (again[0], again[1] + 1)
    literal = start(LITERAL)
    assert _level(literal, 2) == ErrorCode.INVALID_UPDATE_VERSION
    assert _level(literal, 1) == OK


def _level(client: SeedClient, level: int) -> int:
    from minibroker_protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse

    now = client.cluster.broker.image.feature("transaction.version")
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=2 if level < now else 1
    )
    answer = client.cluster.call(UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse, 1)
    return answer.error_code or answer.results[0].error_code


@pytest.mark.parametrize("version", [2, 99])
@pytest.mark.seed("360-7", semantics="kafka kip")
def test_a_later_version_is_skipped_with_a_warning(
    start: Start, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    for semantics in (KAFKA, LITERAL):
        client = start(semantics)
        held = client.new()
        index = client.cluster.broker.transactions.host.partition_for(ID)
        partition = client.cluster.broker.partition(TRANSACTION_STATE_TOPIC, index)
        key, value = b"\x00\x00\x00\x02tx", version.to_bytes(2, "big") + b"whatever comes"
        batch = build_batch([Record(0, 0, key, value, [])], base_sequence=0)
        partition.append(batch, origin=Origin.COORDINATOR)
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            client.reload_coordinator()
        assert "unknown type or version" in caplog.text
        assert client.claim(held) == (held[0], held[1] + 1)


@pytest.mark.parametrize(("now", "level", "way", "code"), [(1, 2, 2, 95), (1, 2, 1, 0), (2, 1, 1, 95), (2, 1, 2, 0)])
def test_a_level_goes_the_way_the_request_says(start: Start, now: int, level: int, way: int, code: int) -> None:
    """UpgradeType 1 leads up, 2 down; the other way is INVALID_UPDATE_VERSION."""
    from minibroker_protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse

    client = start("kafka", transaction_version=now)
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=way
    )
    answer = client.cluster.call(UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse, 2)
    assert answer.error_code == code
    assert client.cluster.broker.image.feature("transaction.version") == (now if code else level)
