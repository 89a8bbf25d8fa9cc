"""Actions of fault rules: one class each, and one table of them.

Each says in `problem` which requests it cannot be done to, and in `run` what it does to one that can. Commands,
OpenAPI, the live page and the docs take its name, its fields with their kinds (`action_fields`) and its docstring from
here; a new action is a class and its place in `_CLASSES`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from minibroker.faults.action_fields import (
    AnswerOrRequest,
    Arguments,
    BeforeOrAfter,
    Code,
    Copies,
    Flag,
    Message,
    Number,
    Operation,
    Position,
    When,
    check_fields,
    kinds_of,
    needed_by,
)
from minibroker.faults.facts import carried_by
from minibroker.faults.operations import check_arguments, run_operation
from minibroker.faults.taken_values import BROKERS, EXAMPLE, filled, is_taken, values_of
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near, reason
from minibroker.requests.context import CloseConnection
from minibroker.requests.error_responses import can_fail, error_response
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.requests.api import Api
    from minibroker.requests.dispatch import Answered
    from minibroker.requests.tapped_request import TappedRequest
    from minibroker_protocol.dsl import Response


class Stage(Protocol):
    """What an action may use beside the request."""

    @property
    def cluster(self) -> Cluster: ...

    def sleep(self, ms: float) -> Deferred[None]:
        """Real time."""

    def hold(self) -> Deferred[None]:
        """Resolved by a release of the rule; fails with CloseConnection when the rule or the broker goes."""

    def going(self, tapped: TappedRequest) -> Deferred[None]:
        """Resolved once the broker of the request is not paused; fails with CloseConnection when it is gone."""

    def silence(self, tapped: TappedRequest) -> Deferred[None]:
        """Never resolved, for this request and all later ones of its client, until the rule goes."""

    def postpone(self, tapped: TappedRequest, within_ms: float) -> None:
        """Serve the request after the next one of its connection, or alone once the time is up."""

    def later(self, ms: float, tapped: TappedRequest) -> None:
        """Apply it; the answer is discarded."""


class Action:
    """What a rule does to a request that it fits. Raises FaultError for a field that no rule can have."""

    name: ClassVar[str]
    needs_cluster: ClassVar[bool] = False
    """Whether it acts on what brokers keep, and not only on requests and answers."""

    def __post_init__(self) -> None:
        check_fields(self.name, self)

    @property
    def for_brokers(self) -> bool:
        """Whether it can be done to requests between brokers."""
        return True

    def problem(self, api: Api) -> str | None:
        """Why the action does not apply to requests of `api`, or None."""
        return None

    @abstractmethod
    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        """Serve the request as this action does. Raises CloseConnection to end the connection instead."""


@dataclass(frozen=True, slots=True)
class Error(Action):
    """Answer with an error and do not apply the request."""

    name = "error"
    code: Code
    message: Message = None

    def __post_init__(self) -> None:
        Action.__post_init__(self)
        code = self.code
        object.__setattr__(self, "code", ErrorCode[code.upper()] if isinstance(code, str) else ErrorCode(code))

    def problem(self, api: Api) -> str | None:
        return None if can_fail(api.request) else f"an answer of {api.name} has no place for an error"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        return _fail(tapped, self.code, self.message)


@dataclass(frozen=True, slots=True)
class ApplyThenError(Error):
    """Apply the request, and answer with an error as though it had not been applied."""

    name = "apply_then_error"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        await tapped.apply()
        return _fail(tapped, self.code, self.message)


def _fail(tapped: TappedRequest, code: ErrorCode | str | int, message: str | None) -> Answered:
    assert isinstance(code, ErrorCode)
    if getattr(tapped.request, "acks", -1) == 0:
        raise CloseConnection(f"fault: {code.name} for a Produce that wants no answer")
    return tapped.encode(error_response(tapped, code, message))


@dataclass(frozen=True, slots=True)
class DropReply(Action):
    """Apply the request and lose the answer: close the connection, or with `close` False drop only the answer, so that
    the client waits for its own timeout."""

    name = "drop_reply"
    close: Flag = True

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        await tapped.apply()
        if not self.close:
            await stage.hold()
        raise CloseConnection(f"fault: the reply to {tapped.api.name} is dropped")


class _Around(Action):
    """Does something `when` it is time, before the request is applied or before its answer leaves."""

    when: When

    @abstractmethod
    async def _meanwhile(self, tapped: TappedRequest, stage: Stage) -> None: ...

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        response = None if self.when == "before" else await tapped.apply()
        await self._meanwhile(tapped, stage)
        await stage.going(tapped)
        return tapped.encode(await tapped.apply() if self.when == "before" else response)


@dataclass(frozen=True, slots=True)
class Delay(_Around):
    """Wait `ms` of real time, before the request is applied or before its answer leaves."""

    name = "delay"
    ms: Number
    when: BeforeOrAfter = "before"

    async def _meanwhile(self, tapped: TappedRequest, stage: Stage) -> None:
        await stage.sleep(self.ms)


@dataclass(frozen=True, slots=True)
class Hold(_Around):
    """Hold the request, or its answer, until the rule is released. A retry of the client is another request."""

    name = "hold"
    when: BeforeOrAfter = "before"

    async def _meanwhile(self, tapped: TappedRequest, stage: Stage) -> None:
        await stage.hold()


@dataclass(frozen=True, slots=True)
class Reorder(Action):
    """Apply the request after the next one of its connection; alone when none comes within `within_ms`."""

    name = "reorder"
    within_ms: Number = 500

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        if tapped.context.connection.channel is None:
            return tapped.encode(await tapped.apply())
        stage.postpone(tapped, self.within_ms)
        return None


@dataclass(frozen=True, slots=True)
class Duplicate(Action):
    """Apply the request again, `copies` times: at once, or `after_ms` later. The client gets only the first answer."""

    name = "duplicate"
    copies: Copies = 1
    after_ms: Number = 0

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        copies = [tapped.copy() for _ in range(self.copies)]
        response = await tapped.apply()
        for copy in copies:
            if self.after_ms:
                stage.later(self.after_ms, copy)
            else:
                await copy.apply()
        return tapped.encode(response)


@dataclass(frozen=True, slots=True)
class Truncate(Action):
    """Apply the request, send the first `keep` bytes of the answer, its size included, and close the connection."""

    name = "truncate"
    keep: Number = 6

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        buffers = tapped.encode(await tapped.apply()) or []
        channel = tapped.context.connection.channel
        if channel is not None:
            channel.push([b"".join(buffers)[: self.keep]])
        raise CloseConnection(f"fault: the reply to {tapped.api.name} is cut off")


@dataclass(frozen=True, slots=True)
class Corrupt(Action):
    """Flip the bits of one byte of the answer or the request, as a network without checksums could.

    of: the ``answer`` of the applied request, or the ``request`` itself.
    at: which byte, counted from an answer's correlation id or a request's first field on, or from the end when
    negative. None: the last of the record batches, whose checksum is then wrong; without any the first of an answer's
    correlation id, which then matches no request, and the last of a request.
    """

    name = "corrupt"
    at: Position = None
    of: AnswerOrRequest = "answer"

    @property
    def for_brokers(self) -> bool:
        return self.of == "answer"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        if self.of == "request":
            return await self._run_on_request(tapped)
        response = await tapped.apply()
        buffers = tapped.encode(response)
        if not buffers:
            return buffers
        frame = bytearray(b"".join(buffers))
        if self.at is None:
            at = _end_of_records(frame, response) or _SIZE_BYTES
        else:
            at = self.at + (_SIZE_BYTES if self.at >= 0 else len(frame))
        frame[min(max(at, _SIZE_BYTES), len(frame) - 1)] ^= 0xFF
        return [frame]

    async def _run_on_request(self, tapped: TappedRequest) -> Answered:
        body = bytearray(tapped.body)
        at = (_end_of_records(body, tapped.request) or -1) if self.at is None else self.at
        body[min(max(at + (len(body) if at < 0 else 0), 0), len(body) - 1)] ^= 0xFF
        try:
            damaged = tapped.with_body(body)
        except Malformed as error:
            raise CloseConnection(f"fault: the request is damaged: {error}") from None
        return damaged.encode(await damaged.apply())


_SIZE_BYTES = 4


def _end_of_records(frame: bytearray, message: Any) -> int:
    """Position of the last byte of the last records in a Fetch response or a Produce request; 0 without any."""
    for topic in reversed(getattr(message, "responses", None) or getattr(message, "topic_data", None) or []):
        for partition in reversed(getattr(topic, "partitions", None) or getattr(topic, "partition_data", None) or []):
            records = getattr(partition, "records", None)
            data = b"".join(records) if isinstance(records, list) else bytes(records or b"")
            if data:
                return frame.rindex(data) + len(data) - 1
    return 0


@dataclass(frozen=True, slots=True)
class Close(Action):
    """Close the connection without applying the request."""

    name = "close"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        raise CloseConnection(f"fault: closed at {tapped.api.name}")


@dataclass(frozen=True, slots=True)
class Reset(Action):
    """Reset the connection (TCP RST) without applying the request."""

    name = "reset"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        channel = tapped.context.connection.channel
        if channel is None:
            raise CloseConnection(f"fault: reset at {tapped.api.name}")
        channel.reset()
        return None


@dataclass(frozen=True, slots=True)
class BlackHole(Action):
    """Serve neither the request nor anything that its client (by client id) sends later, until the rule is removed."""

    name = "black_hole"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        await stage.silence(tapped)
        raise CloseConnection("fault: the black hole is gone")


def _throttle_field(api: Api) -> str | None:
    return next((field.name for field in api.response.__fields__ if field.throttle), None)


async def _apply_throttled(tapped: TappedRequest) -> Response | None:
    """The response under a quota: of a Fetch no topics, and the id of a session only if it existed (Kafka's
    FetchContext.getThrottledResponse)."""
    if not isinstance(tapped.request, FetchRequest):
        response: Response | None = await tapped.apply()
        return response
    if tapped.request.session_epoch <= 0:
        return FetchResponse()
    applied: FetchResponse = await tapped.apply()
    return FetchResponse(error_code=applied.error_code, session_id=applied.session_id)


@dataclass(frozen=True, slots=True)
class Throttle(Action):
    """Answer with this throttle time, and read nothing more of the connection until it is over (KIP-219). A Fetch is
    answered without topics, as by Kafka over a quota; other requests are applied and answered in full."""

    name = "throttle"
    ms: Number

    @property
    def for_brokers(self) -> bool:
        return False

    def problem(self, api: Api) -> str | None:
        return None if _throttle_field(api) is not None else f"an answer of {api.name} has no throttle time"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        response = await _apply_throttled(tapped)
        field = _throttle_field(tapped.api)
        if response is not None and field is not None:
            setattr(response, field, self.ms)
        channel = tapped.context.connection.channel
        if channel is not None:
            channel.mute(self.ms)
        return tapped.encode(response)


@dataclass(frozen=True, slots=True)
class NoRecords(Action):
    """Answer Fetch without its records. The offsets stay: the high watermark says that there are some."""

    name = "no_records"

    def problem(self, api: Api) -> str | None:
        return None if api.response is FetchResponse else f"an answer of {api.name} has no records"

    async def run(self, tapped: TappedRequest, stage: Stage) -> Answered:
        response = await tapped.apply()
        for topic in response.responses if response is not None else ():
            for partition in topic.partitions:
                partition.records = b""
        return tapped.encode(response)


@dataclass(frozen=True, slots=True)
class Do(_Around):
    """Change the state of the cluster, by an operation of `minibroker.faults.operations`, before the request is
    applied or between that and its answer.

    An argument may be taken from the request: ``$topic`` and ``$partition`` (the first that it names), ``$group``,
    ``$transactional_id``, ``$producer_id``; ``$broker`` received it, ``$other_broker`` is the next that runs. A request
    without it is only applied.
    """

    name = "do"
    needs_cluster = True
    operation: Operation
    arguments: Arguments = field(default_factory=dict)
    when: BeforeOrAfter = "before"

    def __post_init__(self) -> None:
        Action.__post_init__(self)
        check_arguments(self.operation, {name: filled(value, EXAMPLE) for name, value in self.arguments.items()})

    def problem(self, api: Api) -> str | None:
        named = {value[1:] for value in self.arguments.values() if is_taken(value)}
        missing = named - BROKERS - carried_by(api.request)
        return f"{api.name} names no {min(missing)}" if missing else None

    async def _meanwhile(self, tapped: TappedRequest, stage: Stage) -> None:
        values = values_of(tapped, stage.cluster)
        try:
            arguments = {name: filled(value, values) for name, value in self.arguments.items()}
        except KeyError:
            return
        try:
            await run_operation(stage.cluster, self.operation, arguments)
        except (ApiError, FaultError) as error:
            raise CloseConnection(f"fault: {self.operation} cannot be done: {reason(error)}") from None


_CLASSES: tuple[type[Action], ...] = (
    Error, ApplyThenError, DropReply, Delay, Hold, Reorder, Duplicate, Truncate, Corrupt, Close, Reset, BlackHole,
    Throttle, NoRecords, Do,
)  # fmt: skip
ACTIONS: dict[str, type[Action]] = {kind.name: kind for kind in _CLASSES}


def action_from(text_or_table: Any) -> Action:
    """The action that ``{"name": …, …}``, or a name alone, describes. Raises FaultError."""
    if isinstance(text_or_table, Action):
        return text_or_table
    if isinstance(text_or_table, str):
        text_or_table = {"name": text_or_table}
    if not isinstance(text_or_table, Mapping) or not isinstance(text_or_table.get("name"), str):
        raise FaultError("a rule needs an action: a name, or an object with a name")
    kind = ACTIONS.get(text_or_table["name"])
    if kind is None:
        raise FaultError(f"there is no action {text_or_table['name']!r}{near(text_or_table['name'], ACTIONS)}")
    values = {name: value for name, value in text_or_table.items() if name != "name"}
    kinds = kinds_of(kind)
    for name in values:
        if name not in kinds:
            has = ", ".join(kinds) or "nothing to set"
            raise FaultError(f"{kind.name} has no {name!r}{near(name, kinds) or f'; it has {has}'}")
    for name in needed_by(kind):
        if name not in values:
            raise FaultError(f'{kind.name} needs {name}, as in {{"name": "{kind.name}", "{name}": …}}')
    return kind(**values)


def within_action(field: str, action: Any) -> str:
    """The hint for a field of actions that was given beside `action`; empty for a field that no action has."""
    named = action.get("name") if isinstance(action, Mapping) else getattr(action, "name", action)
    having = [name for name, kind in ACTIONS.items() if field in kinds_of(kind)]
    name = named if named in having else next(iter(having), None)
    return f': it belongs into the action, as in {{"name": "{name}", "{field}": …}}' if name else ""


def action_to(action: Action) -> dict[str, Any]:
    """An action as a JSON object."""
    table: dict[str, Any] = {"name": action.name}
    for known in fields(action):  # type: ignore[arg-type]
        value = getattr(action, known.name)
        if isinstance(value, ErrorCode):
            value = value.name
        elif isinstance(value, Mapping):
            value = dict(value)
        if value is not None:
            table[known.name] = value
    return table
