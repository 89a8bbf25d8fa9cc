"""Requests that change metadata: any broker takes them and passes them to the controller (KIP-590).

CreateTopics (19), DeleteTopics (20), CreatePartitions (37), AlterConfigs (33), IncrementalAlterConfigs (44),
UpdateFeatures (57), ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46),
UnregisterBroker (64).
"""

from __future__ import annotations

from minibroker.cluster.transport import CONTROLLER
from minibroker.handlers.context import RequestContext
from minibroker.runtime.deferred import Deferred
from minibroker_protocol.dsl import Request, Response


def handle(ctx: RequestContext, request: Request) -> Deferred[Response]:
    """The controller's own answer."""
    return ctx.broker.transport.send(CONTROLLER, request, ctx.api_version)
