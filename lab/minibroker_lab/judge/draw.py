"""Random scripts: failures that Kafka or the network can cause, for the requests that a client is known to send.

An error code is drawn for an API and version only where Kafka 4.4.0 answers it, either instead of the requested change
or after it, as Kafka does. The sources are KafkaApis, ReplicaManager and DelayedProduce (Produce, Fetch, ListOffsets),
TransactionCoordinator and TransactionStateManager.appendTransactionToLog (InitProducerId, AddPartitionsToTxn,
AddOffsetsToTxn, EndTxn), and GroupCoordinatorService (the rest). Errors that say something about the producer or the
member, such as INVALID_PRODUCER_EPOCH, are left to the broker: it answers them when they are true. TCP delivers a
request once, so the network duplicates nothing: a second copy exists only if the client sent the request again while
the first was held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.scripts import Script, action_text, step

Fault = dict[str, Any]
"""A ``[[fault]]`` table of a script."""

_HIGHEST = 1 << 15


class Code(NamedTuple):
    """An error code for these versions; with `transactional` only for requests with a transactional id."""

    name: str
    low: int = 0
    high: int = _HIGHEST
    transactional: bool = False

    def __str__(self) -> str:
        versions = f"v{self.low}+" if self.low else f"to v{self.high}" if self.high < _HIGHEST else ""
        only = ", ".join(filter(None, (versions, "with a transactional id" if self.transactional else "")))
        return f"{self.name} ({only})" if only else self.name


_MOVED = (Code("NOT_COORDINATOR"), Code("COORDINATOR_NOT_AVAILABLE"))
_COORDINATOR = (*_MOVED, Code("COORDINATOR_LOAD_IN_PROGRESS"))
_TRANSACTION = (*_COORDINATOR, Code("CONCURRENT_TRANSACTIONS"))
_LEADER = (Code("NOT_LEADER_OR_FOLLOWER"), Code("UNKNOWN_TOPIC_OR_PARTITION", 0, 12), Code("UNKNOWN_TOPIC_ID", 13))
REFUSED: Final = {
    "Produce": (
        *_LEADER,
        Code("NOT_ENOUGH_REPLICAS"),
        Code("KAFKA_STORAGE_ERROR", 4),
        Code("CONCURRENT_TRANSACTIONS", 12, transactional=True),
    ),
    "InitProducerId": (
        *(code._replace(transactional=True) for code in _TRANSACTION if code.name != "COORDINATOR_LOAD_IN_PROGRESS"),
        Code("COORDINATOR_LOAD_IN_PROGRESS"),  # while the broker gets its next producer ids
    ),
    "AddPartitionsToTxn": (*_TRANSACTION, Code("UNKNOWN_TOPIC_OR_PARTITION")),
    "AddOffsetsToTxn": _TRANSACTION,
    "TxnOffsetCommit": (*_COORDINATOR, Code("UNKNOWN_TOPIC_OR_PARTITION", 0, 5)),
    "EndTxn": _TRANSACTION,
    "Fetch": (
        *_LEADER,
        Code("KAFKA_STORAGE_ERROR", 6),
        Code("FETCH_SESSION_ID_NOT_FOUND", 7),
        Code("INVALID_FETCH_SESSION_EPOCH", 7),
    ),
    "ListOffsets": (
        Code("NOT_LEADER_OR_FOLLOWER"),
        Code("UNKNOWN_TOPIC_OR_PARTITION"),
        Code("OFFSET_NOT_AVAILABLE", 5),
    ),
    "Metadata": (Code("UNKNOWN_TOPIC_OR_PARTITION"),),
    "FindCoordinator": (Code("COORDINATOR_NOT_AVAILABLE"),),
    "JoinGroup": _COORDINATOR,
    "SyncGroup": (*_COORDINATOR, Code("REBALANCE_IN_PROGRESS")),
    "Heartbeat": (*_MOVED, Code("REBALANCE_IN_PROGRESS")),
    "ConsumerGroupHeartbeat": _COORDINATOR,
    "OffsetCommit": _COORDINATOR,
    "OffsetFetch": (*_COORDINATOR, Code("UNSTABLE_OFFSET_COMMIT", 7)),
}
"""API → error codes for a request that was not applied."""
APPLIED: Final = {
    "Produce": (
        Code("REQUEST_TIMED_OUT"),
        Code("NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        Code("NOT_LEADER_OR_FOLLOWER"),
    ),
    "InitProducerId": tuple(code._replace(transactional=True) for code in _MOVED),
    **dict.fromkeys(("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "OffsetCommit"), _MOVED),
}
"""API → error codes for a request that may have been applied: the append timed out, or the broker lost the partition
before its answer."""
DENIED: Final = {
    "Produce": (Code("TOPIC_AUTHORIZATION_FAILED"), Code("MESSAGE_TOO_LARGE")),
    "TxnOffsetCommit": (Code("GROUP_AUTHORIZATION_FAILED"),),
    "OffsetCommit": (Code("GROUP_AUTHORIZATION_FAILED"),),
}
"""API → error codes for a request that is refused for good: the client may not, or the record is too large."""
_CORE: Final = (
    "Produce",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "OffsetCommit",
)
_DELAYS_MS: Final = (200, 1000, 3000, 8000)
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
"""Longer than the session of a consumer that was killed."""
_MOST_OTHERS: Final = 3
_AHEAD: Final = 12
_LAST_EPOCHS: Final = 32764


class Footprint(NamedTuple):
    """What a client requested in a run without failures.

    core: APIs of the exactly-once requests that succeeded, in their order.
    versions: the highest of each API.
    transactional: APIs whose requests had a transactional id.
    """

    core: Sequence[str]
    versions: dict[str, int]
    transactional: frozenset[str]


def footprint(exchanges: Iterable[Exchange]) -> Footprint:
    """The footprint of a run's exchanges. Counts of the other APIs depend on timing, and are not used."""
    every = [exchange for exchange in exchanges if exchange["api"] in REFUSED]
    done = [exchange["api"] for exchange in every if exchange["api"] in _CORE and not exchange["errors"]]
    versions = {
        api: max(exchange["version"] for exchange in every if exchange["api"] == api)
        for api in sorted({e["api"] for e in every})
    }
    named = frozenset(exchange["api"] for exchange in every if (exchange["request"] or {}).get("transactional_id"))
    return Footprint(done, versions, named)


