"""Kinds of fields that actions have: one place for what a value may be and how OpenAPI describes it.

An action's annotations name the kinds (`ms: Number`). Setting a rule, the control API's description, its command line
and the live page all read them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from minibroker.faults.names import ErrorName, OperationName
from minibroker.faults.operations import OPERATIONS
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near
from minibroker_protocol.errors import ErrorCode

_MOST_NUMBER: Final = (1 << 31) - 1
_MOST_COPIES: Final = 1000
_MOST_TEXT: Final = (1 << 15) - 1
"""Bytes: what Kafka's STRING holds."""


@dataclass(frozen=True, slots=True)
class Kind:
    """says: what a value must be.
    schema: the same as JSON schema.
    accepts: whether a value is one.
    """

    says: str
    schema: Mapping[str, Any]
    accepts: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= _MOST_TEXT
    except UnicodeEncodeError:
        return False


def _is_error_code(value: Any) -> bool:
    """Raises FaultError that suggests a similar name."""
    if isinstance(value, str):
        if value.upper() not in ErrorCode.__members__:
            raise FaultError(f"Kafka has no error {value!r}{near(value.upper(), ErrorCode.__members__)}")
        return True
    if _is_int(value) and value not in iter(ErrorCode):
        raise FaultError(f"Kafka has no error {value!r}")
    return _is_int(value)


def _number(most: int) -> Kind:
    schema = {"type": "integer", "minimum": 0, "maximum": most}
    return Kind(
        f"a number of 0 or more and at most {most}", schema, lambda value: _is_int(value) and 0 <= value <= most
    )


def _words(*words: str) -> Kind:
    return Kind(" or ".join(words), {"enum": list(words)}, lambda value: value in words)


When = Literal["before", "after"]
"""Relative to what the request changes: ``before`` it is applied, ``after`` between that and the reply."""
Of = Literal["answer", "request"]

Number = Annotated[int, _number(_MOST_NUMBER)]
Copies = Annotated[int, _number(_MOST_COPIES)]
Position = Annotated[
    int | None,
    Kind("a number or null", {"type": ["integer", "null"]}, lambda value: value is None or _is_int(value)),
]
Flag = Annotated[bool, Kind("true or false", {"type": "boolean"}, lambda value: isinstance(value, bool))]
Message = Annotated[
    str | None,
    Kind(
        f"text of at most {_MOST_TEXT} bytes, or null",
        {"type": ["string", "null"]},
        lambda value: value is None or _is_text(value),
    ),
]
Code = Annotated[
    ErrorCode | ErrorName | int,
    Kind(
        "the name or the number of one of Kafka's errors",
        {"type": ["string", "integer"], "description": "an error of Kafka"},
        _is_error_code,
    ),
]
Operation = Annotated[
    OperationName, Kind("the name of an operation", {"enum": sorted(OPERATIONS)}, lambda value: isinstance(value, str))
]
Arguments = Annotated[
    Mapping[str, Any],
    Kind(
        "an object",
        {"type": "object"},
        lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    ),
]
BeforeOrAfter = Annotated[When, _words(*get_args(When))]
AnswerOrRequest = Annotated[Of, _words(*get_args(Of))]


def kinds_of(action: type[Any]) -> Mapping[str, Kind]:
    """Field name -> kind, in the order of the class."""
    hints = get_type_hints(action, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in fields(action)}


def needed_by(action: type[Any]) -> tuple[str, ...]:
    """The fields without a default."""
    return tuple(f.name for f in fields(action) if f.default is MISSING and f.default_factory is MISSING)


def check_fields(name: str, action: object) -> None:
    """Raises FaultError for a field with a value of another kind.

    name: the name of the action.
    """
    for field, kind in kinds_of(type(action)).items():
        value = getattr(action, field)
        if not kind.accepts(value):
            raise FaultError(f"{name}: {field} is {kind.says}, not {value!r}")
