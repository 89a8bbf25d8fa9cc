"""Creates the authorizer that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.config.types import ConfigError
from minibroker.security.acls import Authorizer

if TYPE_CHECKING:
    from minibroker.config.settings import Settings

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def create_authorizer(settings: Settings) -> Authorizer | None:
    """None where authorizer.class.name is unset. Raises ConfigError for a class that is not Kafka's own, and for a
    super user without a type."""
    name = settings.get_string("authorizer.class.name")
    if not name:
        return None
    if name != STANDARD:
        raise ConfigError(f"authorizer.class.name: there is only {STANDARD}, not {name}")
    users = [user.strip() for user in settings.get_string("super.users").split(";") if user.strip()]
    for user in users:
        if ":" not in user:
            raise ConfigError(f"super.users: expected TYPE:NAME, such as User:admin, got {user!r}")

    return Authorizer(frozenset(users), settings.get_boolean("allow.everyone.if.no.acl.found"))
