"""A request of an API that is not served is named in the log."""

from __future__ import annotations

from minibroker.handlers.table import apis
from minibroker.requests.not_served import NOT_SERVED, description


def test_an_api_is_named_and_share_groups_are() -> None:
    assert description(49) == "AlterClientQuotas (API key 49) is not served"
    assert description(76) == "ShareGroupHeartbeat (API key 76) is not served: this broker has no share groups"
    assert description(7000) == "API key 7000 is not served"


def test_what_is_served_is_not_in_the_table() -> None:
    assert not NOT_SERVED.keys() & apis().keys()
