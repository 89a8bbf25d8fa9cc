"""Every API answers random requests, field by field, as Apache Kafka 4.4.0 did when they were recorded."""

from __future__ import annotations

import pytest
from lockstep_recorded import read, replayed

from minibroker.handlers.table import apis

KEPT = read()


@pytest.mark.parametrize("api", KEPT)
def test_random_requests_are_answered_as_kafka_answered_them(api: str) -> None:
    assert replayed(api, KEPT[api]) == KEPT[api]


def test_the_requests_of_every_api_were_recorded() -> None:
    served = {api.name for api in apis().values() if api.advertised and not api.request.__private__}
    assert served - KEPT.keys() == {"SaslHandshake", "SaslAuthenticate"}
