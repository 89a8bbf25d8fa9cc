"""What clients are told while the group coordinator reads its log, API by API and version by version (Kafka's KafkaApis
and GroupCoordinatorService)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from group_client import GroupClient

from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

NONE, LOADING, UNAVAILABLE = (
    ErrorCode.NONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


@pytest.fixture(scope="module")
def client() -> Iterator[GroupClient]:
    """It has begun to read more than it reads at once."""
    before = GroupClient()
    for number in range(40):
        assert before.commit({("t", 0): number}, metadata="m" * 4096) == [NONE]
    client = before.restart()
    assert client.broker.coordinators.groups.host.loading
    yield client
    assert client.broker.coordinators.groups.host.loading
    client.advance(0)
    client.stop()


def _join(client: GroupClient, version: int) -> int:
    return client.join(version=version).error_code


def _sync(client: GroupClient, version: int) -> int:
    return client.sync("x", 1, version=version, protocol_type="consumer", protocol_name="range").error_code


def _heartbeat(client: GroupClient, version: int) -> int:
    return client.heartbeat("x", 1)


def _leave(client: GroupClient, version: int) -> int:
    return client.leave(("x", None))[0]


def _commit(client: GroupClient, version: int) -> int:
    (code,) = client.commit({("t", 0): 1}, version=version)
    return code


def _commit_in_txn(client: GroupClient, version: int) -> int:
    (code,) = client.commit_in_txn((5, 0), {("t", 0): 1}, version=version)
    return code


def _fetch(client: GroupClient, version: int) -> int:
    request = m.OffsetFetchRequest(group_id="g", topics=[])
    return client.call(request, m.OffsetFetchResponse, version).error_code


def _describe(client: GroupClient, version: int) -> int:
    request = m.DescribeGroupsRequest(groups=["g"], include_authorized_operations=False)
    return client.call(request, m.DescribeGroupsResponse, version).groups[0].error_code


@pytest.mark.parametrize(
    ("ask", "version", "code"),
    [
        *((_join, version, LOADING) for version in (0, 4, 9)),
        *((_sync, version, LOADING) for version in (0, 5)),
        (_heartbeat, 4, NONE),  # a member that took it for a failure would leave
        (_leave, 5, LOADING),
        *((_commit, version, LOADING) for version in (2, 9)),
        *((_commit_in_txn, version, UNAVAILABLE) for version in (0, 1)),
        *((_commit_in_txn, version, LOADING) for version in (2, 3, 5)),
        (_fetch, 7, LOADING),
        (_describe, 5, LOADING),
    ],
)
def test_what_is_said_while_the_coordinator_reads_its_log(
    client: GroupClient, ask: Any, version: int, code: ErrorCode
) -> None:
    assert ErrorCode(ask(client, version)) is code
