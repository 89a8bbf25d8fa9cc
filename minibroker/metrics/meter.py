"""Counts of one broker's requests and responses: Kafka's RequestMetrics and BrokerTopicMetrics."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from minibroker.metrics.names import Bean, Sample
from minibroker.requests.answered_errors import errors_in
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchResponse
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import CorruptBatch, iter_batches

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker_protocol.dsl import Response

_KEPT = 1028  # as many values as a histogram of Kafka's keeps
_QUANTILES: Final = (0.50, 0.75, 0.95, 0.98, 0.99, 0.999)
_EVERY_TOPIC = ""

_EXPECTED_OF_PRODUCE: Final = frozenset(
    {
        ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_ID,
    }
)  # fmt: skip
_EXPECTED_OF_FETCH: Final = frozenset(
    {
        ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)  # fmt: skip
"""Errors that Kafka's ReplicaManager does not count as a failed request of a partition."""
_REJECTED: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Histogram:
    """How many values there were, and the last of them."""

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[float] = deque(maxlen=_KEPT)

    def add(self, value: float) -> None:
        self.count += 1
        self._last.append(value)

    def quantiles(self) -> Iterator[tuple[float, float]]:
        ordered = sorted(self._last)
        for quantile in _QUANTILES:
            yield quantile, ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


