"""AlterConfigs and IncrementalAlterConfigs on the controller (Kafka's ConfigurationControlManager)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum

from minibroker.config.keys import TOPIC_KEYS
from minibroker.config.settings import ConfigError, validate_topic_config
from minibroker.config.types import ConfigType
from minibroker.controller.state import ControllerState, Steps
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Change = Callable[[Mapping[str, str]], dict[str, str]]
"""From a resource's current overrides to the new ones."""


class ConfigControl:
    """Config requests against one `ControllerState`; each resource succeeds or fails as a whole. One that a request
    names twice is refused as often as it is named (ConfigAdminManager.preprocess); to AlterConfigs Kafka 4.3.1 gives no
    answer at all then, and does the rest."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def incremental_alter(self, request: IncrementalAlterConfigsRequest) -> Steps[IncrementalAlterConfigsResponse]:
        responses = []
        counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        for resource in request.resources:
            yield
            code, message = self._alter(
                counts,
                resource.resource_type,
                resource.resource_name,
                lambda current, r=resource: _incremented(current, r),  # type: ignore[misc]
                validate_only=request.validate_only,
            )
            responses.append(
                IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    def alter(self, request: AlterConfigsRequest) -> Steps[AlterConfigsResponse]:
        """The old form: what the request does not name goes back to its default."""
        responses = []
        counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        for resource in request.resources:
            yield
            wanted = {c.name: c.value for c in resource.configs}
            code, message = self._alter(
                counts,
                resource.resource_type,
                resource.resource_name,
                lambda _, w=wanted: _replaced(w),  # type: ignore[misc]
                validate_only=request.validate_only,
            )
            responses.append(
                AlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return AlterConfigsResponse(responses=responses)

    def _alter(
        self, counts: Counter[tuple[int, str]], kind: int, name: str, change: Change, *, validate_only: bool
    ) -> tuple[ErrorCode, str | None]:
        """counts: how often the request names each (type, name)."""
        try:
            if counts[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if kind == ResourceType.TOPIC:
                self._alter_topic(name, change, validate_only=validate_only)
            elif kind == ResourceType.BROKER:
                self._alter_broker(name, change, validate_only=validate_only)
            else:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type {kind}.")
        except ApiError as error:
            return error.code, error.message
        except ConfigError as error:
            return ErrorCode.INVALID_CONFIG, str(error)
        return ErrorCode.NONE, None

    def _alter_topic(self, name: str, change: Change, *, validate_only: bool) -> None:
        topic = self._state.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        wanted = change(topic.configs)
        validate_topic_config(wanted, self._state.settings)
        if not validate_only:
            self._state.set_topic_configs(name, wanted)

    def _alter_broker(self, node: str, change: Change, *, validate_only: bool) -> None:
        if node and not (node.isascii() and node.isdigit() and int(node) in self._state.image.brokers):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id '{node}'.")
        wanted = change(self._state.image.broker_configs.get(node, {}))
        if node:
            self._state.settings.altered(broker=wanted)
        else:
            self._state.settings.altered(cluster=wanted)
        if not validate_only:
            self._state.set_broker_configs(node, wanted)


def _incremented(
    current: Mapping[str, str], resource: IncrementalAlterConfigsRequest.AlterConfigsResource
) -> dict[str, str]:
    wanted = dict(current)
    seen = set()
    for config in resource.configs:
        if config.name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {config.name}")
        seen.add(config.name)
        operation = config.config_operation
        if operation == Operation.DELETE:
            wanted.pop(config.name, None)
        elif config.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        elif operation == Operation.SET:
            wanted[config.name] = config.value
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            wanted[config.name] = _list_changed(config.name, wanted, config.value, append=operation == Operation.APPEND)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation}")
    return wanted


def _list_changed(name: str, current: Mapping[str, str], value: str, *, append: bool) -> str:
    key = TOPIC_KEYS.get(name)
    if key is None or key.type is not ConfigType.LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {'APPEND to' if append else 'SUBTRACT from'} key {name} because its type is not LIST.",
        )
    text = current[name] if name in current else key.format(key.default) or ""
    items = [item for item in text.split(",") if item]
    for item in value.split(","):
        if append and item not in items:
            items.append(item)
        elif not append and item in items:
            items.remove(item)
    return ",".join(items)


def _replaced(wanted: Mapping[str, str | None]) -> dict[str, str]:
    for name, value in wanted.items():
        if value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
    return {name: value for name, value in wanted.items() if value is not None}
