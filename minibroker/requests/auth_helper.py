"""Authorization for handlers: single checks, and the bit sets of all allowed operations (KIP-430).

Bit n stands for AclOperation with code n (org.apache.kafka.common.acl.AclOperation).
"""

from __future__ import annotations

from minibroker.requests.context import RequestContext
from minibroker.security.acls import CLUSTER_NAME, AclOperation, ResourceType

NOT_ASKED = -2147483648
"""The value of an authorized-operations field that the request did not ask for."""

_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
# AclEntry.supportedOperations
_SUPPORTED = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        *_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        *_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
_EVERYTHING = {
    kind: sum(1 << operation for operation in authorized_operations)
    for kind, authorized_operations in _SUPPORTED.items()
}


def authorize(ctx: RequestContext, operation: AclOperation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
    """Whether the client of a request may do this; True without an authorizer, and for other brokers."""
    authorizer = ctx.broker.authorizer
    if authorizer is None or ctx.inter_broker:
        return True
    who = ctx.connection
    return authorizer.allows(ctx.broker.image.acls, who.principal, who.client_host, operation, kind, name)


def authorized_operations(
    ctx: RequestContext, kind: ResourceType, name: str = CLUSTER_NAME, *, wanted: bool = True
) -> int:
    """The bits of the operations that the client of a request may do; all supported ones without an authorizer. For the
    cluster no bits without the right to describe it (KafkaApis.handleDescribeCluster).

    wanted: the request asked for them.
    """
    if not wanted:
        return NOT_ASKED
    if ctx.broker.authorizer is None:
        return _EVERYTHING[kind]
    if kind is ResourceType.CLUSTER and not authorize(ctx, AclOperation.DESCRIBE, kind):
        return 0
    return sum(1 << operation for operation in _SUPPORTED[kind] if authorize(ctx, operation, kind, name))
