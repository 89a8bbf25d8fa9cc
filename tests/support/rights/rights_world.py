"""Two brokers with the same topics, groups, transactional ids and rights: what the matrix of rights is asked of.

Rights are given on prefixes (topics ``a``, groups ``g``, transactional ids ``x``); ``b``, ``h`` and ``y`` are there too
and are not given to users. ``ax`` and ``bx`` are topics that do not exist. A side is a live Kafka or a broker in
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.structs import Struct

ADMIN = "admin"
CLOSED = "closed"
ALLOW, DENY = 3, 2
LITERAL, PREFIXED = 3, 4
ALL = 2
LONG_MS = 3_600_000
_SECONDS = 60.0

OPERATIONS = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "TWO_PHASE_COMMIT": 15,
}
_CONFIGS = ("DESCRIBE_CONFIGS", "ALTER_CONFIGS")
KINDS: dict[str, tuple[int, str, int, tuple[str, ...]]] = {
    "topic": (2, "a", PREFIXED, ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", *_CONFIGS)),
    "group": (3, "g", PREFIXED, ("READ", "DELETE", "DESCRIBE", *_CONFIGS)),
    "txn": (5, "x", PREFIXED, ("WRITE", "DESCRIBE", "TWO_PHASE_COMMIT")),
    "cluster": (
        4,
        "kafka-cluster",
        LITERAL,
        ("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "IDEMPOTENT_WRITE", *_CONFIGS),
    ),
}
"""Kind → (its code, the name or prefix that is given, pattern type, the operations that it has: AclEntry)."""

Entry = tuple[int, str, int, int, int]
"""(resource type, name, pattern type, operation, permission)."""


def entry(kind: str, operation: str, permission: int = ALLOW) -> Entry:
    code, name, pattern, _ = KINDS[kind]
    return code, name, pattern, OPERATIONS[operation], permission


EVERYTHING = tuple(entry(kind, "ALL") for kind in KINDS)


def _users() -> dict[str, tuple[Entry, ...]]:
    users: dict[str, tuple[Entry, ...]] = {"none": (), "all": EVERYTHING, "revoked": EVERYTHING}
    for kind, (*_, operations) in KINDS.items():
        others = tuple(entry(other, "ALL") for other in KINDS if other != kind)
        for operation in operations:
            users[f"{kind}-{operation}"] = (entry(kind, operation),)
            users[f"rest-and-{kind}-{operation}"] = (*others, entry(kind, operation))
        users[f"without-{kind}"] = others
        users[f"denied-{kind}"] = (*EVERYTHING, entry(kind, "ALL", DENY))
    return users


USERS = _users()
"""Every user of the matrix and the rights it has: each operation alone, each with everything on the other kinds of
resource, everything but one kind, and DENY ALL beside ALLOW ALL. `revoked` has everything until the matrix begins."""

SESSION_USERS = ("session", "stranger", "member")
"""Users whose rights change between the steps of a story."""


class Side(Protocol):
    """One of the two brokers."""

    def ask(self, user: str, request: Request, version: int) -> Any:
        """The answer over the user's connection; None where none comes, CLOSED when the connection is closed."""

    def settle(self) -> None:
        """Return once entries that were made or deleted count for every request."""


# -- rights ------------------------------------------------------------------------------------------------------------


def grant(side: Side, rights: dict[str, Iterable[Entry]]) -> None:
    creations = [
        m.CreateAclsRequest.AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=permission,
        )
        for user, entries in rights.items()
        for kind, name, pattern, operation, permission in entries
    ]
    answer = side.ask(ADMIN, m.CreateAclsRequest(creations=creations), 3)
    assert not [result for result in answer.results if result.error_code], answer
    side.settle()


def revoke(side: Side, user: str) -> None:
    """Delete every entry of a user."""
    chosen = m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=f"User:{user}",
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    answer = side.ask(ADMIN, m.DeleteAclsRequest(filters=[chosen]), 3)
    assert answer.filter_results[0].matching_acls, answer
    side.settle()


# -- what is there -----------------------------------------------------------------------------------------------------


