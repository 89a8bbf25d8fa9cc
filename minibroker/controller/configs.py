"""AlterConfigs and IncrementalAlterConfigs on the controller (Kafka's ConfigurationControlManager)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from minibroker.config.client_metrics import refusal_of_match, validate_client_metrics
from minibroker.config.groups import validate_group_config
from minibroker.config.keys import TOPIC_KEYS
from minibroker.config.settings import ConfigError, broker_key, validate_topic_config
from minibroker.config.types import ConfigKey, ConfigType
from minibroker.controller.state import ControllerState, Steps
from minibroker.controller.topics import check_topic_name
from minibroker.kernel.executor import Executor
from minibroker.kernel.logs import NAMED_LEVELS, logger_levels, set_logger_level
from minibroker.metadata.config_resources import ConfigResourceType, node_id_of
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode


class AlterConfigOpType(IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource | m.AlterConfigsRequest.AlterConfigsResource
Change = Callable[[Mapping[str, str]], dict[str, str]]
"""From a resource's current overrides to the new ones."""
_PATTERN_AT_ONCE = 256
"""Characters of a pattern that are looked at in the loop itself: about 0.3 ms."""


class ConfigControl:
    """Config requests against one `ControllerState`; each resource succeeds or fails as a whole. One that a request
    names twice is refused as often as it is named (ConfigAdminManager.preprocess); to AlterConfigs Kafka 4.3.1 gives no
    answer at all then, and does the rest."""

    def __init__(self, state: ControllerState, executor: Executor, unknown_logger_operation: ErrorCode) -> None:
        self._state = state
        self._executor = executor
        #: Values of `match` of the current request whose patterns are already checked (`refusal_of_match`).
        self._checked: dict[str, ConfigError | None] = {}
        self._unknown_logger_operation = unknown_logger_operation

    def incremental_alter(self, request: m.IncrementalAlterConfigsRequest) -> Steps[m.IncrementalAlterConfigsResponse]:
        kind = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

        def work(resource: Any) -> Callable[[], None]:
            if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                return partial(self._alter_loggers, resource, validate_only=request.validate_only)
            return partial(self._alter, resource, partial(_incremented, resource), request.validate_only)

        return m.IncrementalAlterConfigsResponse(responses=(yield from self._each(request.resources, kind, work)))

    def alter(self, request: m.AlterConfigsRequest) -> Steps[m.AlterConfigsResponse]:
        """The old form: what the request does not name goes back to its default."""
        kind = m.AlterConfigsResponse.AlterConfigsResourceResponse

        def work(resource: Any) -> Callable[[], None]:
            return partial(self._alter, resource, partial(_replaced, resource), request.validate_only)

        return m.AlterConfigsResponse(responses=(yield from self._each(request.resources, kind, work)))

    def _each(
        self, resources: Sequence[Any], kind: Callable[..., Any], work: Callable[[Any], Callable[[], None]]
    ) -> Steps[list[Any]]:
        """The result for each resource of type `kind`, once its change is done or refused."""
        counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        responses = []
        for resource in resources:
            yield None
            if resource.resource_type == ConfigResourceType.CLIENT_METRICS:
                yield from self._check_patterns(resource)
            code, message = _refusal(counts, resource, work(resource))
            place = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
            responses.append(kind(error_code=code, error_message=message, **place))
        return responses

    def _check_patterns(self, resource: _Resource) -> Steps[None]:
        """Look at long patterns on the computing thread."""
        self._checked.clear()
        for config in resource.configs:
            text = config.value if config.name == "match" else None
            if text is not None and len(text) > _PATTERN_AT_ONCE and text not in self._checked:
                checking = self._executor.compute(partial(refusal_of_match, text))
                yield checking
                self._checked[text] = checking.result()

    def _alter(self, resource: _Resource, change: Change, validate_only: bool) -> None:
        kind, name = resource.resource_type, resource.resource_name
        if kind == ConfigResourceType.TOPIC:
            self._alter_topic(name, change, validate_only=validate_only)
        elif kind == ConfigResourceType.BROKER:
            self._alter_broker(name, change, validate_only=validate_only)
        elif kind == ConfigResourceType.GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            self._alter_other(ConfigResourceType.GROUP, name, change, validate_only=validate_only)
        elif kind == ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
            self._alter_other(ConfigResourceType.CLIENT_METRICS, name, change, validate_only=validate_only)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")

    def _alter_other(self, kind: ConfigResourceType, name: str, change: Change, *, validate_only: bool) -> None:
        current = self._state.image.configs_of(kind, name)
        wanted = change(current)
        if kind is ConfigResourceType.GROUP:
            validate_group_config(wanted, self._state.settings)
        else:
            stands = {current["match"]: None} if "match" in current else {}
            validate_client_metrics(wanted, {**stands, **self._checked})
        if not validate_only and wanted != current:
            self._state.set_resource_configs(kind, name, wanted)

    def _check_node(self, node: str, expected: str) -> str:
        """The id of a broker as it is usually written.

        expected: how Kafka begins to name the one that was meant.
        """
        node_id = node_id_of(node)
        if node_id is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {node}")
        if node_id not in self._state.image.brokers:
            # After the last one was unregistered there is none, as far as the controller knows.
            meant = min(self._state.image.brokers, default="a registered one")
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected {expected} {meant}, but received {node}")
        return str(node_id)

    def _alter_loggers(
        self, resource: m.IncrementalAlterConfigsRequest.AlterConfigsResource, *, validate_only: bool
    ) -> None:
        """Levels of the loggers of this process, until it ends (Kafka's LoggingController)."""
        node = resource.resource_name
        self._check_node(node, "node id. Expected")
        levels = logger_levels()
        for change in resource.configs:
            _check_logger_change(change, levels, self._unknown_logger_operation)
        if not validate_only:
            for change in resource.configs:
                set_logger_level(
                    change.name, change.value if change.config_operation == AlterConfigOpType.SET else None
                )

    def _alter_topic(self, name: str, change: Change, *, validate_only: bool) -> None:
        topic = self._state.image.topics.get(name)
        wanted = change({} if topic is None else topic.configs)
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        validate_topic_config(wanted, self._state.settings)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if not validate_only:
            self._state.set_topic_configs(name, wanted)

    def _alter_broker(self, node: str, change: Change, *, validate_only: bool) -> None:
        if node:
            node = self._check_node(node, "broker id, expected")
        wanted = change(self._state.image.broker_configs.get(node, {}))
        try:
            self._state.settings.altered(**{"broker" if node else "cluster": wanted})
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if not validate_only:
            self._state.set_broker_configs(node, wanted)


