"""A client that looks up a group's coordinator again and again and joins nothing is told of, once."""

from __future__ import annotations

import pytest
from group_client import FIRST_GROUP, GroupClient

from minibroker.coordinator_runtime import unused_lookups
from minibroker.coordinator_runtime.unused_lookups import UnusedLookups
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse


def look_up(client: GroupClient, group: str) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    (answer,) = client.call(request, FindCoordinatorResponse, 4).coordinators
    assert answer.error_code == 0


def test_the_third_lookup_without_a_member_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client = GroupClient()
    for _ in range(2):
        look_up(client, "shared")
    assert caplog.messages == []
    for _ in range(3):
        look_up(client, "shared")
    (line,) = caplog.messages
    assert "'shared' 3 times and has not joined" in line
    assert "no share groups" in line


def test_a_group_that_exists_is_looked_up_silently(caplog: pytest.LogCaptureFixture) -> None:
    client = GroupClient()
    client.stable()
    for _ in range(5):
        look_up(client, FIRST_GROUP)
    assert caplog.messages == []


def test_a_group_that_is_joined_in_between_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    lookups = UnusedLookups()
    for _ in range(2):
        lookups.unused("app", "g")
    lookups.used("app", "g")
    lookups.unused("app", "g")
    assert caplog.messages == []


def test_the_oldest_lookups_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_lookups, "_KEPT", 3)
    lookups = UnusedLookups()
    for number in range(9):
        lookups.unused("app", f"g{number}")
    assert len(lookups) == 3
