"""Answering as an older release of Kafka: what it lists, what it serves, what it does otherwise (KIP-360)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from seed_client import OK, TOPIC, SeedClient, produce_request

from minibroker.config.types import ConfigError
from minibroker.handlers.table import apis
from minibroker.releases.chain import RELEASES
from minibroker.requests.context import CloseConnection
from minibroker.server.options import make_options
from minibroker.server.service import Service
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

Start = Callable[..., SeedClient]
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
every = pytest.mark.parametrize("name", RELEASES)


def _as(start: Start, name: str) -> SeedClient:
    release = RELEASES[name]
    settings = {key: value for key, value in release.settings.items() if value is not None}
    return start(release.semantics, settings, transaction_version=release.semantics.transaction_version)


def _listed(client: SeedClient) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    version = 2 if "2.3" in client.semantics.name else 3
    return client.cluster.call(request, ApiVersionsResponse, version)


@every
@pytest.mark.seed("360-13", semantics="kafka")
def test_what_is_listed_is_served_and_nothing_above(start: Start, name: str) -> None:
    client = _as(start, name)
    listed = {row.api_key: row for row in _listed(client).api_keys}
    served = {api.name: api for api in apis().values()}
    for api_name, highest in RELEASES[name].apis.items():
        api = served[api_name]
        key = api.key
        if highest < api.min_version:
            assert key not in listed
            continue
        assert listed[key].max_version == min(highest, api.max_version), api.name
    assert {apis()[key].name for key in listed} <= set(RELEASES[name].apis)
    if name in ("2.3", "2.8"):
        held = client.new(name=None) if name == "2.8" else (0, 0)
        with pytest.raises(CloseConnection, match="is not served"):
            client.cluster.send(produce_request(held, 0, 1, 0, False, 0), 11)


def test_a_release_without_an_api_closes_the_connection(start: Start) -> None:
    client = _as(start, "2.8")
    assert client.described("nobody").error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # always served
    from minibroker_protocol.messages.metadata import DescribeTopicPartitionsRequest

    with pytest.raises(CloseConnection):
        client.cluster.send(DescribeTopicPartitionsRequest(topics=[]), 0)


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("3.9", {}, ErrorCode.UNSUPPORTED_VERSION),
        ("3.9", {"group.coordinator.rebalance.protocols": "classic,consumer"}, OK),
        ("4.0", {}, OK),
    ],
)
def test_the_protocol_of_consumer_groups_is_off_in_3_9(
    start: Start, name: str, settings: dict[str, str], code: ErrorCode
) -> None:
    """As live ones of 3.9.2 and 4.0.2 answered."""
    release = RELEASES[name]
    given = {key: value for key, value in release.settings.items() if value is not None} | settings
    cluster = start(release.semantics, given, transaction_version=release.semantics.transaction_version).cluster
    cluster.call(FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse, 1)
    join = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="A", member_epoch=0, subscribed_topic_names=[TOPIC], topic_partitions=[],
        rebalance_timeout_ms=1000,
    )  # fmt: skip
    assert cluster.call(join, ConsumerGroupHeartbeatResponse, 0).error_code == code


@pytest.mark.parametrize(("name", "highest"), [("2.3", 2), ("2.8", 3), ("4.3", 4)])
def test_a_newer_client_is_told_what_to_ask_with(start: Start, name: str, highest: int) -> None:
    """KIP-511: or it would ask in the same version for ever."""
    client = _as(start, name)
    frame = client.cluster.frame(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
    frame[2:4] = (5).to_bytes(2, "big")
    from minibroker.broker.connection import ConnectionInfo

    answered = client.cluster.dispatcher.dispatch(frame, ConnectionInfo())
    assert isinstance(answered, list)
    told, _ = ApiVersionsResponse.decode_from(b"".join(answered), 0, 8)
    assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(row.api_key, row.min_version, row.max_version) for row in told.api_keys] == [(18, 0, highest)]


@every
def test_features(start: Start, name: str) -> None:
    client = _as(start, name)
    answer = _listed(client)
    levels = {row.name: row.max_version_level for row in answer.finalized_features}
    expected = None if name in ("2.3", "2.8", "3.9") else 2
    assert levels.get("transaction.version") == expected
    assert client.cluster.broker.image.feature("transaction.version") == (expected or 0)


@pytest.mark.seed("360-13", "oos-1", "oos-2", semantics="kafka")
def test_2_3_loses_state_with_its_records(start: Start) -> None:
    client = _as(start, "2.3")
    code, held = client.init(version=1, name=None)
    assert code == OK
    client.produce(held, 0, version=7, transactional=False)
    client.cluster.broker.partition(TOPIC, 0).log.delete_records(-1)
    lost = client.produce(held, 1, version=7, transactional=False)
    assert (lost.code, lost.log_start_offset) == (UNKNOWN, 1)
    # What clients of that time do: the same epoch, sequence 0.
    assert client.produce(held, 0, version=7, transactional=False).code == OK
    assert client.produce((held[0], 1), 3, version=7, transactional=False).code == OUT_OF_ORDER
    client = _as(start, "2.8")
    held = client.new(name=None)
    client.produce(held, 0, version=9, transactional=False)
    client.cluster.broker.partition(TOPIC, 0).log.delete_records(-1)
    assert client.produce(held, 1, version=9, transactional=False).code == OK


@pytest.mark.seed("360-13", semantics="kafka")
def test_2_3_knows_no_claim_and_no_fencing_code(start: Start) -> None:
    client = _as(start, "2.3")
    with pytest.raises(CloseConnection):
        client.init((0, 0), version=3)
    _, old = client.init(version=1)
    client.init(version=1)
    assert client.add(old, version=1) == EPOCH
    assert client.end(old, commit=True, version=1) == EPOCH


@pytest.mark.parametrize("name", ["2.8", "3.9", "4.0", "4.3", "4.4"])
@pytest.mark.seed("360-5", "360-13", semantics="kafka")
def test_no_release_logs_the_last_epoch(start: Start, name: str) -> None:
    client = _as(start, name)
    held = client.new()
    bumped = client.claim(held)
    assert client.claim(held) == bumped
    client.reload_coordinator()
    assert client.init(held)[0] == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(("name", "code"), [("2.8", OK), ("3.9", ErrorCode.INVALID_TXN_STATE)])
def test_verification_came_with_3_6(start: Start, name: str, code: ErrorCode) -> None:
    client = _as(start, name)
    assert client.produce(client.new(), 0, version=9).code == code


@pytest.mark.seed("360-13", semantics="kip")
def test_the_texts_belong_to_no_release() -> None:
    with pytest.raises(ConfigError, match="no release of Kafka has the semantics kip"):
        Service(make_options(semantics="kip", as_version="2.3"))


def test_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"'1\.0' is not one of 2\.3, 2\.8, 3\.9, 4\.0, 4\.3"):
        Service(make_options(as_version="1.0"))
    with pytest.raises(ConfigError, match=r"no transaction\.version above 0, not 2"):
        Service(make_options(as_version="3.9", transaction_version=2))
    given = {"transaction.partition.verification.enable": "true"}
    assert Service(make_options(as_version="2.8", config=given)).settings.get_boolean(next(iter(given)))
    assert not Service(make_options(as_version="2.8")).settings.get_boolean(next(iter(given)))
