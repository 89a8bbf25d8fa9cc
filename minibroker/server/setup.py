"""A file that says what a broker begins with: topics, users, access control entries, rules, the clock.

TOML, for ``minibroker serve --setup FILE`` and everything that starts it. Topics that exist stay as they are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minibroker.config.types import ConfigError
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near, reason
from minibroker.server.topic_check import check_topic
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.acls import CreateAclsRequest, CreateAclsResponse
from minibroker_protocol.messages.topics import CreateTopicsRequest

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster

_TABLES: Final = ("config", "topics", "users", "acls", "rules", "clock")
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_RESOURCES: Final = ("topic", "group", "transactional_id", "cluster")
_CLUSTER: Final = "kafka-cluster"
_CREATE_ACLS_VERSION: Final = 3

Call = Callable[[str, Mapping[str, Any]], Any]
"""Runs a command of the control API."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a file says.

    topics: as CreateTopics takes them.
    acls: as CreateAcls does.
    rules: as ``fault.add`` does.
    clock_frozen: the broker clock stands still from the start.
    path: the path of the file.
    """

    config: Mapping[str, str] = field(default_factory=dict, repr=False)  # passwords are among them
    topics: tuple[CreateTopicsRequest.CreatableTopic, ...] = ()
    acls: tuple[CreateAclsRequest.AclCreation, ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()
    clock_frozen: bool = False
    path: str = ""


def load(path: str) -> Setup:
    """Read a file. Raises ConfigError, in one line that names the file and the entry."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the setup cannot be read: {reason(error)}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return replace(parse(table), path=path)
    except (ConfigError, FaultError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(table: Mapping[str, Any]) -> Setup:
    """A setup from the tables of a file. Raises ConfigError, FaultError."""
    _only(table, _TABLES, "a setup")
    config = _config(_table(table, "config"))
    users, acls = _table(table, "users"), _list(table, "acls")
    clock = _table(table, "clock")
    _only(clock, ("frozen",), "clock")
    if not isinstance(clock.get("frozen", False), bool):
        raise ConfigError(f"clock: frozen is true or false, not {clock['frozen']!r}")
    if users:
        config.setdefault("minibroker.security.protocol", "SASL_PLAINTEXT")
        known = [config["minibroker.sasl.users"]] if "minibroker.sasl.users" in config else []
        config["minibroker.sasl.users"] = ",".join([*known, *(_user(name, word) for name, word in users.items())])
    if acls:
        config.setdefault("authorizer.class.name", _AUTHORIZER)
    return Setup(
        config=config,
        topics=tuple(_topic(name, value) for name, value in _table(table, "topics").items()),
        acls=tuple(entry for number, acl in enumerate(acls, 1) for entry in _acl(acl, f"acls, entry {number}")),
        rules=tuple(_rule(rule, f"rules, entry {number}") for number, rule in enumerate(_list(table, "rules"), 1)),
        clock_frozen=clock.get("frozen", False),
    )


def _only(table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"{what} has no {name!r}{near(name, known) or '; it has ' + ', '.join(known)}")


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is a table, such as [{name}]")
    return value


def _list(table: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigError(f"each entry of {name} begins with [[{name}]]")
    return value


def _config(table: Mapping[str, Any]) -> dict[str, str]:
    """Settings, also where a name without quotes made tables of them."""
    settings: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            settings |= {f"{name}.{rest}": text for rest, text in _config(value).items()}
        elif isinstance(value, list):
            settings[name] = ",".join(map(str, value))
        else:
            settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def _user(name: str, password: Any) -> str:
    if not isinstance(password, str) or not password or "," in password or ":" in name or "," in name:
        raise ConfigError(f"users: {name!r} needs a password, a text without a comma; a name has no colon and no comma")
    return f"{name}:{password}"


def _topic(name: str, value: Any) -> CreateTopicsRequest.CreatableTopic:
    table = {"partitions": value} if isinstance(value, int) else value
    if not isinstance(table, dict):
        raise ConfigError(f"topics: {name!r} is a number of partitions or a table, not {value!r}")
    _only(table, ("partitions", "replication_factor", "config"), f"topics: {name!r}")
    partitions, replicas = table.get("partitions", 1), table.get("replication_factor", -1)
    check_topic(name, partitions)
    if type(replicas) is not int or replicas == 0 or replicas < -1:
        raise ConfigError(f"topics: {name!r} needs a replication_factor from 1 on, not {replicas!r}")
    configs = _config(_table(table, "config"))
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=text) for key, text in configs.items()],
    )


def _acl(table: Mapping[str, Any], where: str) -> list[CreateAclsRequest.AclCreation]:
    from minibroker.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType

    _only(table, ("principal", "operations", "permission", "host", "pattern", *_RESOURCES), where)
    named = [name for name in _RESOURCES if name in table]
    if "principal" not in table or "operations" not in table or len(named) != 1:
        raise ConfigError(f"{where}: it has principal, operations, and one of {', '.join(_RESOURCES)}")
    resource = named[0]
    operations = table["operations"]

    def choice(kind: Any, name: str, text: Any) -> Any:
        by_name = {member.name: member for member in kind if member.name not in ("UNKNOWN", "ANY", "MATCH")}
        member = by_name.get(str(text).upper())
        if member is None:
            raise ConfigError(
                f"{where}: {name} has no {text!r}{near(str(text).upper(), by_name) or ': ' + ', '.join(by_name)}"
            )
        return member

    if resource == "cluster" and table["cluster"] is not True:
        raise ConfigError(f"{where}: cluster is true")
    return [
        CreateAclsRequest.AclCreation(
            resource_type=ResourceType[resource.upper()],
            resource_name=_CLUSTER if resource == "cluster" else str(table[resource]),
            resource_pattern_type=choice(PatternType, "pattern", table.get("pattern", "literal")),
            principal=str(table["principal"]),
            host=str(table.get("host", "*")),
            operation=choice(AclOperation, "operations", operation),
            permission_type=choice(AclPermissionType, "permission", table.get("permission", "allow")),
        )
        for operation in (operations if isinstance(operations, list) else [operations])
    ]


def _rule(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    from minibroker.faults.rules import rule_from
    from minibroker.handlers.table import apis, apis_of_brokers

    try:
        rule_from(table).checked(apis(), apis_of_brokers())
    except FaultError as error:
        raise ConfigError(f"{where}: {error}") from None
    return table


async def apply(setup: Setup, cluster: Cluster, call: Call) -> None:
    """Do what the file says, once the cluster has started. Raises ApiError, FaultError."""
    from minibroker.faults.operations import create_topics

    existing = {topic.name for topic in cluster.image.topics.values()}
    await create_topics(cluster, [topic for topic in setup.topics if topic.name not in existing])
    if setup.acls:
        response = await cluster.controller.handle(CreateAclsRequest(creations=list(setup.acls)), _CREATE_ACLS_VERSION)
        assert isinstance(response, CreateAclsResponse)
        for result in response.results:
            if result.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(result.error_code), result.error_message or "")
    for rule in setup.rules:
        call("fault.add", rule)
    if setup.clock_frozen:
        call("clock.freeze", {})