class RequestMeter:
    """`Link` that counts each answer when it is made, before a fault alters its bytes. Requests of other brokers do not
    come through it.

    monotonic_ms: for durations.
    """

    def __init__(self, broker: Broker, monotonic_ms: Callable[[], float]) -> None:
        self._broker = broker
        self._monotonic_ms = monotonic_ms
        self._requests: Counter[tuple[str, int]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._histograms: dict[tuple[str, str], _Histogram] = {}
        self._topics: Counter[tuple[str, str]] = Counter()

    def around(self, api: Api, onward: Handler) -> Handler:
        def handle(ctx: RequestContext, request: Any) -> Answer:
            incoming = _incoming(request) if isinstance(request, ProduceRequest) else {}
            ctx.watchers = (*ctx.watchers, partial(self._answered, api, ctx, self._monotonic_ms(), incoming))
            return onward(ctx, request)

        return handle

    def _answered(
        self,
        api: Api,
        ctx: RequestContext,
        started: float,
        incoming: dict[tuple[Any, int], tuple[int, int]],
        response: Response | None,
        _size: int,
    ) -> None:
        took_ms = self._monotonic_ms() - started
        # Kafka has two metrics for Fetch: one of all requests, one of those of consumers.
        for name in (api.name, *(("FetchConsumer",) if api.name == "Fetch" else ())):
            self._requests[name, ctx.api_version] += 1
            self._observe("TotalTimeMs", name, took_ms)
            self._observe("RequestBytes", name, ctx.size)
        if response is None:  # acks=0, of which an error would have closed the connection
            for (topic, _), (size, messages) in incoming.items():
                name = topic if isinstance(topic, str) else self._broker.image.topic_names.get(topic, _EVERY_TOPIC)
                self._mark("TotalProduceRequestsPerSec", name)
                self._taken(name, size, messages)
            return
        errors = errors_in(response)
        for error in errors:
            self._errors[api.name, _name_of(error.code)] += 1
        if not errors:
            self._errors[api.name, ErrorCode.NONE.name] += 1
        if isinstance(response, ProduceResponse):
            self._produced(response, incoming)
        elif isinstance(response, FetchResponse):
            self._fetched(response)

    def _observe(self, what: str, request: str, value: float) -> None:
        histogram = self._histograms.get((what, request))
        if histogram is None:
            histogram = self._histograms[what, request] = _Histogram()
        histogram.add(value)

    def _produced(self, response: ProduceResponse, incoming: dict[tuple[Any, int], tuple[int, int]]) -> None:
        for topic in response.responses:
            name = self._topic(topic)
            for partition in topic.partition_responses:
                code = partition.error_code
                size, messages = incoming.get((topic.name or topic.topic_id, partition.index), (0, 0))
                self._mark("TotalProduceRequestsPerSec", name)
                if code == ErrorCode.NONE:
                    self._taken(name, size, messages)
                elif code in _REJECTED:
                    self._mark("BytesRejectedPerSec", name, size)
                elif code not in _EXPECTED_OF_PRODUCE:
                    self._mark("FailedProduceRequestsPerSec", name)

    def _taken(self, topic: str, size: int, messages: int) -> None:
        self._mark("BytesInPerSec", topic, size)
        self._mark("MessagesInPerSec", topic, messages)

    def _fetched(self, response: FetchResponse) -> None:
        for topic in response.responses:
            name = self._topic(topic)
            for partition in topic.partitions:
                self._mark("TotalFetchRequestsPerSec", name)
                size = sum(map(len, _buffers(partition.records)))
                if size:
                    self._mark("BytesOutPerSec", name, size)
                if partition.error_code not in _EXPECTED_OF_FETCH:
                    self._mark("FailedFetchRequestsPerSec", name)

    def _topic(self, topic: Any) -> str:
        """The name of a topic that newer versions give by its id."""
        return str(getattr(topic, "topic", None) or getattr(topic, "name", None) or "") or str(
            self._broker.image.topic_names.get(topic.topic_id, _EVERY_TOPIC)
        )

    def _mark(self, what: str, topic: str, by: int = 1) -> None:
        self._topics[what, _EVERY_TOPIC] += by
        if topic:
            self._topics[what, topic] += by

    def samples(self) -> Iterator[Sample]:
        for (request, version), count in self._requests.items():
            labels = {"request": request, "version": str(version)}
            yield Sample(Bean("kafka.network", "RequestMetrics", "RequestsPerSec", "counter"), labels, count)
        for (request, error), count in self._errors.items():
            labels = {"request": request, "error": error}
            yield Sample(Bean("kafka.network", "RequestMetrics", "ErrorsPerSec", "counter"), labels, count)
        for (what, request), histogram in self._histograms.items():
            bean = Bean("kafka.network", "RequestMetrics", what, "summary")
            yield Sample(bean, {"request": request}, histogram.count)
            for quantile, value in histogram.quantiles():
                yield Sample(bean, {"request": request, "quantile": f"{quantile:.3g}".ljust(4, "0")}, value)
        for what in _TOPIC_METRICS:
            yield Sample(_of_topics(what), {}, self._topics[what, _EVERY_TOPIC])
        for (what, topic), count in self._topics.items():
            if topic:
                yield Sample(_of_topics(what), {"topic": topic}, count)


_TOPIC_METRICS: Final = (
    "MessagesInPerSec",
    "BytesInPerSec",
    "BytesOutPerSec",
    "BytesRejectedPerSec",
    "TotalProduceRequestsPerSec",
    "TotalFetchRequestsPerSec",
    "FailedProduceRequestsPerSec",
    "FailedFetchRequestsPerSec",
)


def _of_topics(what: str) -> Bean:
    return Bean("kafka.server", "BrokerTopicMetrics", what, "counter")


def _incoming(request: ProduceRequest) -> dict[tuple[Any, int], tuple[int, int]]:
    """Bytes and messages of each partition, counted in a copy: the handler may write into the batches meanwhile."""
    counts = {}
    for topic in request.topic_data:
        for partition in topic.partition_data:
            data = b"".join(_buffers(partition.records))
            counts[topic.name or topic.topic_id, partition.index] = len(data), _messages(data)
    return counts


def _messages(data: bytes) -> int:
    try:
        return sum(batch.last_offset_delta + 1 for _, batch in iter_batches(data))
    except CorruptBatch:
        return 0  # refused anyway


def _buffers(records: Any) -> list[Any]:
    if records is None:
        return []
    return records if isinstance(records, list) else [records]


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)  # a setting may answer with an error code that Kafka does not have
