"""DescribeConfigs (32) and ListConfigResources (74), answered from the broker's settings and the image.

Changes (AlterConfigs 33, IncrementalAlterConfigs 44) go to the controller: `minibroker.handlers.forwarded`.
Kafka: ConfigHelper. Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST.
"""

from __future__ import annotations

from minibroker.config.settings import ConfigEntry, ConfigSource
from minibroker.config.types import ConfigType
from minibroker.controller.configs import ResourceType
from minibroker.controller.topics import check_topic_name
from minibroker.handlers.context import RequestContext
from minibroker.kernel.turns import STEP
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_STEPS_A_RESOURCE = 16
"""A resource has some dozens of settings."""
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


async def describe(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        for _ in range(_STEPS_A_RESOURCE):
            await STEP
        try:
            entries = _entries(ctx, resource)
            code, message = ErrorCode.NONE, None
        except ApiError as error:
            entries, code, message = [], error.code, error.message
        results.append(
            _Result(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[_row(request, entry) for entry in entries],
            )
        )
    return DescribeConfigsResponse(results=results)


def _entries(ctx: RequestContext, resource: DescribeConfigsRequest.DescribeConfigsResource) -> list[ConfigEntry]:
    broker = ctx.broker
    name = resource.resource_name
    names = resource.configuration_keys or None
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        topic = broker.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return broker.settings.describe_topic(topic.configs, names)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            # The cluster-wide defaults: only what was set there.
            return [
                entry
                for entry in broker.settings.describe(names)
                if entry.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            ]
        if name != str(broker.node_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
            )
        return broker.settings.describe(names)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        return []
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _row(request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    return _Entry(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.type is ConfigType.PASSWORD,
        synonyms=(
            [
                DescribeConfigsResponse.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
                for s in entry.synonyms
            ]
            if request.include_synonyms
            else []
        ),
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def list_resources(ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """ListConfigResources v0-1: v0 asks for client metrics, of which there are none; v1 names the types (none: all)."""
    if ctx.api_version == 0:
        return ListConfigResourcesResponse(error_code=0, config_resources=[])
    supported = {int(kind) for kind in ResourceType}
    wanted = set(request.resource_types) or supported
    if not wanted <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    image = ctx.broker.image
    names = {
        ResourceType.TOPIC: list(image.topics),
        ResourceType.BROKER: [str(node) for node in image.brokers],
        ResourceType.BROKER_LOGGER: [str(node) for node in image.brokers],
    }
    return ListConfigResourcesResponse(
        error_code=0,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind, known in names.items()
            if kind in wanted
            for name in known
        ],
    )