class Names:
    """Names as one side has them. own: a part of the names of what only this case and user have."""

    def __init__(self, ids: dict[str, bytes], own: str = "") -> None:
        self.ids = ids
        self.own = own

    def mine(self, prefix: str) -> str:
        """A name that begins with `prefix` and is used once."""
        return f"{prefix}.{self.own}"


def make_topics(side: Side, names: Iterable[str]) -> None:
    kind = m.CreateTopicsRequest.CreatableTopic
    for_ever = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")
    topics = [kind(name=n, num_partitions=1, replication_factor=1, assignments=[], configs=[for_ever]) for n in names]
    if topics:
        answer = side.ask(ADMIN, m.CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
        assert not [topic for topic in answer.topics if topic.error_code], answer


def topic_ids(side: Side, wanted: Iterable[str] = ()) -> dict[str, bytes]:
    """Those of all topics, once the wanted ones are among them."""
    deadline = time.monotonic() + _SECONDS
    while True:
        ids = {topic.name: topic.topic_id for topic in side.ask(ADMIN, m.MetadataRequest(topics=None), 12).topics}
        if ids.keys() >= set(wanted):
            return ids
        assert time.monotonic() < deadline, sorted(set(wanted) - ids.keys())
        time.sleep(0.05)


def produce(topic: str, *, transactional_id: str | None = None, acks: int = -1) -> m.ProduceRequest:
    return produce_to([topic], transactional_id=transactional_id, acks=acks)


def produce_to(
    topics: list[str], *, transactional_id: str | None = None, acks: int = -1, in_transaction: bool = False
) -> m.ProduceRequest:
    request = m.ProduceRequest
    record = Record(offset=0, timestamp=0, key=b"k", value=b"v", headers=[])
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0} if in_transaction else {}
    records = build_batch([record], transactional=in_transaction, **producer)
    return request(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            request.TopicProduceData(
                name=topic, partition_data=[request.PartitionProduceData(index=0, records=bytes(records))]
            )
            for topic in topics
        ],
    )


def until_good(side: Side, user: str, request: Request, version: int, seconds: float = _SECONDS) -> Any:
    """Ask until there is no error: coordinators and new topics take a moment."""
    deadline = time.monotonic() + seconds
    while True:
        answer = side.ask(user, request, version)
        if not _has_error(answer):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def _has_error(value: Any) -> bool:
    if isinstance(value, Struct):
        fields = ((field.name, getattr(value, field.name)) for field in value.__fields__)
        return any(bool(inner) if name in _CODES else _has_error(inner) for name, inner in fields)
    return isinstance(value, list) and any(map(_has_error, value))


def furnish(side: Side) -> Names:
    """Make what the matrix asks about."""
    make_topics(side, ["a", "b"])
    for topic in ("a", "b"):
        until_good(side, ADMIN, produce(topic), 9)
    for key_type in (0, 1):
        # The question makes the topic that coordinators keep their state in.
        until_good(side, ADMIN, m.FindCoordinatorRequest(key="k", key_type=key_type), 3)
    for group, topics in (("g", ("a", "b")), ("h", ("a",))):
        until_good(side, ADMIN, offset_commit(group, topics), 9)
    producer = (0, 0)
    for transactional_id in ("y", "x"):
        init = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)
        made = until_good(side, ADMIN, init, 4)
        producer = made.producer_id, made.producer_epoch
    until_good(side, ADMIN, add_partitions("x", producer, ("a", "b")), 3)
    names = Names(topic_ids(side))
    for group, topics in (("gc", ["a", "b"]), ("gd", ["a"])):
        until_good(side, ADMIN, heartbeat(group, topics), 1)
    return names


def offset_commit(group: str, topics: Iterable[str], ids: dict[str, bytes] | None = None) -> m.OffsetCommitRequest:
    request = m.OffsetCommitRequest
    entry = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    return request(
        group_id=group,
        member_id="",
        topics=[
            request.OffsetCommitRequestTopic(
                name=topic, topic_id=NO_ID if ids is None else ids.get(topic, NO_ID), partitions=[entry]
            )
            for topic in topics
        ],
    )


