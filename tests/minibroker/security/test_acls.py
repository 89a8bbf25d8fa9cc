"""What access control entries allow, decided as Kafka's StandardAuthorizer does."""

from __future__ import annotations

import pytest

from minibroker import ConfigError
from minibroker.config.settings import Settings
from minibroker.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    Authorizer,
    PatternType,
    ResourceType,
    problem_of,
)
from minibroker.security.create_authorizer import STANDARD, create_authorizer

READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
HERE = "10.0.0.1"


def entry(
    operation: int,
    name: str = "t",
    *,
    kind: int = TOPIC,
    pattern: int = LITERAL,
    principal: str = "User:a",
    host: str = "*",
    permission: int = ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def allows(entries: list[AclBinding], operation: AclOperation, name: str = "t", who: str = "User:a") -> bool:
    return Authorizer().allows(frozenset(entries), who, HERE, operation, TOPIC, name)


def test_without_an_entry_the_answer_is_no_unless_the_setting_says_otherwise() -> None:
    assert not allows([], READ)
    settings = {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"}
    open_to_all = create_authorizer(Settings(settings))
    assert open_to_all is not None
    assert open_to_all.allows(frozenset(), "User:a", HERE, READ, TOPIC, "t")
    about = [entry(WRITE, principal="User:b")]
    assert not open_to_all.allows(frozenset(about), "User:a", HERE, READ, TOPIC, "t")


def test_a_super_user_is_not_asked_for_entries() -> None:
    authorizer = Authorizer(frozenset({"User:a"}))
    assert authorizer.allows(frozenset({entry(ALL, permission=DENY)}), "User:a", HERE, READ, TOPIC, "t")
    assert not authorizer.allows(frozenset(), "User:b", HERE, READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        (entry(READ), True),
        (entry(ALL), True),
        (entry(WRITE), False),
        (entry(READ, "*"), True),
        (entry(READ, "t", pattern=PREFIXED), True),
        (entry(READ, "tt"), False),
        (entry(READ, "tt", pattern=PREFIXED), False),
        (entry(READ, "*", pattern=PREFIXED), False),
        (entry(READ, kind=GROUP), False),
        (entry(READ, principal="User:*"), True),
        (entry(READ, principal="User:b"), False),
        (entry(READ, host=HERE), True),
        (entry(READ, host="10.0.0.0/24"), True),
        (entry(READ, host="10.0.0.9/24"), True),
        (entry(READ, host="010.0.000.0/24"), True),
        (entry(READ, host="10.0.1.0/24"), False),
        (entry(READ, host="::/0"), False),
        (entry(READ, host="10.0.0.2"), False),
    ],
)
def test_what_an_entry_is_about(given: AclBinding, *, allowed: bool) -> None:
    assert allows([given], READ) is allowed


def test_a_range_has_clients_of_a_socket_for_both_families() -> None:
    denied = entry(READ, host="10.0.0.0/8")
    assert denied.concerns(denied.principal, "::ffff:10.0.0.1")
    assert not denied.concerns(denied.principal, "::ffff:11.0.0.1")
    assert not denied.concerns(denied.principal, "::a00:1")


def test_deny_outweighs_every_allow() -> None:
    assert not allows([entry(ALL), entry(READ, "*", principal="User:*", permission=DENY)], READ)
    assert allows([entry(ALL), entry(WRITE, permission=DENY)], READ)


@pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_who_may_do_something_may_describe_and_who_is_denied_it_may_still(operation: AclOperation) -> None:
    assert allows([entry(operation)], DESCRIBE)
    assert not allows([entry(DESCRIBE)], operation)
    assert allows([entry(DESCRIBE), entry(operation, permission=DENY)], DESCRIBE)
    assert allows([entry(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS)


def some(*entries: AclBinding) -> bool:
    return Authorizer().allows_some(entries, "User:a", HERE, WRITE, TOPIC)


def test_some_topic_is_enough_for_an_idempotent_producer() -> None:
    assert not some()
    assert not some(entry(READ))
    assert some(entry(WRITE))
    assert not some(entry(WRITE), entry(WRITE, permission=DENY))
    assert some(entry(WRITE, pattern=PREFIXED), entry(WRITE, permission=DENY))
    assert not some(entry(WRITE, "to", pattern=PREFIXED), entry(WRITE, "t", pattern=PREFIXED, permission=DENY))
    assert not some(entry(WRITE), entry(ALL, "*", permission=DENY))
    assert some(entry(ALL, "*"), entry(WRITE, "t", permission=DENY))
    assert some(entry(ALL, "*"), entry(WRITE, "*", pattern=PREFIXED, permission=DENY))


def chosen(name: str | None, pattern: int, *, operation: int = AclOperation.ANY) -> list[str]:
    entries = [entry(READ, "to"), entry(READ, "t", pattern=PREFIXED), entry(READ, "*"), entry(WRITE, "x")]
    wanted = AclBindingFilter(ResourceType.ANY, name, pattern, None, None, operation, AclPermissionType.ANY)
    return [e.resource_name for e in entries if wanted.matches(e)]


def test_filters() -> None:
    assert chosen(None, PatternType.ANY) == ["to", "t", "*", "x"]
    assert chosen("to", PatternType.MATCH) == ["to", "t", "*"]
    assert chosen("to", PatternType.LITERAL) == ["to"]
    assert chosen("to", PatternType.PREFIXED) == []
    assert chosen("t", PatternType.ANY) == ["t"]
    assert chosen(None, PatternType.ANY, operation=WRITE) == ["x"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (entry(READ, kind=ResourceType.ANY), "Invalid resourceType ANY"),
        (entry(READ, kind=99), "Invalid resourceType UNKNOWN"),
        (entry(READ, pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (entry(READ, pattern=5), "Invalid patternType UNKNOWN"),
        (entry(AclOperation.ANY), "Invalid operation ANY"),
        (entry(16), "Invalid operation UNKNOWN"),
        (entry(READ, permission=AclPermissionType.ANY), "Invalid permissionType ANY"),
        (entry(READ, permission=4), "Invalid permissionType UNKNOWN"),
        (entry(READ, principal="alice"), "no colon"),
        (entry(READ, "", principal="alice"), "Invalid empty resource name"),
        (entry(READ, "", kind=ResourceType.CLUSTER), "only valid name for the CLUSTER"),
        (entry(READ, host=""), "Host pattern cannot be null or empty"),
        (entry(READ, host="10.0.0.0/33"), "Invalid CIDR notation '10.0.0.0/33'"),
        (entry(READ, host="10.0.0.0/255.0.0.0"), "Invalid CIDR notation"),
        (entry(READ, "x", kind=ResourceType.CLUSTER), "only valid name for the CLUSTER"),
    ],
)
def test_what_is_no_entry(given: AclBinding, reason: str) -> None:
    assert reason in (problem_of(given) or "")
    assert problem_of(entry(READ)) is None


@pytest.mark.parametrize("principal", ["User:", ":a", ":", "::", "Use r:a", "User:a:b"])
def test_a_principal_has_a_colon_and_nothing_else_is_asked_of_it(principal: str) -> None:
    assert problem_of(entry(READ, principal=principal)) is None


def test_a_client_without_an_address_is_in_no_range() -> None:
    assert not entry(READ, host="0.0.0.0/0").concerns("User:a", "")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"authorizer.class.name": "x.Y"}, "there is only"),
        ({"authorizer.class.name": STANDARD, "super.users": "admin"}, "expected TYPE:NAME"),
    ],
)
def test_an_authorizer_that_cannot_be(config: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        create_authorizer(Settings(config))
    assert create_authorizer(Settings()) is None
