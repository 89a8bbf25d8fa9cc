"""Clients that know nothing of the proxy they go through: a transactional copy by each, with a commit whose answer is
lost."""

from __future__ import annotations

import pytest

from minibroker import Minibroker, Proxy
from minibroker.faults import DropReply

aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.clients

RECORDS = [b"%d" % number for number in range(50)]


async def test_aiokafka_copies_exactly_once(unique_group: str) -> None:
    with Minibroker(brokers=3, topics={"in": 3, "out": 3}, ephemeral=True) as brokers:
        async with Proxy(brokers.bootstrap_servers) as proxy:
            servers = {"bootstrap_servers": proxy.bootstrap_servers}
            async with aiokafka.AIOKafkaProducer(**servers) as source:
                for number, value in enumerate(RECORDS):
                    await source.send_and_wait("in", value, partition=number % 3)
            group = {"group_id": unique_group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
            lost = proxy.faults.inject("EndTxn", DropReply(), times=2)
            copied = 0
            async with (
                aiokafka.AIOKafkaProducer(**servers, transactional_id="copier") as producer,
                aiokafka.AIOKafkaConsumer("in", **servers, **group) as consumer,
            ):
                while copied < len(RECORDS):
                    messages = await consumer.getmany(timeout_ms=1000)
                    async with producer.transaction():
                        for place, batch in messages.items():
                            for message in batch:
                                await producer.send("out", message.value, partition=place.partition)
                        after = {place: batch[-1].offset + 1 for place, batch in messages.items()}
                        await producer.send_offsets_to_transaction(after, unique_group)
                    copied += sum(map(len, messages.values()))
            assert lost.fired >= 1
        values = [record.value for record in brokers.records("out", isolation="read_committed")]
        assert sorted(value or b"" for value in values) == sorted(RECORDS)