def _refusal(
    counts: Counter[tuple[int, str]], resource: _Resource, work: Callable[[], None]
) -> tuple[ErrorCode, str | None]:
    """Do the work for one resource, and say how it went.

    counts: how often the request names each (type, name).
    """
    try:
        if counts[resource.resource_type, resource.resource_name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        names = [config.name for config in resource.configs]
        if len(set(names)) != len(names):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        work()
    except ApiError as error:
        return error.code, error.message or None
    except ConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    return ErrorCode.NONE, None


def _check_logger_change(
    change: m.IncrementalAlterConfigsRequest.AlterableConfig, known: Mapping[str, str], unknown_operation: ErrorCode
) -> None:
    operation, name = change.config_operation, change.name
    if operation in (AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{AlterConfigOpType(operation).name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if operation == AlterConfigOpType.SET and change.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if operation not in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
        text = f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"
        raise ApiError(unknown_operation, text if unknown_operation is ErrorCode.INVALID_REQUEST else "")
    if name not in known:
        raise ConfigError(f"Logger {name} does not exist!")
    if operation == AlterConfigOpType.DELETE:
        if name == "root":
            raise ApiError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    elif change.value not in NAMED_LEVELS:
        raise ConfigError(
            f"Cannot set the log level of {name} to {change.value} as it is not a supported log level. Valid log "
            f"levels are {', '.join(sorted(NAMED_LEVELS))}"
        )


def _incremented(
    resource: m.IncrementalAlterConfigsRequest.AlterConfigsResource, current: Mapping[str, str]
) -> dict[str, str]:
    wanted = dict(current)
    for config in resource.configs:
        operation = config.config_operation
        if operation == AlterConfigOpType.DELETE:
            wanted.pop(config.name, None)
        elif config.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        elif operation == AlterConfigOpType.SET:
            wanted[config.name] = config.value
        elif operation in (AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT):
            key = _key(resource.resource_type, config.name)
            if key is None or key.type is not ConfigType.LIST:
                what = f"{AlterConfigOpType(operation).name} to key {config.name}"
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Can't {what} because its type is not LIST.")
            wanted[config.name] = _list_changed(key, wanted, config.value, AlterConfigOpType(operation))
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    return wanted


def _key(kind: int, name: str) -> ConfigKey | None:
    return broker_key(name) if kind == ConfigResourceType.BROKER else TOPIC_KEYS.get(name)


def _list_changed(key: ConfigKey, current: Mapping[str, str], value: str, operation: AlterConfigOpType) -> str:
    """The list after an operation on the current text, or on the key's default: settings of the start do not count."""
    text = current[key.name] if key.name in current else key.format(key.default) or ""
    items = [item for item in text.split(",") if item]
    operands = [] if set(value) == {","} else value.rstrip(",").split(",")  # as Java's split does
    if operation is AlterConfigOpType.APPEND:
        there = set(items)
        return ",".join([*items, *(item for item in dict.fromkeys(operands) if item not in there)])
    removed = Counter(operands)
    kept = []
    for item in items:
        if removed[item]:
            removed[item] -= 1
        else:
            kept.append(item)
    return ",".join(kept)


def _replaced(resource: m.AlterConfigsRequest.AlterConfigsResource, _: Mapping[str, str]) -> dict[str, str]:
    """What the request does not name goes back to its default."""
    wanted = {}
    for config in resource.configs:
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        wanted[config.name] = config.value
    return wanted
