"""ApiVersions (18): which APIs and versions a broker serves.

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import bool_, f, int16, int32, int64, string
from minibroker_protocol.structs import Struct


class ApiVersionsRequest(Request, key=18, versions="0-5", flexible="3+"):
    """Ask for the APIs a broker serves; tell it the client's name, and which cluster and broker it means (KIP-1242)."""

    client_software_name: string = f("3+", default="", ignorable=True)
    client_software_version: string = f("3+", default="", ignorable=True)
    cluster_id: string | None = f("5+", nullable="5+", default=None, ignorable=True)
    node_id: int32 = f("5+", default=-1, ignorable=True)


class ApiVersionsResponse(Response, key=18, versions="0-5", flexible="3+"):
    """APIs with their version ranges, and cluster features."""

    class ApiVersion(Struct):
        api_key: int16 = f(map_key=True)
        min_version: int16
        max_version: int16

    class SupportedFeatureKey(Struct):
        name: string = f("3+", default="", map_key=True)
        min_version: int16 = f("3+", default=0)
        max_version: int16 = f("3+", default=0)

    class FinalizedFeatureKey(Struct):
        name: string = f("3+", default="", map_key=True)
        max_version_level: int16 = f("3+", default=0)
        min_version_level: int16 = f("3+", default=0)

    error_code: int16 = f(default=0, error=True)
    api_keys: list[ApiVersion] = f(default=[])
    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    supported_features: list[SupportedFeatureKey] = f("3+", tag=0, default=[], ignorable=True)
    finalized_features_epoch: int64 = f("3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = f("3+", tag=2, default=[], ignorable=True)
    zk_migration_ready: bool_ = f("3+", tag=3, default=False, ignorable=True)
