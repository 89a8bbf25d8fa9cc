"""Every error in an answer must have its reason among the broker's refusals."""

from __future__ import annotations

from minibroker.broker.broker import Broker
from minibroker.requests.answered_errors import errors_in
from minibroker_protocol.dsl import Response


def check_reasons(broker: Broker, answer: Response) -> list[int]:
    """The error codes in `answer`, AssertionError when `broker` kept no reason for one of them."""
    codes = [error.code for error in errors_in(answer)]
    if codes:
        missing = set(codes)
        for refusal in reversed(tuple(broker.refusals)):
            if refusal.reason != "no reason given":
                missing.discard(refusal.code)
            if not missing:
                break
        assert not missing, f"{type(answer).__name__}: no reason for {missing}"
    return codes
