"""HOST:PORT, read in one place."""

from __future__ import annotations

import pytest

from minibroker.kernel.addresses import Address, format_address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost:9092", ("localhost", 9092)), ("[::1]:1", ("::1", 1)), ("::1:65535", ("::1", 65535))],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "é..x", "a\0b", "."])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_address(f"{host}:9092")


@pytest.mark.parametrize("host", ["a", "a.", "a" * 63 + ".b", "é.x", "k_1", "10.0.0.1"])
def test_what_is_a_host(host: str) -> None:
    assert parse_address(f"{host}:9092") == (host, 9092)


@pytest.mark.parametrize(
    "text", ["", "host", ":9092", "host:", "host:0", "host:65536", "host:-1", "host:٣", "host:²", "host:" + "9" * 5000]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_address(text)


def test_a_port_that_is_free_and_a_host_that_is_any() -> None:
    assert parse_address("host:0", least_port=0) == ("host", 0)
    assert parse_address(":9092", any_host=True) == ("", 9092)
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_address("", any_host=True)
