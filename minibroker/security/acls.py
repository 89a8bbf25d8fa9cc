"""Access control entries, and whether they allow an operation, as in Kafka's ``StandardAuthorizer`` (KIP-11, KIP-290,
KIP-679)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, Self, TypeVar

from minibroker_protocol.structs import Struct

S = TypeVar("S", bound=Struct)

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
EVERYBODY = "User:*"
_CLIENTS_REMEMBERED = 256
NO_AUTHORIZER = "No Authorizer is configured."


class ResourceType(IntEnum):
    """Kafka's ``org.apache.kafka.common.resource.ResourceType``."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's ``PatternType``; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's ``AclOperation``."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(IntEnum):
    """Kafka's ``AclPermissionType``."""

    ANY = 1
    DENY = 2
    ALLOW = 3


# The first operation implies the second (AclAuthorizer.matchingAclExists); only for what is allowed.
_IMPLY_DESCRIBE = frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER})
_IMPLIES: dict[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: _IMPLY_DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}


def _last_fields(struct: Struct, count: int) -> list[Any]:
    """Kafka's structs with an entry or a filter all end with its fields, in one order and under several names."""
    return [getattr(struct, field.name) for field in struct.__fields__[-count:]]


class AclBinding(NamedTuple):
    """One ACL entry: principal, operation, resources, ALLOW or DENY.

    host: an address, a range of them as in ``10.0.0.0/8``, or ``*``.
    """

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def of(cls, struct: Struct) -> Self:
        """The entry in a message or a record."""
        return cls._make(_last_fields(struct, len(cls._fields)))

    def into(self, kind: type[S]) -> S:
        """The entry, or as many of its last fields as `kind` has, in a message."""
        pairs = zip(reversed(kind.__fields__), reversed(self), strict=False)
        return kind(**{field.name: value for field, value in pairs})

    def names(self, resource_type: ResourceType, name: str) -> bool:
        """Whether the entry matches this resource."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)

    def concerns(self, principal: str, host: str) -> bool:
        """Whether the entry matches this client."""
        if self.principal not in (principal, EVERYBODY):
            return False
        return self.host in (host, WILDCARD) or ("/" in self.host and _in_range(host, self.host))


class AclBindingFilter(NamedTuple):
    """Selects entries to describe or delete; None and ANY match all (Kafka's ``AclBindingFilter``)."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, struct: Struct) -> Self:
        """The filter in a request."""
        return cls._make(_last_fields(struct, len(cls._fields)))

    @property
    def problem(self) -> str | None:
        """Why Kafka's controller deletes nothing by it (AclControlManager.validateFilter)."""
        if not (_known(ResourceType, self.resource_type) and _known(PatternType, self.pattern_type)):
            return "Unknown patternFilter."
        if not (_known(AclOperation, self.operation) and _known(AclPermissionType, self.permission)):
            return "Unknown entryFilter."
        return None

    def matches(self, entry: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, entry.resource_type)
            and self._matches_name(entry)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermissionType.ANY, entry.permission)
        )

    def _matches_name(self, entry: AclBinding) -> bool:
        if self.pattern_type == PatternType.MATCH:
            return self.resource_name is None or entry.names(ResourceType(entry.resource_type), self.resource_name)
        if self.pattern_type not in (PatternType.ANY, entry.pattern_type):
            return False
        return self.resource_name in (None, entry.resource_name)


@lru_cache(maxsize=_CLIENTS_REMEMBERED)
def _of_client(entries: frozenset[AclBinding], principal: str, host: str) -> tuple[AclBinding, ...]:
    """The entries about one client: every request asks for them, and a cluster may have very many."""
    return tuple(entry for entry in entries if entry.concerns(principal, host))