def draw(seed: int, seen: Footprint) -> Script:
    """The script of this seed for a client with this footprint: one to four faults, and the faults that these need."""
    random = Random(seed)
    drawn = [_fault(random, seen) for _ in range(random.choices((1, 2, 3, 4), (3, 4, 2, 1))[0])]
    faults = [fault for group in drawn for fault in group]
    # Kafka forgets a producer a day after its last record. No answer is that late, so the script has no other fault.
    lonely = [fault for fault in faults if "lose_producers" in str(fault)]
    faults = lonely[:1] or faults
    brokers = 2 if "$other_broker" in str(faults) else 1
    actions = "; ".join(f"{fault['api']}: {action_text(fault['action'])}" for fault in faults)
    return Script(
        f"search-{seed}", f"Drawn from seed {seed}: {actions}.", tuple(step(dict(f)) for f in faults), brokers
    )


def _fault(random: Random, seen: Footprint) -> list[Fault]:
    """A fault, and the faults that it needs."""
    apis = list(seen.versions)
    api = random.choices(apis, [_weight(name, seen) for name in apis])[0]
    kinds = [
        _network,
        _network,
        _held,
        _held,
        _refused,
        _refused,
        _applied,
        _changed,
        _changed,
        _killed,
        _killed,
        _denied,
    ]
    while True:
        fault = random.choice(kinds)(random, api, seen)
        if fault is not None:
            break
    if "nth" not in fault:
        many = seen.core.count(api) if api in _CORE else _MOST_OTHERS
        fault["nth"] = random.randint(1, max(many, 1))
    with_it = fault.pop("with_it", [])
    return [{"api": api, **fault}, *with_it]


def _weight(api: str, seen: Footprint) -> int:
    """The exactly-once path is drawn most: what it commits, and the input of an application that commits offsets."""
    consumes = bool({"OffsetCommit", "TxnOffsetCommit"} & set(seen.core))
    return 4 if api in _CORE or (api == "Fetch" and consumes) else 1


def _network(random: Random, api: str, seen: Footprint) -> Fault | None:
    delayed = {"name": "delay", "ms": random.choice(_DELAYS_MS), "when": random.choice(("before", "after"))}
    lost: list[Fault] = [{"name": "drop_reply"}, {"name": "drop_reply", "close": False}]
    others: list[Fault] = [{"name": "reset"}, {"name": "close"}, {"name": "truncate"}, delayed]
    # What was done and is not known to be done: applications go wrong here.
    actions = lost + others if api not in _CORE else 2 * lost + others
    return {"action": random.choice(actions), "times": random.randint(1, 2)}


