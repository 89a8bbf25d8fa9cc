"""ApiVersions (key 18): what this broker serves, read from the handler table.

Versions 0-5. v3 client software name and features; v4 supported features whose lowest level is 0; v5 the cluster and
broker that the client means (KIP-1242).
Errors: UNSUPPORTED_VERSION (answered in the format of v0), INVALID_REQUEST (client software name or version; cluster id
without node id, or the other way round), REBOOTSTRAP_REQUIRED (another cluster or broker). The connection stays open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from minibroker.controller.features import SUPPORTED_FEATURES
from minibroker.requests.api import Api
from minibroker.requests.context import RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_VERSION = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
API_VERSIONS_KEY = 18
_NO_NODE = -1


def unsupported(max_version: int) -> ApiVersionsResponse:
    """The answer to an unknown version: the row of ApiVersions alone, so that the client can retry (KIP-511)."""
    own = ApiVersionsResponse.ApiVersion(api_key=API_VERSIONS_KEY, min_version=0, max_version=max_version)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


class ApiVersions:
    """The handler; it is given the table it describes."""

    def __init__(self) -> None:
        self._rows: list[ApiVersionsResponse.ApiVersion] = []

    def describe(self, apis: Mapping[int, Api], *, unstable: bool, unlisted: bool) -> None:
        """List `apis`.

        unstable: versions that are not final too.
        unlisted: APIs not advertised by default too.
        """
        self._rows = [
            ApiVersionsResponse.ApiVersion(
                api_key=key,
                min_version=api.min_version if api.advertised_min is None else api.advertised_min,
                max_version=api.max_version if unstable or api.unstable_from is None else api.unstable_from - 1,
            )
            for key, api in sorted(apis.items())
            if api.advertised or unlisted
        ]

    def handle(self, ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if ctx.api_version >= 3:
            name, version = request.client_software_name, request.client_software_version
            if _SOFTWARE.fullmatch(name) is None or _VERSION.fullmatch(version) is None:
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            ctx.connection.software_name = name
            ctx.connection.software_version = version
            # Fields of v5, which in earlier versions have these defaults.
            wrong = _meant_for(request.cluster_id, request.node_id, ctx)
            if wrong is not ErrorCode.NONE:
                return ApiVersionsResponse(error_code=wrong)
        image = ctx.broker.image
        advertised = ctx.broker.semantics.advertised
        supported = SUPPORTED_FEATURES
        finalized: Mapping[str, int] = image.features
        if advertised is not None:
            supported = advertised.features
            finalized = {name: min(f.finalized, image.features.get(name, f.finalized)) for name, f in supported.items()}
        return ApiVersionsResponse(
            error_code=0,
            api_keys=self._rows,
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(
                    name=name, min_version=levels.lowest, max_version=levels.highest
                )
                for name, levels in supported.items()
                # Clients before v4 fail on a lowest level of 0 (KAFKA-17011), so Kafka leaves those out.
                if levels.lowest > 0 or ctx.api_version >= 4
            ],
            finalized_features_epoch=image.offset,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(finalized.items())
            ],
        )


def _meant_for(cluster_id: str | None, node_id: int, ctx: RequestContext) -> ErrorCode:
    """NONE for a client that names this cluster and broker, or neither."""
    if (cluster_id is None) != (node_id == _NO_NODE):
        return ErrorCode.INVALID_REQUEST
    if cluster_id is None or (cluster_id, node_id) == (ctx.broker.image.cluster_id, ctx.broker.node_id):
        return ErrorCode.NONE
    return ErrorCode.REBOOTSTRAP_REQUIRED
