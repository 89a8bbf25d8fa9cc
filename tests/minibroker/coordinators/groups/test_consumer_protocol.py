"""What consumers of the classic protocol put into JoinGroup and SyncGroup."""

from __future__ import annotations

import pytest

from minibroker.coordinators.groups.consumer.consumer_protocol import read_subscription, version_of
from minibroker_protocol.coordinator_records import ConsumerProtocolSubscription
from minibroker_protocol.errors import Malformed

HIGHEST = ConsumerProtocolSubscription.__versions__[1]


@pytest.mark.parametrize(
    ("blob", "version"),
    [("0000", 0), ("0001ff", 1), ("7fff", HIGHEST), (f"{HIGHEST + 1:04x}", HIGHEST)],
)
def test_a_version_of_the_future_is_read_as_the_highest_known(blob: str, version: int) -> None:
    assert version_of(bytes.fromhex(blob)) == version


@pytest.mark.parametrize("blob", ["", "00", "ffff", "8000"])
def test_what_has_no_version(blob: str) -> None:
    with pytest.raises(Malformed):
        version_of(bytes.fromhex(blob))


def test_what_a_later_version_has_behind_is_left_alone() -> None:
    said = ConsumerProtocolSubscription(topics=["t"], user_data=b"u")
    blob = (HIGHEST + 1).to_bytes(2, "big") + said.encode(HIGHEST) + b"more"
    assert read_subscription(blob).topics == ["t"]
