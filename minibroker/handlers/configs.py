"""DescribeConfigs (32) and ListConfigResources (74), answered from the broker's settings and the image.

Changes (AlterConfigs 33, IncrementalAlterConfigs 44) go to the controller: `minibroker.requests.forwarded`.
Kafka: ConfigHelper. Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.config.client_metrics import describe_client_metrics
from minibroker.config.groups import describe_group
from minibroker.config.settings import ConfigEntry, ConfigSource, ConfigSynonym
from minibroker.config.types import ConfigType
from minibroker.controller.topics import check_topic_name
from minibroker.kernel.logs import logger_levels
from minibroker.metadata.config_resources import ConfigResourceType, node_id_of
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker_protocol import messages as m
from minibroker_protocol.errors import INVALID_REQUEST_TEXT, ApiError, ErrorCode

_COST = 16
"""What a resource counts as, in elements of a turn of the loop: it has some dozens of settings."""
_TYPES = frozenset(int(kind) for kind in ConfigResourceType)
_Result = m.DescribeConfigsResponse.DescribeConfigsResult
_Entry = m.DescribeConfigsResponse.DescribeConfigsResourceResult


def describe(ctx: RequestContext, request: m.DescribeConfigsRequest) -> Answer:
    results: list[m.DescribeConfigsResponse.DescribeConfigsResult] = []
    strange = any(resource.resource_type not in _TYPES for resource in request.resources)

    def look_up(some: Sequence[m.DescribeConfigsRequest.DescribeConfigsResource]) -> None:
        for resource in some:
            try:
                if strange:  # one invalid type refuses the whole request
                    raise ApiError(ErrorCode.INVALID_REQUEST, INVALID_REQUEST_TEXT)
                entries = _entries(ctx, resource)
                code, message = ErrorCode.NONE, ""
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

    def response() -> m.DescribeConfigsResponse:
        return m.DescribeConfigsResponse(results=results)

    return in_slices(ctx, request.resources, look_up, response, cost=_COST, keep=False)


def _entries(ctx: RequestContext, resource: m.DescribeConfigsRequest.DescribeConfigsResource) -> list[ConfigEntry]:
    broker = ctx.broker
    name = resource.resource_name
    names = frozenset(resource.configuration_keys) if resource.configuration_keys else None
    if resource.resource_type == ConfigResourceType.TOPIC:
        check_topic_name(name)
        topic = broker.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return broker.settings.describe_topic(topic.configs, names)
    if resource.resource_type == ConfigResourceType.BROKER:
        if not name:
            # The cluster-wide defaults: only what was set there.
            return [
                entry._replace(synonyms=entry.synonyms[:1])
                for entry in broker.settings.describe(names)
                if entry.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            ]
        _check_node(ctx, name, f"{broker.node_id} or empty string, but")
        return [_started_with(ctx, entry) for entry in broker.settings.describe(names)]
    if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_node(ctx, name, f"{broker.node_id} but")
        return [_logger(*row) for row in logger_levels().items() if names is None or row[0] in names]
    if resource.resource_type == ConfigResourceType.GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(broker.image.configs_of(ConfigResourceType.GROUP, name), broker.settings, names)
    if resource.resource_type == ConfigResourceType.CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        overrides = broker.image.configs_of(ConfigResourceType.CLIENT_METRICS, name)
        return describe_client_metrics(overrides, broker.settings, names)
    raise AssertionError(f"resource type {resource.resource_type}")


def _started_with(ctx: RequestContext, entry: ConfigEntry) -> ConfigEntry:
    """The row of a setting that every broker has at its start, here often by another option or chosen by the broker:
    in Kafka such a row comes from server.properties."""
    if entry.value is not None:
        return entry
    broker = ctx.broker
    own = broker.image.brokers.get(broker.node_id)
    node_id, address = str(broker.node_id), None if own is None else f"PLAINTEXT://{own.host}:{own.port}"
    addresses = {"listeners": address, "advertised.listeners": address}
    value = {"node.id": node_id, "broker.id": node_id, "log.dirs": broker.log_dir, **addresses}.get(entry.name)
    if value is None:
        return entry
    source = ConfigSource.STATIC_BROKER_CONFIG
    return entry._replace(value=value, source=source, synonyms=(ConfigSynonym(entry.name, value, source),))


def _check_node(ctx: RequestContext, name: str, expected: str) -> None:
    """Raises INVALID_REQUEST unless `name` is this broker's id."""
    node_id = node_id_of(name)
    if node_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if node_id != ctx.broker.node_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} received {name}")


def _logger(name: str, level: str) -> ConfigEntry:
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return ConfigEntry(name, level, source, False, ConfigType.UNKNOWN, "", ())


def _row(
    request: m.DescribeConfigsRequest, entry: ConfigEntry
) -> m.DescribeConfigsResponse.DescribeConfigsResourceResult:
    return _Entry(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.type is ConfigType.PASSWORD or (entry.value is None and entry.type is ConfigType.UNKNOWN),
        synonyms=(
            [
                m.DescribeConfigsResponse.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
                for s in entry.synonyms
            ]
            if request.include_synonyms
            else []
        ),
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def list_resources(ctx: RequestContext, request: m.ListConfigResourcesRequest) -> m.ListConfigResourcesResponse:
    """ListConfigResources v0-1: v0 asks for client metrics; v1 names the types (none: all)."""
    supported = {int(kind) for kind in ConfigResourceType}
    wanted = (
        {int(ConfigResourceType.CLIENT_METRICS)} if ctx.api_version == 0 else set(request.resource_types) or supported
    )
    if not wanted <= supported:
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    image = ctx.broker.image
    nodes = [str(node) for node in image.brokers]

    def configured(kind: ConfigResourceType) -> list[str]:
        return sorted(name for other, name in image.resource_configs if other == kind)

    names = {
        ConfigResourceType.GROUP: configured(ConfigResourceType.GROUP),
        ConfigResourceType.CLIENT_METRICS: configured(ConfigResourceType.CLIENT_METRICS),
        ConfigResourceType.BROKER_LOGGER: nodes,
        ConfigResourceType.BROKER: nodes,
        ConfigResourceType.TOPIC: list(image.topics),
    }
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind, known in names.items()
            if kind in wanted
            for name in known
        ]
    )
