"""How much a difference from the expected answer weighs, decided in one place from what was asked and what came back.

The weight of an error code follows from the client's reaction to it. Kafka's exception classes say that: retriable,
abortable, recoverable by the application (KIP-1050), and the rest. Within a class codes may be mixed up without harm;
another class makes the client act otherwise. A success in place of a refusal lets a fenced client write, or is
harmless, by API and code. Records weigh by what a reader gets of them. A step's own `breaks` or `weight` goes before
all of this.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from minibroker.rules.catalogue import RULES
from minibroker_protocol.errors import ErrorCode

from .paths import error_names, plain
from .values import ABSENT
from .weight import CODE, DETAIL, RECOVERY, Breach, Weight, heaviest


class Difference(NamedTuple):
    """A field that is not as expected, with both values at `path`.

    api: name of the request's API.
    request: its fields as the scenario has them, and `at`.
    response: all of it.
    repeated: an idempotent Produce that was sent before.
    written: the transactional id wrote something that its client has not ended.
    foreign: the request has the neighbour's producer id.
    offsets_in_transaction: the group was sent offsets in a transaction.
    """

    api: str
    path: str
    expected: Any
    got: Any
    request: Mapping[str, Any] = {}
    response: Any = None
    repeated: bool = False
    written: bool = True
    foreign: bool = False
    offsets_in_transaction: bool = True


_OWN_PROMISES: Final = {
    "fencing": "KIP-98: of an older instance of a transactional id nothing is accepted any more.",
    "neighbour": "KIP-98: what is asked in the name of one transactional id changes nothing of another one's.",
    "group-fencing": "KIP-447: a transaction gets no offsets of a member or a generation that the group no longer has.",
    "mapping": "KIP-98: under a transactional id only the producer id that it has is accepted.",
    "older-epoch": "KIP-98: once a partition has a batch or marker of a producer's epoch it takes no older one.",
    "late-write": "KIP-98, KIP-890: a transaction whose end was asked for takes in nothing more.",
    "open-read": "KIP-98: A read_committed reader gets no record of a transaction that is open.",
    "false-commit": "KIP-98: a commit that is acknowledged took effect on everything that its transaction wrote.",
    "forged-marker": "KIP-98: only a transaction's coordinator writes its markers.",
}


def promise(name: str) -> str:
    """The sentence of a rule of `minibroker.rules`, or of one about requests, with its source."""
    if name in _OWN_PROMISES:
        return _OWN_PROMISES[name]
    rule = RULES[name]
    return f"{rule.source}: {rule.promise}"


def is_promise(name: str) -> bool:
    return name in _OWN_PROMISES or name in RULES


def breaks(name: str) -> Breach:
    return Breach(Weight.EXACTLY_ONCE, promise(name))


_NONE: Final = "NONE"
_WAIT: Final = "CONCURRENT_TRANSACTIONS"
_NOTHING: Final[tuple[Any, ...]] = (None, [], {}, "", ABSENT)
_CLIENTS_PATH: Final = frozenset(
    {
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "ApiVersions",
        "ConsumerGroupHeartbeat",
        "EndTxn",
        "Fetch",
        "FindCoordinator",
        "Heartbeat",
        "InitProducerId",
        "JoinGroup",
        "LeaveGroup",
        "ListOffsets",
        "Metadata",
        "OffsetCommit",
        "OffsetFetch",
        "Produce",
        "SyncGroup",
        "TxnOffsetCommit",
    }
)
"""What producers and consumers ask; the rest is for tools."""
_RECOVERABLE: Final = frozenset(
    {
        "FENCED_INSTANCE_ID",
        "ILLEGAL_GENERATION",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "PRODUCER_FENCED",
        "UNKNOWN_MEMBER_ID",
    }
)
"""Whose exception is an ApplicationRecoverableException in Kafka 4.4.0."""
_FENCED: Final = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
_OTHER_ID: Final = "INVALID_PRODUCER_ID_MAPPING"
_FENCED_MEMBER: Final = (
    "FENCED_INSTANCE_ID",
    "FENCED_MEMBER_EPOCH",
    "ILLEGAL_GENERATION",
    "STALE_MEMBER_EPOCH",
    "UNKNOWN_MEMBER_ID",
)
_JOINS: Final = ("AddPartitionsToTxn", "AddOffsetsToTxn")
_WRITES: Final = ("Produce", "TxnOffsetCommit")
_BY_TRANSACTIONAL_ID: Final = (*_JOINS, *_WRITES, "EndTxn", "InitProducerId")
_ACCEPTED: Final[Mapping[tuple[str, str], str]] = {
    **{(api, code): "fencing" for api in _BY_TRANSACTIONAL_ID for code in _FENCED},
    **{(api, _OTHER_ID): "mapping" for api in _BY_TRANSACTIONAL_ID},
    **{("Produce", code): "older-epoch" for code in _FENCED},
    **{("Produce", code): "sequence-gap" for code in ("OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID")},
    # of a transactional batch in a request without a transactional id
    ("Produce", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"): "outside-transaction",
    **{
        (api, code): "outside-transaction"
        for api in (*_JOINS, *_WRITES)
        for code in ("INVALID_TXN_STATE", "TRANSACTION_ABORTABLE")
    },
    **{(api, _WAIT): "late-write" for api in (*_JOINS, *_WRITES)},
    **{("TxnOffsetCommit", code): "group-fencing" for code in _FENCED_MEMBER},
    ("EndTxn", "INVALID_TXN_STATE"): "false-commit",
    ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT"): "offset-outcome",
}
"""(API, code with which Kafka refuses) → what is broken when the broker accepts."""
_UNNOTICED: Final = frozenset(
    (api, code)
    for api in ("Fetch", "ListOffsets")
    for code in (
        "FENCED_LEADER_EPOCH",
        "NOT_LEADER_OR_FOLLOWER",
        "OFFSET_OUT_OF_RANGE",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
    )
)
"""(API, code on which a consumer asks for metadata, looks for a truncation or resets its position): with a success it
reads nothing, and on."""
_ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort")
_RECORDS: Final = ("records", "recordsFull")
_TEXTS: Final = frozenset(
    {
        "batchIndex",
        "baseTs",
        "committedLeaderEpoch",
        "errorMessage",
        "logAppendTimeMs",
        "maxTs",
        "metadata",
        "recordErrors",
        "throttleTimeMs",
        "tsType",
    }
)
_CLIENTS_NEED: Final = frozenset(
    {
        "assignment",
        "coordinators",
        "generationId",
        "key",
        "leader",
        "memberEpoch",
        "memberId",
        "members",
        "offset",
        "partitions",
        "producerEpoch",
        "producerId",
        "protocolName",
        "responses",
        "topicPartitions",
    }
)
"""Fields of answers on the client's path by which it goes on."""


