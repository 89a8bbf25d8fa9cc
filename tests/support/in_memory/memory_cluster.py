"""A whole broker in memory, without sockets: requests go straight to its dispatcher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from manual_time import ManualTimers
from reasons import check_reasons

from minibroker.broker.broker import Broker
from minibroker.broker.connection import ConnectionInfo
from minibroker.cluster.cluster import BrokerSpec, Cluster
from minibroker.config.settings import Settings
from minibroker.coordinator_runtime.coordinator_host import CoordinatorHost
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Executor, InlineExecutor
from minibroker.partitions.partition import Partition
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker.requests.chain import Place
from minibroker.requests.dispatch import Dispatcher
from minibroker.requests.tapped_request import TappedRequest
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.registry import registry
from minibroker_storage.append_info import AppendInfo
from minibroker_storage.disk import Disk
from minibroker_storage.memory_disk import MemoryDisk

R = TypeVar("R", bound=Response)


@contextmanager
def refused_appends(topic: str, code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> Iterator[None]:
    """No log of the topic takes a record. Of a broker that is alone, few of these codes can be had in another way."""
    append = Partition.append

    def refuse(partition: Partition, *arguments: Any, **options: Any) -> AppendInfo:
        if partition.topic == topic:
            raise ApiError(code, "refused by the test")
        return append(partition, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "append", refuse)
        yield


def keep_loading(host: CoordinatorHost[Any], index: int) -> None:
    """A partition that cannot be read, whose coordinator stays in loading, as in Kafka."""
    unreadable: Any = SimpleNamespace(topic=host.topic, index=index, has_log=True)
    host.elected(unreadable, 0)


class _Clock(BrokerClock):
    """A jump is over when what it has brought about is done, as for a test that sends its next call to a loop."""

    cluster: MemoryCluster

    def advance(self, *args: Any, **options: Any) -> Any:
        moved = super().advance(*args, **options)
        self.cluster.perform_effects()
        return moved


class Passing:
    """Lets every request of a broker pass."""

    def serve(self, tapped: TappedRequest) -> Deferred[Any]:
        return tapped.apply()


class MemoryCluster:
    """One broker on a memory disk under manual time. `timers.advance` moves real time, `clock.advance` the broker's.

    Whatever error comes back from `send` and `call`, the broker must have kept a reason for it.

    A broker that shall look like the next start of another one gets a later `now_ms` and another `seed`.
    """

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        semantics: Semantics = KAFKA,
        topics: Mapping[str, int] | None = None,
        disk: Disk | None = None,
        transaction_version: int | None = None,
        now_ms: int = 1_700_000_000_000,
        seed: int = 7,
        executor: Executor | None = None,
        node_id: int = 1,
    ) -> None:
        self.timers = ManualTimers(now_ms=now_ms)
        self.clock = _Clock(self.timers, self.timers.now_ms)
        self.clock.cluster = self
        self.disk = disk or MemoryDisk(64 << 20)
        self.cluster = Cluster(
            Settings(dict(config or {})),
            semantics,
            nodes=[BrokerSpec(node_id=node_id, host="127.0.0.1", port=9092, disk=self.disk, log_dir="/memory")],
            journal_disk=self.disk,
            clock=self.clock,
            timers=self.timers,
            executor=executor or InlineExecutor(),
            random=Random(seed),
            transaction_version=transaction_version,
            topics=topics,
        )
        self.cluster.start()

    @property
    def broker(self) -> Broker:
        return next(iter(self.cluster.brokers.values()))

    @property
    def dispatcher(self) -> Dispatcher:
        return self.cluster.dispatcher(self.broker.node_id)

    def frame(self, request: Request, version: int, *, client_id: str = "test", correlation_id: int = 7) -> bytearray:
        """The bytes a client would send, without the size."""
        key = type(request).__api_key__
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
        )
        header_version = 2 if version >= first_flexible_version(key) else 1
        return bytearray(header.encode(header_version) + request.encode(version))

    def send(
        self, request: Request, version: int, *, client_id: str = "test", connection: ConnectionInfo | None = None
    ) -> Deferred[Any]:
        """Send the bytes of `request`; resolves with the decoded response (None: no answer)."""
        self.perform_effects()
        broker, tapped = (
            self.broker,
            self.dispatcher.link_at(Place.FAULTS_AND_TRACE) is not None,
        )  # a tap may answer what it likes
        answer = self.dispatcher.dispatch(
            self.frame(request, version, client_id=client_id), connection or ConnectionInfo()
        )
        decoded: Deferred[Any] = Deferred()

        def check(response: Response | None) -> None:
            if response is not None and not tapped:
                check_reasons(broker, response)

        def done(raw: Deferred[Any]) -> None:
            try:
                response = self.decode(type(request), version, raw.result())
            except Exception as error:
                decoded.fail(error)
            else:
                check(response)
                decoded.resolve(response)

        if isinstance(answer, Deferred):
            answer.then(done)
        else:
            response = self.decode(type(request), version, answer)
            check(response)
            decoded.resolve(response)
        self.perform_effects()
        return decoded

    def ask_itself_as_others(self) -> None:
        """From now on the broker sends itself requests where it would do the work at once."""
        self.cluster.set_broker_tap(Passing())

    def perform_effects(self) -> None:
        """What a decision leaves to do: a broker does it in the next turn of its loop, before it reads a request."""
        for broker in self.cluster.brokers.values():
            for coordinator in broker.coordinators.made:
                coordinator.effects.perform_due()

    def call(self, request: Request, response: type[R], version: int, *, client_id: str = "test") -> R:
        """`send` for what is answered at once."""
        answer = self.send(request, version, client_id=client_id).result()
        assert isinstance(answer, response)
        return answer

    @staticmethod
    def decode(request: type[Request], version: int, buffers: list[Any] | None) -> Response | None:
        if buffers is None:
            return None
        data = b"".join(buffers)
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        response = registry()[request.__api_key__][1]
        # size, correlation id, and the tag section of response header v1
        position = 8 if request.__api_key__ == 18 or version < response.__flexible__ else 9
        message, end = response.decode_from(data, version, position)
        assert end == len(data)
        assert isinstance(message, Response)
        return message

    def stop(self) -> None:
        self.cluster.stop()