def add_partitions(
    transactional_id: str, producer: tuple[int, int], topics: Iterable[str], partitions: Iterable[int] = (0,)
) -> m.AddPartitionsToTxnRequest:
    request = m.AddPartitionsToTxnRequest
    return request(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name=name, partitions=[*partitions]) for name in topics],
    )


def heartbeat(
    group: str, topics: list[str] | None, *, regex: str | None = None, epoch: int = 0
) -> m.ConsumerGroupHeartbeatRequest:
    return m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="AAAAAAAAQACAAAAAAAAAAQ",
        member_epoch=epoch,
        rebalance_timeout_ms=LONG_MS,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        topic_partitions=[],
    )


def fitted(value: Any, version: int) -> Any:
    """A request with nothing in it that its version has no words for."""
    if isinstance(value, Struct):
        for field in value.__fields__:
            low, high = field.versions
            if not low <= version <= high:
                if not field.required:
                    setattr(value, field.name, field.default)
            else:
                fitted(getattr(value, field.name), version)
    elif isinstance(value, list):
        for item in value:
            fitted(item, version)
    return value


# -- what an answer says -----------------------------------------------------------------------------------------------

_CODES = frozenset({"error_code", "partition_error_code", "topic_config_error_code", "error"})
_NAMES = frozenset(
    {
        "name",
        "topic",
        "topic_name",
        "topic_id",
        "group_id",
        "transactional_id",
        "resource_name",
        "resource_type",
        "key",
        "user",
        "principal",
        "feature",
        "partition_index",
        "index",
        "partition",
        "partition_id",
        "topic_authorized_operations",
        "cluster_authorized_operations",
        "authorized_operations",
    }
)
_PLACES = frozenset({"brokers", "nodes", "node_endpoints", "current_voters", "observers", "synonyms", "members"})
"""Lists that tell where brokers are, or that other tests compare."""


def as_shown(answer: Any, names: Names) -> Any:
    """What an answer says about rights: error codes, and what is named and listed where. Lists are in one order.

    A list of records or a session is shown as whether there is one.
    """
    if answer is None or isinstance(answer, str):
        return answer
    known = {topic_id: name for name, topic_id in names.ids.items()}
    return _shown(answer, names, known)


def _shown(value: Any, names: Names, known: dict[bytes, str]) -> Any:
    if isinstance(value, Struct):
        shown_fields: dict[str, Any] = {}
        for field in value.__fields__:
            name, inner = field.name, getattr(value, field.name)
            if name in _CODES or name in _NAMES:
                shown = _name(inner, names, known)
                if shown != _UNSAID.get(name):
                    shown_fields[name] = shown
            elif name == "records":
                shown_fields[name] = bool(inner)
            elif name == "session_id":
                shown_fields["session"] = bool(inner)
            elif name == "key_type" or name in _PLACES:
                continue
            elif isinstance(inner, (list, Struct)):
                shown_fields[name] = _shown(inner, names, known)
            elif inner is None and field.annotation.startswith("list["):
                shown_fields[name] = None
        return shown_fields
    if not isinstance(value, list):
        return _name(value, names, known)
    shown_list = [_shown(item, names, known) for item in value]
    mine = [item for item in shown_list if not _foreign(item)]
    return sorted(mine, key=repr)


_UNSAID = {"topic_authorized_operations": -2147483648, "cluster_authorized_operations": -2147483648} | {
    "authorized_operations": -2147483648
}
_FOREIGN = "another's"


def _name(value: Any, names: Names, known: dict[bytes, str]) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        return "no id" if raw == NO_ID else _name(known.get(raw, "unknown id"), names, known)
    if isinstance(value, str) and "." in value and value[:2] in ("a.", "b.", "g.", "h.", "x.", "y."):
        prefix, _, rest = value.partition(".")
        return f"{prefix}.own" if rest == names.own else _FOREIGN
    return int(value) if isinstance(value, int) else value


def _foreign(item: Any) -> bool:
    """Whether an entry of a list is about what only another case made."""
    if item == _FOREIGN:
        return True
    return isinstance(item, dict) and _FOREIGN in item.values()


Ask = Callable[[Names], Request]
