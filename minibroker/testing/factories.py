"""Types of the pytest plugin's fixtures that make clients, to annotate the arguments of tests with.

Never imports a client: a type checker knows them where they are installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from confluent_kafka import Consumer, Producer


class ConfluentProducerFactory(Protocol):
    """The fixture `confluent_producer`."""

    def __call__(self, config: Mapping[str, Any] | None = None) -> Producer: ...


class ConfluentConsumerFactory(Protocol):
    """The fixture `confluent_consumer`."""

    def __call__(self, config: Mapping[str, Any] | None = None) -> Consumer: ...


class AiokafkaProducerFactory(Protocol):
    """The fixture `aiokafka_producer`; config: arguments of `AIOKafkaProducer`."""

    def __call__(self, **config: Any) -> AIOKafkaProducer: ...


class AiokafkaConsumerFactory(Protocol):
    """The fixture `aiokafka_consumer`; config: arguments of `AIOKafkaConsumer`."""

    def __call__(self, *topics: str, **config: Any) -> AIOKafkaConsumer: ...
