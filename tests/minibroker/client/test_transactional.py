"""What a transactional producer asks of a cluster; more of it is tested with the sink that uses it."""

from __future__ import annotations

import pytest

from minibroker.client.transactional import TransactionalClient
from minibroker.testing.embedded import Minibroker
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch


def test_one_transaction() -> None:
    with Minibroker(ephemeral=True, topics={"t": 1}) as broker, TransactionalClient(broker.bootstrap_servers) as client:
        assert client.transaction_version() == 2
        producer = client.init_producer_id("id", 60_000)
        assert client.committed("g", "t", 0) is None
        batch = build_batch(
            [Record(value=b"v")],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        assert [client.produce(producer, "t", 0, bytes(batch)) for _ in range(2)] == [0, 0]
        client.commit_offset(producer, "g", "t", 0, 7, "note")
        client.patience = 0
        with pytest.raises(ApiError, match="UNSTABLE_OFFSET_COMMIT"):
            client.committed("g", "t", 0)
        client.patience = 60
        client.end(producer, commit=True)
        client.end(producer, commit=True)
        with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
            client.end(producer, commit=False)
        assert client.committed("g", "t", 0) == (7, "note")
        with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
            client.produce(producer, "t", 0, bytes(batch))
