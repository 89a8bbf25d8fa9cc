"""A client that looks up a group's coordinator and joins nothing is known."""

from __future__ import annotations

from group_client import FIRST_GROUP, GroupClient

from minibroker.coordinator_runtime.unused_lookups import UnusedLookups
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse


def look_up(client: GroupClient, key: str, *, key_type: int = 0) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    (answer,) = client.call(request, FindCoordinatorResponse, 4, client_id="app").coordinators
    assert answer.error_code == 0


def test_a_lookup_is_unused_until_a_member_joins() -> None:
    client = GroupClient()
    for group in ("shared", FIRST_GROUP, FIRST_GROUP):
        look_up(client, group)
    look_up(client, "transactional", key_type=1)

    def unused() -> list[str]:
        found = client.broker.coordinators.groups.unused_lookups()
        return [group for client_id, group in found if client_id == "app"]

    assert unused() == ["shared", FIRST_GROUP]
    client.stable()
    assert unused() == ["shared"]
    look_up(client, FIRST_GROUP)
    assert unused() == ["shared"]


def test_the_oldest_lookups_are_forgotten() -> None:
    lookups = UnusedLookups(most=3)
    for number in range(9):
        lookups.add("app", f"g{number}")
    lookups.add("app", "g7")
    assert [*lookups] == [("app", "g6"), ("app", "g8"), ("app", "g7")]