def _held(random: Random, api: str, seen: Footprint) -> Fault | None:
    """Hold a request until a later one of the run without failures is answered; the one after that is delayed, so that
    the held request arrives between them. Or hold it while an hour passes."""
    places = [at for at, name in enumerate(seen.core) if name == api]
    if not places:
        return None
    at = random.choice(places)
    ahead = range(at + 1, min(at + 1 + _AHEAD, len(seen.core)))
    nth = seen.core[: at + 1].count(api)
    if not ahead or not random.randrange(4):
        return {"action": "hold", "nth": nth, "meanwhile": {"advance_ms": _HOUR_MS}}
    until = random.choice(ahead)
    # Counted from the hold on: how many came before it is chance. Where they are of its own API the client sends it
    # again, and that one counts too.
    behind = seen.core[at : until + 1]
    meanwhile = {"until": seen.core[until], "times": behind.count(seen.core[until]), "since_held": True}
    delayed = [
        {
            "api": after,
            "action": {"name": "delay", "ms": _DELAYS_MS[1]},
            "nth": [*behind, after].count(after),
            "after_hold": True,
        }
        for after in seen.core[until + 1 : until + 2]
    ]
    return {"action": "hold", "nth": nth, "meanwhile": meanwhile, "with_it": delayed}


def _killed(random: Random, api: str, seen: Footprint) -> Fault | None:
    many = seen.core.count(api)
    return _kill(random.randint(1, many), random.choice(("before", "after"))) if many else None


def _kill(nth: int, when: str) -> Fault:
    """The client is killed while the request is held, before it is applied or after, and started again."""
    meanwhile = {"restart_client": True, "advance_ms": _MINUTE_MS}
    return {"action": {"name": "hold", "when": when}, "nth": nth, "meanwhile": meanwhile}


def kills(seen: Footprint) -> list[Script]:
    """For each exactly-once request of the run without failures two scripts: the client is killed and started again
    before the request is applied, and after."""
    scripts = []
    for at, api in enumerate(seen.core):
        nth = seen.core[: at + 1].count(api)
        for when in ("before", "after"):
            about = f"The client is killed {when} its {api} number {nth} is applied, and started again a minute later."
            scripts.append(Script(f"killed-{when}-{api}-{nth}", about, (step({"api": api, **_kill(nth, when)}),)))
    return scripts


def _refused(random: Random, api: str, seen: Footprint) -> Fault | None:
    return _error(random, api, seen, "error", REFUSED[api])


def _applied(random: Random, api: str, seen: Footprint) -> Fault | None:
    return _error(random, api, seen, "apply_then_error", APPLIED.get(api, ()))


def _denied(random: Random, api: str, seen: Footprint) -> Fault | None:
    return _error(random, api, seen, "error", DENIED.get(api, ()))


def _error(random: Random, api: str, seen: Footprint, name: str, codes: Sequence[Code]) -> Fault | None:
    lawful = [
        code
        for code in codes
        if code.low <= seen.versions[api] <= code.high and (api in seen.transactional or not code.transactional)
    ]
    if not lawful:
        return None
    code = random.choice(lawful)
    only = {"transactional_id": "*"} if code.transactional else {}
    return {**only, "action": {"name": name, "code": code.name}, "times": random.randint(1, 3)}


def _changed(random: Random, api: str, seen: Footprint) -> Fault | None:
    """The state of the cluster: leaders and coordinators that move, brokers that come back, epochs near their end."""
    when = random.choice(("before", "after"))
    restart = _do("restart_broker", when, broker="$broker", clean=random.choice((True, False)))
    changes = [restart] if api in _CORE else []
    if api in ("Produce", "Fetch"):
        changes.append(_do("move_leader", when, topic="$topic", partition="$partition", to="$other_broker"))
    if api == "Produce":
        changes.append(_do("lose_producers", "before", topic="$topic", partition="$partition", cause="expiration"))
    if api == "Fetch":
        # The only failure that shows which isolation level an application reads its input with.
        changes += 2 * [_do("append_aborted", "before", topic="$topic", partition="$partition")]
    if api in ("EndTxn", "AddPartitionsToTxn", "InitProducerId") and api in seen.transactional:
        changes.append(_do("move_coordinator", when, transactional_id="$transactional_id", to="$other_broker"))
    if api == "InitProducerId" and api in seen.transactional:
        last = _do("set_producer_epoch", "before", transactional_id="$transactional_id", epoch=_LAST_EPOCHS)
        changes.append({**last, "transactional_id": "*", "nth": 1})
    return random.choice(changes) if changes else None


def _do(operation: str, when: str, **arguments: object) -> Fault:
    return {"action": {"name": "do", "operation": operation, "arguments": arguments, "when": when}}
