"""One row of the handler table: all properties of one API."""

from __future__ import annotations

from typing import NamedTuple

from minibroker.requests.context import Handler
from minibroker.requests.kinds import WHOLE, Kind
from minibroker.requests.rights import Right
from minibroker_protocol.dsl import Request, Response


class Api(NamedTuple):
    """One row of the handler table.

    min_version..max_version: what is served.

    advertised_min: what ApiVersions says when that differs (KAFKA-18659).
    advertised: False for APIs that are always served but not listed by default.
    unstable_from: first version that needs unstable.api.versions.enable (Kafka's latestVersionUnstable).
    rights: what the client must have a right to; without any, every authenticated client may send it.
    controller: the controller answers it; any broker forwards it (KIP-590).
    between_brokers: brokers send it to each other, or to the controller, also for a client.
    reads_answer: False for a handler that notes every refusal itself and whose answers are too frequent and too large
        to be searched for errors.
    kind: whether the items of its list are independent of each other, or one act.
    clients: False for a request that only brokers may send; it is not served on a listener and not in ApiVersions.
    """

    key: int
    name: str
    request: type[Request]
    response: type[Response]
    handler: Handler
    min_version: int
    max_version: int
    advertised_min: int | None = None
    advertised: bool = True
    unstable_from: int | None = None
    rights: tuple[Right, ...] = ()
    controller: bool = False
    between_brokers: bool = False
    clients: bool = True
    reads_answer: bool = True
    kind: Kind = WHOLE


def stable(api: Api) -> Api:
    """The row without its unstable versions."""
    first = api.unstable_from
    return api if first is None else api._replace(max_version=min(api.max_version, first - 1), unstable_from=None)