def weigh(difference: Difference) -> Breach:
    """What a difference breaks."""
    api, path, expected, got = difference[:4]
    field = _field(path)
    if field in _TEXTS or (_is_nothing(expected) and _is_nothing(got)):
        return DETAIL
    if _is_code(path):
        return _of_codes(difference)
    if field in _RECORDS:
        return _of_records(expected, got, committed_only=difference.request.get("isolationLevel") == 1)
    if field == "marker":
        return breaks("torn-transaction")
    if field == "crcOk":
        return RECOVERY
    if field == "transactionState":
        return _of_state(expected, got)
    if api not in _CLIENTS_PATH:
        return CODE
    if _refuses(difference):
        return DETAIL  # what stands beside an error is not read
    match field:
        case "abortedTransactions":
            return _of_aborted(expected, got)
        case "lastStableOffset":
            return _of_stable_offset(difference)
        case "baseOffset":
            # an earlier offset is that of the batch which was sent before
            return breaks("duplicate-record") if difference.repeated and _is_lower(expected, got) else CODE
        case "committedOffset":
            return breaks("offset-outcome") if difference.offsets_in_transaction else RECOVERY
        case "offset" if api == "ListOffsets" and not _asks_for_an_end(difference.request):
            return CODE  # a program asks, not the consumer itself
        case "producerEpoch" if api == "InitProducerId":
            return breaks("txn-state") if _is_lower(got, expected) else CODE
    return RECOVERY if field in _CLIENTS_NEED else CODE


def weigh_answer(differences: Sequence[Difference]) -> list[Breach]:
    """What each difference of one answer breaks. When the error code differs, every other difference but one of records
    follows from it."""
    other_code = any(_is_code(difference.path) for difference in differences)
    return [
        DETAIL
        if other_code and not _is_code(difference.path) and _field(difference.path) not in _RECORDS
        else weigh(difference)
        for difference in differences
    ]


def is_empty_list(difference: Difference) -> bool:
    """Whether both sides have no aborted transactions, in one of the two forms that clients read alike."""
    both = difference.expected, difference.got
    return _field(difference.path) == "abortedTransactions" and all(map(_is_nothing, both))


