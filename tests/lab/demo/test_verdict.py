"""The verdict is computed from records, so every way of being wrong shows in it."""

from __future__ import annotations

import gc
import json
import socket

import pytest

pytest.importorskip("aiokafka")
from minibroker_lab.demo.verdict import Unreadable, judge, read_back


def orders(*numbers: int) -> list[bytes]:
    return [json.dumps({"id": number, "amount": number * 10}).encode() for number in numbers]


def results(*numbers: int) -> list[bytes]:
    return [json.dumps({"id": number, "doubled": number * 20}).encode() for number in numbers]


def test_exactly_once() -> None:
    verdict = judge(orders(1, 2, 3), results(3, 1, 2), 1, expected_fenced=1)
    assert verdict.exactly_once
    assert verdict.lines() == [
        "records in                 3",
        "records out                3",
        "duplicates                 0",
        "losses                     0",
        "fenced producers           1",
        "verdict: exactly once",
    ]


@pytest.mark.parametrize(
    ("out", "fenced", "counts"),
    [
        (results(1, 2, 2, 3, 3, 3), 1, (3, 0, 0)),
        (results(1, 3), 1, (0, 1, 0)),
        (results(1, 2, 3, 4), 1, (0, 0, 1)),
        (results(1, 1, 2), 1, (1, 1, 0)),
        ([*results(1, 2), json.dumps({"id": 3, "doubled": 61}).encode()], 1, (0, 1, 1)),
        (results(1, 2, 3), 0, (0, 0, 0)),
        (results(1, 2, 3), 2, (0, 0, 0)),
    ],
)
def test_everything_else_is_not(out: list[bytes], fenced: int, counts: tuple[int, int, int]) -> None:
    verdict = judge(orders(1, 2, 3), out, fenced, expected_fenced=1)
    assert (verdict.duplicates, verdict.losses, verdict.strays) == counts
    assert not verdict.exactly_once
    assert verdict.lines()[-1] == "verdict: NOT exactly once"


def test_a_record_fed_twice_is_no_proof_either() -> None:
    assert not judge(orders(1, 1), results(1), 1, expected_fenced=1).exactly_once


def test_nothing_in_is_no_success() -> None:
    assert not judge([], [], 1, expected_fenced=1).exactly_once


def test_a_broker_that_is_gone_leaves_no_consumer_open(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        with pytest.raises(Unreadable, match="Unable to bootstrap"):
            read_back(f"127.0.0.1:{held.getsockname()[1]}", "t")
    gc.collect()
    assert "Unclosed" not in capsys.readouterr().err
