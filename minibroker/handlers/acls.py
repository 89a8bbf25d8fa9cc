"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): SECURITY_DISABLED while authorizer.class.name is unset."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from minibroker.requests.context import RequestContext
from minibroker.security.acls import NO_AUTHORIZER, AclBindingFilter
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.acls import DescribeAclsRequest, DescribeAclsResponse


def describe(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """DescribeAcls v1-3: the entries that match, by resource."""
    if ctx.broker.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=f"{NO_AUTHORIZER[:-1]} on the broker"
        )
    matching = sorted(filter(AclBindingFilter.of(request).matches, ctx.broker.image.acls))
    resources = [
        DescribeAclsResponse.DescribeAclsResource(
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
            acls=[entry.into(DescribeAclsResponse.AclDescription) for entry in entries],
        )
        for (kind, name, pattern), entries in groupby(
            matching, attrgetter("resource_type", "resource_name", "pattern_type")
        )
    ]
    return DescribeAclsResponse(resources=resources)
