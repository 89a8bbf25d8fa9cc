"""librdkafka's mock cluster of one broker: prints bootstrap.servers=HOST:PORT and serves until it is ended."""

from __future__ import annotations

import signal

from confluent_kafka import Producer

owner = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
(broker,) = owner.list_topics(timeout=10).brokers.values()
print(f"bootstrap.servers={broker.host}:{broker.port}", flush=True)
signal.pause()