def is_done_at_once(difference: Difference) -> bool:
    """Whether a new instance gets its epoch where Kafka lets it ask again, which every broker may do."""
    waits = difference.api == "InitProducerId" and _is_code(difference.path) and difference.expected == _WAIT
    return waits and difference.got == _NONE and "producerEpoch" not in difference.request


def is_refused_alike(difference: Difference) -> bool:
    """Whether a batch is refused with the other of two codes whose descriptions both fit it: neither writes
    anything."""
    codes = difference.api, difference.expected, difference.got
    return _is_code(difference.path) and codes == ("Produce", "INVALID_RECORD", "CORRUPT_MESSAGE")


def goes_on(difference: Difference, breach: Breach) -> bool:
    """Whether the broker's state may still be the expected one, so that later differences are not consequences."""
    if not _is_code(difference.path):
        return breach.weight.light
    codes = zip(_listed(difference.expected), _listed(difference.got), strict=False)
    return breach.weight.light and all((code == _NONE) == (other == _NONE) for code, other in codes)


def never_became(difference: Difference) -> Breach:
    """The breach when a field does not get its expected value within the time limit: a reader would wait for ever."""
    breach = weigh(difference)
    return RECOVERY if breach.weight.light and difference.api in _CLIENTS_PATH else breach


def of_another(breach: Breach) -> Breach:
    """The breach of a difference that shows at a neighbour, who had asked for nothing."""
    return breach if breach.weight.light else breaks("neighbour")


def possible(
    api: str, path: str, expected: Any, request: Mapping[str, Any], *, repeated: bool, offsets: bool = True
) -> Weight:
    """What the worst answer would break. offsets: some are sent in a transaction."""
    answers: list[Any] = [_NONE, "UNKNOWN_SERVER_ERROR", -2, 0, [], [{"base": 0, "values": ["other"]}], None, "Ongoing"]
    return heaviest(
        weigh(Difference(api, path, expected, got, request, repeated=repeated, offsets_in_transaction=offsets))
        for got in answers
        if got != expected
    ).weight


def batch_key(options: Mapping[str, Any]) -> str:
    """Identifies the batch of an idempotent producer that a step sends; "" where it sends none."""
    batch = options.get("batch") or {}
    return (
        json.dumps([options.get("at"), *(batch.get(key) for key in ("pid", "epoch", "seq"))]) if "pid" in batch else ""
    )


def _is_code(path: str) -> bool:
    return _field(path).lower().endswith("errorcode")


def _field(path: str) -> str:
    words: list[str] = re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", path))
    return words[-1]


def _is_nothing(value: Any) -> bool:
    return any(value == nothing for nothing in _NOTHING)


def _of_state(expected: Any, got: Any) -> Breach:
    """Tools alone read it, but it tells what became of the transaction."""
    states = str(expected).removeprefix("$in ").replace(",", " ").split()
    if any({_decision(state), _decision(str(got))} == {"Commit", "Abort"} for state in states):
        return breaks("torn-transaction")
    return CODE if got in _ENDED and any(state in _ENDED for state in states) else RECOVERY


def _decision(state: str) -> str:
    return state.removeprefix("Prepare").removeprefix("Complete")


def _is_lower(got: Any, expected: Any) -> bool:
    return isinstance(got, int) and isinstance(expected, int) and 0 <= got < expected


def _asks_for_an_end(request: Mapping[str, Any]) -> bool:
    """Whether a ListOffsets is about the first or the last offset, from which a consumer without a position begins."""
    at = request.get("at") or []
    offsets = [str(target).partition("@")[2] for target in (at if isinstance(at, list) else [at])]
    return not offsets or any(offset in ("-1", "-2") for offset in offsets)


def _refuses(difference: Difference) -> bool:
    return any(name != _NONE for name in error_names(plain(difference.response)))


# Codes


def _of_codes(difference: Difference) -> Breach:
    expected, got = _listed(difference.expected), _listed(difference.got)
    if len(expected) != len(got):
        return RECOVERY if difference.api in _CLIENTS_PATH else CODE
    return heaviest(_of_code(difference, *pair) for pair in zip(expected, got, strict=True) if pair[0] != pair[1])


def _listed(value: Any) -> list[str]:
    if isinstance(value, list):
        return [item for inner in value for item in _listed(inner)]
    word, _, rest = str(value).partition(" ")
    return [rest.replace(",", " ").split()[0] if word == "$in" else str(value)]