@dataclass(frozen=True, slots=True)
class Authorizer:
    """super_users: principals that may do everything.
    allow_without_entries: whether every client may use a resource without entries (``allow.everyone.if.no.acl.found``).
    """

    super_users: frozenset[str] = frozenset()
    allow_without_entries: bool = False

    def allows(
        self,
        entries: frozenset[AclBinding],
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """A matching DENY outweighs every ALLOW; without either the answer is no."""
        if principal in self.super_users:
            return True
        if self.allow_without_entries and not any(entry.names(resource_type, name) for entry in entries):
            return True
        mine = [e for e in _of_client(entries, principal, host) if e.names(resource_type, name)]
        denied = (operation, AclOperation.ALL)
        if any(entry.permission == AclPermissionType.DENY and entry.operation in denied for entry in mine):
            return False
        allowed = {operation, AclOperation.ALL, *_IMPLIES.get(operation, ())}
        return any(entry.permission == AclPermissionType.ALLOW and entry.operation in allowed for entry in mine)

    def allows_some(
        self,
        entries: frozenset[AclBinding],
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool:
        """Whether there is a name for which `allows` would say yes (Kafka's ``authorizeByResourceType``, KIP-679)."""
        if principal in self.super_users or self.allow_without_entries:
            return True
        mine = [e for e in _of_client(entries, principal, host) if e.resource_type == resource_type]
        relevant = [entry for entry in mine if entry.operation in (operation, AclOperation.ALL)]
        denying = [entry for entry in relevant if entry.permission == AclPermissionType.DENY]
        if any(entry.resource_name == WILDCARD and entry.pattern_type == PatternType.LITERAL for entry in denying):
            return False
        return any(
            entry.permission == AclPermissionType.ALLOW and not any(_covers(denied, entry) for denied in denying)
            for entry in relevant
        )


def _covers(denied: AclBinding, allowed: AclBinding) -> bool:
    """Whether `denied` matches every resource that `allowed` matches."""
    if denied.pattern_type == PatternType.PREFIXED:
        return allowed.resource_name != WILDCARD and allowed.resource_name.startswith(denied.resource_name)
    same = denied.resource_name == allowed.resource_name
    return same and allowed.pattern_type == PatternType.LITERAL


def problem_of(entry: AclBinding) -> str | None:
    """Why an entry is invalid, in Kafka's words and order (AclApis, AclControlManager.validateNewAcl), but for what is
    wrong with a range of addresses; None for a valid one."""
    if entry.resource_type == ResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not entry.resource_name:
        return "Invalid empty resource name"
    kinds: tuple[type[IntEnum], ...] = (ResourceType, PatternType, AclOperation, AclPermissionType)
    codes = (entry.resource_type, entry.pattern_type, entry.operation, entry.permission)
    for what, kind, code in zip(("resource", "pattern", "operation", "permission"), kinds, codes, strict=True):
        name = kind(code).name if _known(kind, code) else "UNKNOWN"
        if name in ("UNKNOWN", "ANY", "MATCH"):
            return f"Invalid {what}{'' if kind is AclOperation else 'Type'} {name}"
    if ":" not in entry.principal:
        return (
            f"Could not parse principal from `{entry.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if not entry.host:
        return "Host pattern cannot be null or empty"
    if "/" in entry.host and _network(entry.host) is None:
        return f"Invalid CIDR notation '{entry.host}': Could not parse [{entry.host}]"
    return None


def _known(kind: type[IntEnum], code: int) -> bool:
    return code in kind.__members__.values()


def _in_range(host: str, addresses: str) -> bool:
    network = _network(addresses)
    with suppress(ValueError):
        address = ip_address(host)
        # As Java has the address of an IPv4 client on a socket for both families.
        return network is not None and (getattr(address, "ipv4_mapped", None) or address) in network
    return False


@lru_cache
def _network(host: str) -> IPv4Network | IPv6Network | None:
    """The addresses that a host in CIDR notation names, None for any other. Numbers of IPv4 may begin with zeros
    (CidrUtils, as of Kafka 4.4)."""
    address, _, length = host.rpartition("/")
    if "." in address and ":" not in address:
        address = ".".join(part.lstrip("0") or part[:1] for part in address.split("."))
    try:
        return ip_network(f"{address}/{length}", strict=False) if length.isdecimal() else None
    except ValueError:
        return None
