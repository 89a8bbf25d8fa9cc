"""Configuration: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import bool_, f, int8, int16, int32, string
from minibroker_protocol.structs import Struct


class DescribeConfigsRequest(Request, key=32, versions="1-4", flexible="4+"):
    """Ask for the configuration of resources."""

    class DescribeConfigsResource(Struct):
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")
        configuration_keys: list[string] | None = f(nullable="0+")

    resources: list[DescribeConfigsResource]
    include_synonyms: bool_ = f(default=False)
    include_documentation: bool_ = f("3+", default=False)


class DescribeConfigsResponse(Response, key=32, versions="1-4", flexible="4+"):
    """Configuration entries of each resource."""

    class DescribeConfigsSynonym(Struct):
        name: string
        value: string | None = f(nullable="0+", secret="name")
        source: int8

    class DescribeConfigsResourceResult(Struct):
        name: string
        value: string | None = f(nullable="0+", secret="name")
        read_only: bool_
        config_source: int8 = f(default=-1)
        is_sensitive: bool_
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym]
        config_type: int8 = f("3+", default=0, ignorable=True)
        documentation: string | None = f("3+", nullable="0+", default="", ignorable=True)

    class DescribeConfigsResult(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default="", error_message=True)
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    results: list[DescribeConfigsResult]


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    """Replace the configuration of resources."""

    class AlterableConfig(Struct):
        name: string = f(map_key=True)
        value: string | None = f(nullable="0+", secret="name")

    class AlterConfigsResource(Struct):
        resource_type: int8 = f(entity="resourceType", map_key=True)
        resource_name: string = f(entity="resourceName", map_key=True)
        configs: list[AlterConfigsRequest.AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: bool_


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    """Whether each resource was changed."""

    class AlterConfigsResourceResponse(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")

    throttle_time_ms: int32 = f(default=0, throttle=True)
    responses: list[AlterConfigsResourceResponse]


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    """Change single configuration entries of resources."""

    class AlterableConfig(Struct):
        name: string = f(map_key=True)
        config_operation: int8 = f(map_key=True)
        value: string | None = f(nullable="0+", secret="name")

    class AlterConfigsResource(Struct):
        resource_type: int8 = f(entity="resourceType", map_key=True)
        resource_name: string = f(entity="resourceName", map_key=True)
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: bool_


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    """Whether each resource was changed."""

    class AlterConfigsResourceResponse(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")

    throttle_time_ms: int32 = f(default=0, throttle=True)
    responses: list[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Request, key=74, versions="0-1", flexible="0+"):
    """Ask for configuration resources."""

    resource_types: list[int8] = f("1+", default=[], entity="resourceType")


class ListConfigResourcesResponse(Response, key=74, versions="0-1", flexible="0+"):
    """The resources that have configuration."""

    class ConfigResource(Struct):
        resource_name: string = f(entity="resourceName")
        resource_type: int8 = f("1+", default=16, ignorable=True, entity="resourceType")

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    config_resources: list[ConfigResource]
