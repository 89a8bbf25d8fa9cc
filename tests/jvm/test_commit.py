"""`minibroker transactions commit` against Apache Kafka."""

from __future__ import annotations

import pytest
from jvm import POMS
from real_kafka import real_kafka
from toolchain import Unavailable

pytestmark = pytest.mark.jvm

pytest.importorskip("confluent_kafka")

from abandoned import check_commit  # noqa: E402


@pytest.mark.parametrize("release", POMS)
def test_an_abandoned_transaction_is_committed(capsys: pytest.CaptureFixture[str], release: str) -> None:
    try:
        with real_kafka(release=release) as bootstrap:
            check_commit(bootstrap, capsys, bumps=True)
    except Unavailable as missing:
        pytest.skip(str(missing))
