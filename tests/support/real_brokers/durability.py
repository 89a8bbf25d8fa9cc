"""What a topic holds, read by a real client that starts at its beginning."""

from __future__ import annotations

import time
from typing import Any

SECONDS = 30.0


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[bytes]:
    """Every value from the start to the end that each partition had when asked, partition by partition in order."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-all",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    values: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
        ended: set[int] = set()
        deadline = time.monotonic() + SECONDS
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            message: Any = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values[message.partition()].append(message.value())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        consumer.close()
    return [value for index in range(partitions) for value in values[index]]
