"""Access control lists: DescribeAcls (29), CreateAcls (30), DeleteAcls (31).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import f, int8, int16, int32, string
from minibroker_protocol.structs import Struct


class DescribeAclsRequest(Request, key=29, versions="1-3", flexible="2+"):
    """Ask for access control entries that match a filter."""

    resource_type_filter: int8
    resource_name_filter: string | None = f(nullable="0+")
    pattern_type_filter: int8 = f(default=3)
    principal_filter: string | None = f(nullable="0+")
    host_filter: string | None = f(nullable="0+")
    operation: int8
    permission_type: int8


class DescribeAclsResponse(Response, key=29, versions="1-3", flexible="2+"):
    """The entries that match."""

    class AclDescription(Struct):
        principal: string
        host: string
        operation: int8
        permission_type: int8

    class DescribeAclsResource(Struct):
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")
        pattern_type: int8 = f(default=3)
        acls: list[DescribeAclsResponse.AclDescription]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default="", error_message=True)
    resources: list[DescribeAclsResource] = f(default=[])


class CreateAclsRequest(Request, key=30, versions="1-3", flexible="2+"):
    """Create access control entries."""

    class AclCreation(Struct):
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")
        resource_pattern_type: int8 = f(default=3)
        principal: string
        host: string
        operation: int8
        permission_type: int8

    creations: list[AclCreation]


class CreateAclsResponse(Response, key=30, versions="1-3", flexible="2+"):
    """Whether each entry was created."""

    class AclCreationResult(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default="", error_message=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    results: list[AclCreationResult] = f(answers="creations")


class DeleteAclsRequest(Request, key=31, versions="1-3", flexible="2+"):
    """Delete access control entries that match filters."""

    class DeleteAclsFilter(Struct):
        resource_type_filter: int8
        resource_name_filter: string | None = f(nullable="0+")
        pattern_type_filter: int8 = f(default=3)
        principal_filter: string | None = f(nullable="0+")
        host_filter: string | None = f(nullable="0+")
        operation: int8
        permission_type: int8

    filters: list[DeleteAclsFilter]


class DeleteAclsResponse(Response, key=31, versions="1-3", flexible="2+"):
    """The entries deleted for each filter."""

    class DeleteAclsMatchingAcl(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        resource_type: int8 = f(entity="resourceType")
        resource_name: string = f(entity="resourceName")
        pattern_type: int8 = f(default=3)
        principal: string
        host: string
        operation: int8
        permission_type: int8

    class DeleteAclsFilterResult(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = f(default=[])

    throttle_time_ms: int32 = f(default=0, throttle=True)
    filter_results: list[DeleteAclsFilterResult] = f(answers="filters")
