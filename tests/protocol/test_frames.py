from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.errors import Malformed
from minibroker_protocol.frames import FrameSplitter


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_any_cut_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, bodies))
    splitter = FrameSplitter(100)
    frames: list[bytearray] = []
    pos = turn = 0
    while pos < len(stream):
        step = cuts[turn % len(cuts)]
        frames += splitter.feed(stream[pos : pos + step])
        pos += step
        turn += 1
    assert frames == bodies
    assert splitter.pending == 0


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_bad_size_is_refused_as_soon_as_it_is_known(size: int) -> None:
    splitter = FrameSplitter(100)
    wire = size.to_bytes(4, "big", signed=True)
    assert splitter.feed(wire[:3]) == []
    with pytest.raises(Malformed, match=f"size {size} is not between 0 and 100"):
        splitter.feed(wire[3:])


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "'GET', so the client speaks HTTP"),
        (b"POST /v1", "'POST', so the client speaks HTTP"),
        (b"PRI * HTTP/2.0\r\n", "'PRI', so the client speaks HTTP"),
        (b"\x16\x03\x01\x02\0", "begin a TLS handshake"),
        (b"\x7f\xff\xff\xff", "is not between 0 and 100$"),
        (b"\xff\xff\xff\xff", "size -1 is not between 0 and 100$"),
    ],
)
def test_another_protocol_is_named(sent: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        FrameSplitter(100).feed(sent)


def test_limits_are_inclusive_and_what_is_missing_is_counted() -> None:
    splitter = FrameSplitter(100)
    assert splitter.feed(framed(b"") + framed(b"x" * 100) + framed(b"yz")[:5]) == [b"", b"x" * 100]
    assert splitter.pending == 5
    assert splitter.feed(b"z") == [b"yz"]


def test_frames_before_a_bad_size_are_not_lost() -> None:
    splitter = FrameSplitter(100)
    assert splitter.feed(framed(b"good") + b"\xff\xff\xff\xff") == [b"good"]
    with pytest.raises(Malformed, match="size -1 is not"):
        splitter.feed(b"")