def _of_code(difference: Difference, expected: str, got: str) -> Breach:
    api = difference.api
    if (api, expected, got) == ("Produce", _NONE, "DUPLICATE_SEQUENCE_NUMBER"):
        # Clients take it for success without an offset (Sender.completeBatch).
        return CODE if difference.repeated else breaks("lost-record")
    if got == _NONE:
        broken = _ACCEPTED.get((api, expected))
        if broken == "false-commit" and not (difference.written and difference.request.get("committed")):
            broken = None
        if broken == "group-fencing" and difference.request.get("memberId") == "":
            return CODE  # no member sends that
        if any(added.get("verifyOnly") for added in difference.request.get("transactions") or ()):
            return CODE  # a broker's question
        if broken is not None:
            return breaks("mapping" if difference.foreign and broken == "fencing" else broken)
        if expected in (*_FENCED_MEMBER, "CORRUPT_MESSAGE") and api in _CLIENTS_PATH:
            return RECOVERY
        return RECOVERY if (api, expected) in _UNNOTICED else CODE
    if api not in _CLIENTS_PATH or "transactions" in difference.request:  # of a broker
        return CODE
    return CODE if expected != _NONE and _kind(expected) == _kind(got) else RECOVERY


def _kind(name: str) -> str:
    """A client's reaction to an error code."""
    if name in _RECOVERABLE:
        return "begin again"
    if name == "TRANSACTION_ABORTABLE":
        return "abort"
    return "retry" if name in ErrorCode.__members__ and ErrorCode[name].retriable else "give up"


# What readers get


def _of_records(expected: Any, got: Any, *, committed_only: bool) -> Breach:
    if isinstance(expected, int) and isinstance(got, int):  # how many batches
        return breaks("lost-record" if got < expected else "duplicate-record")
    if not isinstance(expected, list) or not isinstance(got, list):
        return breaks("lost-record")
    wanted, read = [*_batches(expected)], [*_batches(got)]
    lost = Counter(_values(wanted)) - Counter(_values(read))
    more = Counter(_values(read)) - Counter(_values(wanted))
    if lost:
        return breaks("lost-record")
    if more:
        if set(more) <= set(_values(wanted)):
            return breaks("duplicate-record")
        return breaks("open-read" if committed_only else "stray-record")
    if _values(wanted) != _values(read):
        return breaks("order")
    ends, ended = ([batch.get("marker") for batch in side if "marker" in batch] for side in (wanted, read))
    if ends != ended:
        return breaks("torn-transaction" if len(ends) == len(ended) else "hanging-transaction")
    if [batch.get("txn") for batch in wanted] != [batch.get("txn") for batch in read if "txn" in batch]:
        return RECOVERY
    if not _same(wanted, read, "base", "last", "pid"):
        return RECOVERY
    return DETAIL if _same(wanted, read, "epoch", "seq") else CODE  # at which no reader looks


def _batches(value: Any) -> Iterator[Mapping[str, Any]]:
    for item in value:
        if isinstance(item, Mapping):
            yield item
        elif isinstance(item, list):
            yield from _batches(item)


def _values(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(value) for batch in batches for value in batch.get("values") or ()]


def _same(wanted: list[Mapping[str, Any]], read: list[Mapping[str, Any]], *keys: str) -> bool:
    return len(wanted) == len(read) and all(
        batch[key] == other.get(key) or str(batch[key]).startswith("$")
        for batch, other in zip(wanted, read, strict=True)
        for key in keys
        if key in batch
    )


def _of_aborted(expected: Any, got: Any) -> Breach:
    if expected is None:
        return DETAIL  # of a reader that reads everything, and does not look at them
    wanted, received = (
        [str(batch) for batch in _batches(side)] if isinstance(side, list) else [] for side in (expected, got)
    )
    if Counter(wanted) - Counter(received):
        return breaks("aborted-read")
    return breaks("lost-record")


def _of_stable_offset(difference: Difference) -> Breach:
    """A reader of committed records that gets some beyond it reads what is open; a lower one lets it wait."""
    expected, got = difference.expected, difference.got
    if not isinstance(expected, int) or not isinstance(got, int) or got == -1:
        return CODE
    if got < expected:
        return RECOVERY
    reads_committed = difference.request.get("isolationLevel") == 1
    beyond = [batch for batch in _batches(_records(difference.response)) if batch.get("base", -1) >= expected]
    return breaks("aborted-read") if reads_committed and any(batch.get("values") for batch in beyond) else CODE


def _records(response: Any) -> list[Any]:
    value = plain(response)
    if isinstance(value, Mapping):
        return [
            batch for key, inner in value.items() for batch in ([inner or []] if key == "records" else _records(inner))
        ]
    return [batch for inner in value for batch in _records(inner)] if isinstance(value, list) else []
