"""Dependencies of a group coordinator: settings, clocks, timers, names and the cluster's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.clock import Clock
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.config_resources import ConfigResourceType
from minibroker.metadata.image import MetadataImage
from minibroker_protocol.errors import ErrorCode

TimerKey = tuple[str, str, str]
"""(kind of wait, group id, member id or "")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of the coordinator; times are milliseconds (Kafka's GroupCoordinatorConfig). The last three are those of
    `Semantics`."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_chars: int = 4096
    offsets_retention_ms: int = 10_080 * 60_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5000
    consumer_max_size: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    consumer_assignment_interval_ms: int = 1000
    consumer_regex_refresh_interval_ms: int = 600_000
    consumer_enabled: bool = True
    unreadable_subscription: ErrorCode = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assignor_bumps_epoch: bool = True
    empty_group_is_assigned: bool = True


def with_overrides(config: GroupConfig, overrides: Mapping[str, str]) -> GroupConfig:
    """overrides: a group's own configs, checked when they were set; those of other kinds of groups say nothing here."""
    from minibroker.config.groups import GROUP_KEYS

    own = {name: GROUP_KEYS[name].parse(text) for name, text in overrides.items() if GROUP_KEYS[name].effect}
    return replace(config, **{name.replace(".", "_"): value for name, value in own.items()})  # type: ignore[arg-type]


class GroupTimers(Protocol):
    """Waits in real time. One timer a key: scheduling it again replaces it, unless it is to be absent.

    What the operation returns is made durable like the outcome of a request.
    """

    def schedule(self, key: TimerKey, delay_ms: float, operation: Callable[[], CoordinatorResult[None]]) -> None: ...

    def schedule_if_absent(
        self, key: TimerKey, delay_ms: float, operation: Callable[[], CoordinatorResult[None]]
    ) -> None: ...

    def cancel(self, key: TimerKey) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The sender of a request.

    client_host: as Java prints an address, "/127.0.0.1".
    may_describe: whether the client may describe a topic, by name.
    """

    client_id: str
    client_host: str
    api_version: int
    may_describe: Callable[[str], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Environment:
    """config: read anew for each decision, so that it may be altered.
    clock: stamps records and ages offsets.
    aside: does what takes long on another thread.

    new_uuid, new_id: a random UUID as Java's and as Kafka's own class print it, for member ids.
    """

    config: Callable[[], GroupConfig]
    clock: Clock
    timers: GroupTimers
    new_uuid: Callable[[], str]
    new_id: Callable[[], str]
    image: Callable[[], MetadataImage]
    aside: Callable[[Callable[[], Any]], Deferred[Any]]

    def config_of(self, group_id: str) -> GroupConfig:
        """The settings, with this group's own configs applied."""
        config, overrides = self.config(), self.image().configs_of(ConfigResourceType.GROUP, group_id)
        return with_overrides(config, overrides) if overrides else config

    def now_ms(self) -> int:
        return self.clock.now_ms()


def session_key(group_id: str, member_id: str) -> TimerKey:
    return ("session", group_id, member_id)


def join_key(group_id: str) -> TimerKey:
    return ("join", group_id, "")


def sync_key(group_id: str) -> TimerKey:
    return ("sync", group_id, "")


def rebalance_key(group_id: str, member_id: str) -> TimerKey:
    return ("rebalance", group_id, member_id)
