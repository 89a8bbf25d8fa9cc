"""Tells the controller that this broker lives (Kafka's BrokerLifecycleManager)."""

from __future__ import annotations

from typing import Final

from minibroker.broker.ports import RegisteredBroker
from minibroker.kernel.clock import TimerHandle
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import CONTROLLER
from minibroker_protocol.dsl import Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import BrokerHeartbeatRequest, BrokerHeartbeatResponse

log = get_logger(__name__)

BROKER_HEARTBEAT_VERSION: Final = 2


class BrokerLifecycleManager:
    """Sends BrokerHeartbeat every broker.heartbeat.interval.ms of real time, while there are other brokers.

    A single broker sends no heartbeats: there is nothing to fail over to.
    """

    def __init__(self, broker: RegisteredBroker) -> None:
        self._broker = broker
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Begin, or do nothing when it has begun or the broker is alone."""
        if self._timer is None and len(self._broker.image.brokers) > 1:
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        interval_ms = self._broker.settings.get_int("broker.heartbeat.interval.ms")
        self._timer = self._broker.timers.call_later(interval_ms, self._beat)

    def _beat(self) -> None:
        self._timer = None
        self.start()
        broker = self._broker
        request = BrokerHeartbeatRequest(
            broker_id=broker.node_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=broker.image.offset,
            want_fence=False,
            want_shut_down=False,
        )
        # The next heartbeat does not depend on the result of this one.
        broker.transport.send(CONTROLLER, request, BROKER_HEARTBEAT_VERSION).then(self._answered)

    def _answered(self, answer: Deferred[Response]) -> None:
        try:
            response = answer.result()
        except ApiError as error:
            log.info("broker %d cannot reach the controller: %s", self._broker.node_id, error)
            return
        assert isinstance(response, BrokerHeartbeatResponse)
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code).name
            log.warning("the controller refuses the heartbeat of broker %d: %s", self._broker.node_id, code)
