"""Fields of a message: the types, and what `f` declares about them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

Buffer = bytes | bytearray | memoryview

# What a field may be annotated with, besides ``list[...]`` of these, a nested struct, and ``... | None``.
# A type checker sees the Python type; codegen goes by the name.
int8 = int
int16 = int
uint16 = int
int32 = int
uint32 = int
int64 = int
float64 = float
bool_ = bool
uuid = bytes
"""16 raw bytes, most significant first; ``NO_ID`` when absent."""
string = str
bytes_ = bytes
Records = Buffer
"""Record batches: decoded to a memoryview into the input, encoded by reference."""
RecordBuffers = Buffer | list[Buffer]
"""Record batches that a response may gather from several buffers; decoded to one memoryview."""

NO_ID: Final = bytes(16)
_INT64_SIGN: Final = 1 << 63
NEVER: Final = 1 << 15
"""``__flexible__`` of a message that has no flexible version; above every version."""
_REQUIRED: Final = object()


def as_int64(value: int) -> int:
    """A sum or difference of two int64, wrapped as in Java. Sums with a number that a client chose are encoded so."""
    if -_INT64_SIGN <= value < _INT64_SIGN:
        return value
    return (value + _INT64_SIGN) % (_INT64_SIGN << 1) - _INT64_SIGN


class Field:
    """One field of a message: its name, annotation (as text) and the arguments of ``f``.

    ``versions``, ``nullable`` and ``tagged`` are inclusive ``(low, high)`` ranges of message versions, or None.
    ``entity``, ``map_key``, ``error``, ``error_message``, ``throttle``, ``answers`` and ``secret`` say what the value
    means; the codecs do not look at them.
    """

    __slots__ = (
        "annotation", "answers", "default", "entity", "error", "error_message", "flexible", "ignorable",
        "map_key", "name", "nullable", "secret", "tag", "throttle", "versions",
    )  # fmt: skip

    def __init__(self, said: dict[str, Any]) -> None:
        """said: the arguments of `f`."""
        # A start makes a thousand: one assignment each, not a loop.
        self.name = ""
        self.annotation = ""
        self.versions: tuple[int, int] = parse_versions(said["versions"]) if said["versions"] else (0, NEVER)
        self.nullable: tuple[int, int] | None = parse_versions(said["nullable"]) if said["nullable"] else None
        self.tag: int | None = said["tag"]
        self.default: Any = said["default"]
        self.ignorable: bool = said["ignorable"]
        self.flexible: bool = said["flexible"]
        self.entity: str | None = said["entity"]
        self.map_key: bool = said["map_key"]
        self.error: bool = said["error"]
        self.error_message: bool = said["error_message"]
        self.throttle: bool = said["throttle"]
        self.answers: str | None = said["answers"]
        self.secret: bool | str = said["secret"]

    @property
    def required(self) -> bool:
        """Whether a constructor must be given the field."""
        return self.default is _REQUIRED

    @property
    def array(self) -> bool:
        """Whether the value is a list."""
        return self.annotation.startswith("list[")

    @property
    def element(self) -> str:
        """The name of the type, or of a list's elements: ``list[Message.Topic] | None`` → ``Topic``."""
        text = self.annotation.removesuffix("| None").strip().removeprefix("list[").removesuffix("]").strip()
        return text.rpartition(".")[2]

    @property
    def records(self) -> bool:
        """Whether the value is record batches."""
        return self.element in ("Records", "RecordBuffers")

    def __repr__(self) -> str:
        return f"Field({self.name}: {self.annotation})"


def f(
    versions: str | None = None,
    *,
    nullable: str | None = None,
    tag: int | None = None,
    default: Any = _REQUIRED,
    ignorable: bool = False,
    flexible: bool = True,
    entity: str | None = None,
    map_key: bool = False,
    error: bool = False,
    error_message: bool = False,
    throttle: bool = False,
    answers: str | None = None,
    secret: bool | str = False,
) -> Any:
    """Say more about a field than its annotation does.

    ``versions`` and ``nullable`` are ranges of message versions ("3", "2-5", "4+"). A field with a ``tag`` is written
    as a tagged field, and only when it differs from its ``default``; a tagged struct has the default None, meaning
    absent. (Without a default, absence means a struct of defaults, and null is written.) A field that a version lacks
    may hold only its default there, unless it is ``ignorable``.
    ``flexible=False`` keeps the old length prefix in flexible versions too (RequestHeader.clientId).

    What a value means, in the words of Kafka's message definitions where they have one. Error answers, rights, faults
    and traces go by this, never by a field's name; the bytes do not depend on it.

    * ``entity``: what the value, or each element of a list of plain values, names. Kafka's entityType: brokerId,
      groupId, producerId, topicName, transactionalId. Ours, where Kafka has none: coordinatorKey and coordinatorType
      (its kind), feature, generation, groupInstanceId, logDir, memberId, partition, producerEpoch, quotaEntity,
      resourceName and resourceType, topicId, user. Request and response speak of the same thing where they use the
      same word.
    * ``map_key``: the value tells the items of a list apart (Kafka's mapKey).
    * ``error``, ``error_message``: the code of an error about the struct that has the field, and its text.
    * ``throttle``: milliseconds for which the client is to send nothing.
    * ``answers``: for a list of results, the lists of the request with an item for each; names, separated by spaces.
      Needed only where entities do not tell: results are in the order of the request and name nothing, or two lists
      of the request are about the same kind of thing and only one is asked about. For a plain field of an error
      answer, the field of the request that it repeats.
    * ``secret``: the value is told to the other end only, not by traces. A text is the field that names the setting
      whose value this is: it is secret where that setting is.
    """
    return Field(locals())


@cache
def parse_versions(text: str) -> tuple[int, int]:
    """``"3"`` → (3, 3), ``"2-5"`` → (2, 5), ``"4+"`` → (4, NEVER)."""
    if text.endswith("+"):
        return int(text[:-1]), NEVER
    low, _, high = text.partition("-")
    return int(low), int(high or low)
