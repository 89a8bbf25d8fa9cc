"""Which brokers are alive, by their heartbeats (Kafka's BrokerHeartbeatManager, KIP-631)."""

from __future__ import annotations

from minibroker.controller.replication import ReplicationControl
from minibroker.controller.state import ControllerState
from minibroker.kernel.logs import get_logger
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.inter_broker import BrokerHeartbeatRequest, BrokerHeartbeatResponse

log = get_logger(__name__)

SESSION_TICKS = 9
"""Calls of `tick` that make broker.session.timeout.ms. Time is counted in them and not read from a clock, so that
brokers are not fenced because the whole process was suspended."""


class BrokerHeartbeats:
    """The sessions of the registered brokers; a session begins when the broker is unfenced."""

    def __init__(self, state: ControllerState, replication: ReplicationControl) -> None:
        self._state = state
        self._replication = replication
        self._tick = 0
        # Node id → (epoch of its registration, tick of its last heartbeat).
        self._heard: dict[int, tuple[int, int]] = {}

    def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """BrokerHeartbeat v0-2. A fenced broker that wants to serve may, once it knows of its own registration.

        Errors: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
        """
        broker = self._state.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            code = ErrorCode.BROKER_ID_NOT_REGISTERED if broker is None else ErrorCode.STALE_BROKER_EPOCH
            return BrokerHeartbeatResponse(error_code=code)
        self._heard[broker.node_id] = (broker.epoch, self._tick)
        caught_up = request.current_metadata_offset >= broker.epoch
        fenced = broker.fenced
        if fenced and caught_up and not request.want_fence:
            log.info("broker %d sent a heartbeat again and is unfenced", broker.node_id)
            self._replication.unfence(broker.node_id)
            fenced = False
        return BrokerHeartbeatResponse(error_code=0, is_caught_up=caught_up, is_fenced=fenced)

    def tick(self) -> None:
        """Fence the brokers whose session has ended."""
        self._tick += 1
        for broker in list(self._state.image.brokers.values()):
            epoch, heard = self._heard.get(broker.node_id, (-1, -1))
            if epoch != broker.epoch or broker.fenced:
                self._heard[broker.node_id] = (broker.epoch, self._tick)
            elif self._tick - heard > SESSION_TICKS:
                log.warning("broker %d is fenced: no heartbeat within its session timeout", broker.node_id)
                self._replication.fence(broker.node_id)
