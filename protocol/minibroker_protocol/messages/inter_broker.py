"""What only brokers send: AllocateProducerIds (67).

Field names and versions: Kafka 4.3.1's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response, f, int16, int32, int64


class AllocateProducerIdsRequest(Request, key=67, versions="0", flexible="0+"):
    """Ask the controller for a block of producer ids."""

    broker_id: int32
    broker_epoch: int64 = f(default=-1)


class AllocateProducerIdsResponse(Response, key=67, versions="0", flexible="0+"):
    """A block that no other broker gets."""

    throttle_time_ms: int32 = f(default=0)
    error_code: int16 = f(default=0)
    producer_id_start: int64
    producer_id_len: int32
