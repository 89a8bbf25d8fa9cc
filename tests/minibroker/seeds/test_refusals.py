"""Each refusal can be asked for its reason: what was expected, what came."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from seed_client import OK, SeedClient

from minibroker.kernel.refusals import Refusal, Refusals
from minibroker_protocol.errors import ErrorCode

Start = Callable[..., SeedClient]


def _last(client: SeedClient) -> Refusal:
    return list(client.cluster.broker.refusals)[-1]


def test_what_was_expected_and_what_came(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    client = start("kafka")
    assert len(client.cluster.broker.refusals) == 0
    held = client.new()
    client.add(held)
    assert client.produce(held, 0).code == OK
    assert len(client.cluster.broker.refusals) == 0
    with caplog.at_level(logging.DEBUG, "minibroker.kernel.refusals"):
        client.produce(held, 5)
    gap = _last(client)
    assert (gap.api, gap.api_version, gap.subject) == ("Produce", 11, "t-0")
    assert (gap.error, gap.code, gap.client_id) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", 45, "test")
    assert "expected sequence 1, got 5 at epoch 0" in gap.reason
    assert gap.reason in caplog.text
    client.end((held[0], 9), commit=True, version=1)
    fenced = _last(client)
    assert (fenced.api, fenced.subject) == ("EndTxn", "tx")
    assert (fenced.code, fenced.error) == (47, "INVALID_PRODUCER_EPOCH")  # as sent in version 1
    assert "epoch 9" in fenced.reason
    assert "epoch 0" in fenced.reason
    client.commit_offset((held[0], 4), 1)
    assert _last(client).api == "TxnOffsetCommit"
    client.described("nobody")
    assert "nobody" in _last(client).reason


def test_a_number_that_is_none_of_kafkas(start: Start) -> None:
    from dataclasses import replace

    from minibroker.releases.semantics import KIP

    client = start(replace(KIP, fenced_code=999))
    held = client.new()
    client.new()
    assert client.add(held) == 999
    assert (_last(client).code, _last(client).error) == (999, "PRODUCER_FENCED")


def test_the_verification_says_who_refused(start: Start) -> None:
    client = start("kafka")
    held = client.new()
    assert client.produce(held, 0, version=11).code == ErrorCode.TRANSACTION_ABORTABLE
    assert "TRANSACTION_ABORTABLE" in _last(client).reason


def test_only_the_last_ones_are_kept() -> None:
    kept = Refusals(kept=2)
    for number in range(3):
        kept.note(
            Refusal(
                time_ms=number,
                node_id=1,
                api="Produce",
                api_version=9,
                client_id=None,
                subject="t-0",
                code=45,
                error="OUT_OF_ORDER_SEQUENCE_NUMBER",
                reason="why",
            )
        )
    assert [refusal.time_ms for refusal in kept] == [1, 2]
    assert str(next(iter(kept))) == "Produce v9 of t-0 refused with OUT_OF_ORDER_SEQUENCE_NUMBER (45): why"
    kept.clear()
    assert not len(kept)
