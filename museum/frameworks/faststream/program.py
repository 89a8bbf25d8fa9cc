import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage, KafkaResponse

broker = KafkaBroker(os.environ["BOOTSTRAP_SERVERS"])


@broker.subscriber(
    os.environ["INPUT_TOPIC"],
    group_id=os.environ["GROUP"],
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
@broker.publisher(os.environ["OUTPUT_TOPIC"])
async def copy(body: bytes, message: KafkaMessage) -> KafkaResponse:
    return KafkaResponse(body.upper(), key=message.raw_message.key())


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
