"""Administration that is answered from what this broker is: log directories, quotas, ACLs.

DescribeLogDirs (35), DescribeClientQuotas (48), DescribeAcls (29), CreateAcls (30), DeleteAcls (31).
"""

from __future__ import annotations

from minibroker.handlers.context import RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from minibroker_protocol.messages.cluster import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_NO_AUTHORIZER = "No Authorizer is configured."
UNKNOWN_BYTES = -1
"""Kafka's value for a volume whose size is not known."""


def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """DescribeLogDirs v1-5: the one log directory with the sizes of its partitions, bytes; v4 adds the volume's."""
    broker = ctx.broker
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics: dict[str, list[DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
    for partition in broker.partitions():
        if wanted is not None and (partition.topic, partition.index) not in wanted:
            continue
        topics.setdefault(partition.topic, []).append(
            DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size if partition.has_log else 0,
                offset_lag=0,
                is_future_key=False,
            )
        )
    total, usable = broker.volume_bytes()
    return DescribeLogDirsResponse(
        throttle_time_ms=0,
        error_code=0,
        results=[
            DescribeLogDirsResponse.DescribeLogDirsResult(
                error_code=0,
                log_dir=broker.log_dir,
                topics=[
                    DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
                total_bytes=total,
                usable_bytes=usable,
            )
        ],
    )


def describe_client_quotas(_: RequestContext, __: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """DescribeClientQuotas v0-1: there are no quotas, and none can be set."""
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=0, error_message=None, entries=[])


def describe_acls(_: RequestContext, __: DescribeAclsRequest) -> DescribeAclsResponse:
    """DescribeAcls v1-3: SECURITY_DISABLED, as a Kafka without an authorizer."""
    return DescribeAclsResponse(
        throttle_time_ms=0, error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER, resources=[]
    )


def create_acls(_: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """CreateAcls v1-3: SECURITY_DISABLED for each."""
    refusal = CreateAclsResponse.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
    return CreateAclsResponse(throttle_time_ms=0, results=[refusal] * len(request.creations))


def delete_acls(_: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """DeleteAcls v1-3: SECURITY_DISABLED for each filter."""
    refusal = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER, matching_acls=[]
    )
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[refusal] * len(request.filters))
