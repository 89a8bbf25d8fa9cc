"""The transaction state message on disk: two versions, two layouts of the second, and every change between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from seed_client import ID, OK, SeedClient

from minibroker.coordinators.transactions import records
from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.states import ONGOING
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.releases.semantics import KAFKA, KIP, Semantics
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, decode_records, iter_batches, parse_header
from minibroker_storage.directory import WrongDirectory
from minibroker_storage.origin import Origin

Start = Callable[..., SeedClient]
LITERAL = replace(KIP, transaction_state_layout="kip-360", transaction_version=1)
FENCED = ErrorCode.PRODUCER_FENCED


def _values(client: SeedClient) -> list[bytes]:
    """Every value in the log of the id's partition of ``__transaction_state``."""
    index = client.cluster.broker.coordinators.transactions.host.partition_for(ID)
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


@pytest.mark.seed("360-7", semantics="kip")
def test_the_literal_layout_of_a_new_instance(start: Start) -> None:
    """By the text its last epoch is -1, and so is its last producer id, until it is bumped by its own request."""
    client = start(LITERAL, transaction_version=1)
    held = client.new()

    def last() -> tuple[str, str]:
        value = _values(client)[-1]
        return value[10:18].hex(), value[20:22].hex()  # last producer id, last epoch

    none = ("ff" * 8, "ffff")
    assert last() == none
    client.add(held)
    assert last() == none
    assert client.end(held, commit=True) == OK
    assert last() == none
    client.claim(held)
    assert last() == (held[0].to_bytes(8, "big").hex(), "0000")
    client.new()
    assert last() == none


@pytest.mark.parametrize("semantics", [KIP, LITERAL], ids=["kip", "kip-360"])
@pytest.mark.seed("360-7", semantics="kip")
def test_a_directory_of_version_0_goes_over_to_the_text(start: Start, semantics: Semantics) -> None:
    """The upgrade of the text: brokers that know version 1 read version 0, and write 1 once the level says so."""
    client = start("kafka", transaction_version=0)
    held = client.new()
    client.add(held)
    client.restart(semantics)
    assert client.cluster.broker.image.feature("transaction.version") == 0
    assert client.end(held, commit=True) == OK
    bumped = client.claim(held)
    assert client.claim(held) == bumped
    assert {value[:2] for value in _values(client)} == {b"\x00\x00"}
    assert _level(client, 1) == OK
    client.reload_coordinator()
    again = client.claim(bumped)
    assert _values(client)[-1][:2] == b"\x00\x01"
    client.reload_coordinator()
    assert client.claim(bumped) == again
    client.restart()
    assert client.claim(bumped) == again


def test_the_first_record_of_version_1_binds_a_directory_to_its_layout(start: Start) -> None:
    client = start(LITERAL, transaction_version=0)
    held = client.new()
    client.restart(KIP)  # version 0 is the same in both
    client.restart(LITERAL, transaction_version=1)
    bumped = client.claim(held)
    client.restart(LITERAL, transaction_version=0)
    client.claim(bumped)
    disk = client.cluster.disk
    client.stop()
    for _ in range(2):
        with pytest.raises(WrongDirectory, match=r"made with the transaction state layout 'kip-360'.*'kafka'"):
            SeedClient(KIP, disk=disk, transaction_version=0)
    again = SeedClient(LITERAL, disk=disk, transaction_version=0)
    again.stop()


@pytest.mark.seed("360-6", "360-7", semantics="kip")
def test_what_version_0_does_not_hold_lasts_as_long_as_its_coordinator(start: Start) -> None:
    client = start("kip", transaction_version=0)
    fresh = client.claim((7, 3))
    assert client.claim((7, 3)) == fresh
    client.reload_coordinator()
    assert client.init((7, 3))[0] == FENCED


@pytest.mark.seed("360-5", "360-7", semantics="kip")
def test_the_literal_layout_survives_a_failover_and_a_restart(start: Start) -> None:
    client = start(LITERAL, transaction_version=1)
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
    client = start(semantics, transaction_version=0)
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
    literal = start(LITERAL, transaction_version=1)
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
    for semantics, level in ((KAFKA, 2), (LITERAL, 1)):
        client = start(semantics, transaction_version=level)
        held = client.new()
        index = client.cluster.broker.coordinators.transactions.host.partition_for(ID)
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
