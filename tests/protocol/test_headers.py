from __future__ import annotations

import pytest

from minibroker_protocol.errors import Malformed
from minibroker_protocol.headers import (
    encode_response_header,
    first_flexible_version,
    parse_request_header,
)
from minibroker_protocol.messages.headers import RequestHeader, ResponseHeader
from minibroker_protocol.registry import registry


@pytest.mark.parametrize("client_id", [None, "", "client-1", "kä→"])
def test_every_api_and_version(client_id: str | None) -> None:
    for key, (request, _) in registry().items():
        for version in range(request.__versions__[0], request.__versions__[1] + 1):
            header = RequestHeader(
                request_api_key=key, request_api_version=version, correlation_id=-7, client_id=client_id
            )
            wire = header.encode(2 if version >= request.__flexible__ else 1)
            assert parse_request_header(wire + b"\x05body") == (key, version, -7, client_id, len(wire))
            assert parse_request_header(memoryview(wire)) == (key, version, -7, client_id, len(wire))


def test_tagged_fields_are_skipped() -> None:
    wire = bytes.fromhex("0000 0009 00000001 ffff" + "02 00 01 aa c801 82 01") + bytes(130)
    assert parse_request_header(wire + b"x") == (0, 9, 1, None, len(wire))


def test_an_unknown_api_is_read_as_header_1() -> None:
    assert parse_request_header(bytes.fromhex("03e7 0063 00000001 0001 61 ff")) == (999, 99, 1, "a", 11)


def test_an_api_versions_request_from_the_future_has_header_2() -> None:
    assert parse_request_header(bytes.fromhex("0012 0009 00000001 0001 61 00 ff")) == (18, 9, 1, "a", 12)


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("", "0 bytes are too short"),
        ("0000 0009 00000001 00", "9 bytes are too short"),
        ("0000 0009 00000001 0005 61", "RequestHeader of API 0 v9: client_id: length 5"),
        ("0000 0009 00000001 fffe", "RequestHeader of API 0 v9: client_id: length -2"),
        ("0000 0009 00000001 ffff", "10 bytes are too short"),
        ("0000 0009 00000001 ffff 01", "11 bytes are too short"),
        ("0000 0009 00000001 ffff 01 00 05 00", "14 bytes are too short"),
        ("0000 0009 00000001 ffff ffffffffff", "tagged fields: a varint above 2147483647"),
    ],
)
def test_malformed(wire: str, text: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_request_header(bytes.fromhex(wire))
    assert text in str(caught.value)


@pytest.mark.parametrize(("key", "version", "flexible"), [(18, 4, False), (18, 0, False), (0, 8, False), (0, 9, True)])
def test_response_header(key: int, version: int, flexible: bool) -> None:
    wire = ResponseHeader(correlation_id=-2).encode(int(flexible))
    assert encode_response_header(key, version, -2) == wire


def test_first_flexible_versions_are_kafkas() -> None:
    # As two live 4.3.1 brokers use them.
    known = {
        0: 9,
        1: 12,
        2: 6,
        3: 9,
        8: 8,
        9: 6,
        10: 3,
        11: 6,
        12: 4,
        13: 4,
        14: 4,
        15: 5,
        16: 3,
        18: 3,
        19: 5,
        20: 4,
        21: 2,
        22: 2,
        23: 4,
        24: 3,
        25: 3,
        26: 3,
        27: 1,
        28: 3,
        32: 4,
        42: 2,
        60: 0,
        61: 0,
        65: 0,
        66: 0,
        68: 0,
    }
    assert {key: first_flexible_version(key) for key in known} == known
    assert first_flexible_version(17) > 100
    assert first_flexible_version(47) > 100


@pytest.mark.parametrize("count", [1024, 1025])
def test_a_header_has_no_more_tagged_fields_than_are_read_at_once(count: int) -> None:
    tags = b"".join(bytes([number & 0x7F | 0x80, number >> 7, 0]) for number in range(count))
    frame = bytes.fromhex("0003 0009 00000001 ffff") + bytes([count & 0x7F | 0x80, count >> 7]) + tags
    if count > 1024:
        with pytest.raises(Malformed, match="RequestHeader: tagged fields: 1025, which is above 1024"):
            parse_request_header(frame)
    else:
        assert parse_request_header(frame)[4] == len(frame)
