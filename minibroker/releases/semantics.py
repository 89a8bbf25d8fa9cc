"""The named behaviours in which the `kafka` and `kip` semantics, or releases of Kafka, differ.

`kafka` answers as Apache Kafka 4.4.0 does; `kip` as the texts of KIP-360, KIP-447, KIP-588 and KAFKA-5793 say. Every
difference is one field of one frozen object; presets are combinations. No other module asks which preset is in force.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from minibroker.kernel.package_data import package_text
from minibroker.releases.features import Advertised
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.producer_rules import ProducerRules

PRODUCE: Final = 0
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28
INIT_PRODUCER_ID: Final = 22

EPOCH_BUMPING_END_TXN: Final = 5
"""First version of EndTxn that bumps the epoch and answers the new one (KIP-890)."""

CLIENT_VERSIONS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {PRODUCE: (11, 13), ADD_PARTITIONS_TO_TXN: (3, 3), ADD_OFFSETS_TO_TXN: (4, 4), END_TXN: (4, 5)}
    | {TXN_OFFSET_COMMIT: (4, 6)}
)
"""API key → highest version that clients send with transaction.version 0 and 1, and with 2 (KIP-890). Later versions of
AddPartitionsToTxn are for partition leaders."""

Ending = Literal["commit", "abort"]


class TimedOutCode(NamedTuple):
    """From version `since` of API `api_key` on, and for that ending of EndTxn (None: both), answer `code`."""

    api_key: int
    since: int
    ending: Ending | None
    code: int


RECOVERABLE_TIMED_OUT_CODES: Final = (
    # librdkafka (Produce up to v10, AddPartitionsToTxn v0, EndTxn v1) aborts and calls InitProducerId on 49 and 59; an
    # INVALID_PRODUCER_EPOCH in Produce ends it. Java (v11, v3, v4) aborts on that one; an abort must then succeed, and
    # a commit's 49 would end it. On 120 it does not bump; 59 for its next AddPartitionsToTxn makes it bump.
    TimedOutCode(PRODUCE, 0, None, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    TimedOutCode(PRODUCE, 11, None, ErrorCode.INVALID_PRODUCER_EPOCH),
    TimedOutCode(ADD_PARTITIONS_TO_TXN, 0, None, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    TimedOutCode(ADD_PARTITIONS_TO_TXN, 2, None, ErrorCode.UNKNOWN_PRODUCER_ID),
    TimedOutCode(ADD_OFFSETS_TO_TXN, 0, None, ErrorCode.UNKNOWN_PRODUCER_ID),
    # Every code of a producer that TxnOffsetCommit has of old ends librdkafka (v3). What it does not expect there it
    # aborts on, and its EndTxn then gets the code that bumps. Java (v4, v5) ends on 59 here, and aborts on 120.
    TimedOutCode(TXN_OFFSET_COMMIT, 0, None, ErrorCode.UNKNOWN_PRODUCER_ID),
    TimedOutCode(TXN_OFFSET_COMMIT, 4, None, ErrorCode.TRANSACTION_ABORTABLE),
    TimedOutCode(END_TXN, 0, None, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    TimedOutCode(END_TXN, 2, "commit", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    TimedOutCode(END_TXN, 4, "commit", ErrorCode.TRANSACTION_ABORTABLE),
    TimedOutCode(END_TXN, 2, "abort", ErrorCode.NONE),
)
"""Codes that make an unmodified client abort and call InitProducerId at its old epoch, which is KIP-588's recovery.
NONE: the transaction is aborted already, so an abort has nothing left to do."""

DRAFT_TIMED_OUT_CODE: Final = 90
DRAFT_FENCED_CODE: Final = 91
DRAFT_TIMED_OUT_CODES: Final = tuple(
    TimedOutCode(api_key, since, None, code)
    for api_key in (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN)
    for since, code in ((0, int(ErrorCode.INVALID_PRODUCER_EPOCH)), (2, DRAFT_TIMED_OUT_CODE))
)
"""KIP-588's literal numbers: TRANSACTION_TIMED_OUT 90 from version 2 of each API on."""


TIMED_OUT_TABLES: Final[Mapping[str, tuple[TimedOutCode, ...]]] = MappingProxyType(
    {"none": (), "recoverable": RECOVERABLE_TIMED_OUT_CODES, "draft": DRAFT_TIMED_OUT_CODES}
)
API_NAMES: Final = {
    "Produce": PRODUCE,
    "AddPartitionsToTxn": ADD_PARTITIONS_TO_TXN,
    "AddOffsetsToTxn": ADD_OFFSETS_TO_TXN,
    "EndTxn": END_TXN,
    "TxnOffsetCommit": TXN_OFFSET_COMMIT,
    "InitProducerId": INIT_PRODUCER_ID,
}

_ENDINGS: Final[tuple[Ending, Ending]] = ("commit", "abort")
_ANSWERED_BY_LEADERS: Final = (PRODUCE, TXN_OFFSET_COMMIT)
"""Their codes pass through Kafka's own enumeration on the way to the client."""


def row_text(row: TimedOutCode) -> str:
    """The row as the setting spells it."""
    names = {key: name for name, key in API_NAMES.items()}
    return f"{names[row.api_key]}:{row.since}{f':{row.ending}' if row.ending else ''}={row.code}"


def _why_never(row: TimedOutCode, transaction_version: int) -> str:
    name = row_text(row).partition(":")[0]
    if row.api_key == INIT_PRODUCER_ID:
        return "InitProducerId at the epoch that timed out is the claim of the next one, which nothing refuses"
    highest = CLIENT_VERSIONS[row.api_key][transaction_version >= 2]
    if row.since > highest:
        return f"with transaction.version {transaction_version} clients send {name} up to version {highest}"
    if row.ending is not None and row.api_key != END_TXN:
        return f"{name} neither commits nor aborts"
    return "other rows stand before it in every version"


TransactionStateLayout = Literal["kafka", "kip-360"]
UnreadableSubscription = Literal["INCONSISTENT_GROUP_PROTOCOL", "UNKNOWN_SERVER_ERROR"]
ProducerStateExpiration = Literal["producer.id.expiration.ms", "transactional.id.expiration.ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """How the broker behaves where the texts and Kafka differ. The defaults are Apache Kafka 4.4.0's.

    `semantics.json` says what each field means, with the texts that it is about.
    """

    name: str = "kafka"

    producer: ProducerRules = field(default_factory=ProducerRules)
    #: None: everything this broker has.
    advertised: Advertised | None = None

    transaction_version: int = 2
    persist_last_epoch: bool = True
    timeout_keeps_last_epoch: Literal["transaction.version 2", "always"] = "transaction.version 2"
    timed_out_codes: tuple[TimedOutCode, ...] = ()
    fenced_code: int = int(ErrorCode.PRODUCER_FENCED)
    init_compares_epoch_while_ongoing: bool = False
    join_while_ending: Literal["refused", "refused after its producer"] = "refused"
    leaders_add_for_version: int = 2
    remember_offered_producer_id: bool = False
    unreadable_subscription: UnreadableSubscription = "INCONSISTENT_GROUP_PROTOCOL"
    assignor_bumps_epoch: bool = True
    empty_group_is_assigned: bool = True
    unknown_logger_operation: Literal["INVALID_REQUEST", "UNKNOWN_SERVER_ERROR"] = "INVALID_REQUEST"
    check_unknown_producer: bool = False
    log_start_with_unknown_producer: bool = False
    advertise_describe_transaction_state: bool = False
    producer_state_expiration: ProducerStateExpiration = "producer.id.expiration.ms"
    marker_without_leader: Literal["dropped", "retried"] = "dropped"
    transaction_state_layout: TransactionStateLayout = "kafka"

    def timed_out_code(self, api_key: int, version: int, ending: Ending | None = None) -> int | None:
        """The code for the old epoch after a timeout, None when the table has no row for it."""
        row = self._timed_out_row(api_key, version, ending)
        return None if row is None else row.code

    def _timed_out_row(self, api_key: int, version: int, ending: Ending | None) -> TimedOutCode | None:
        best: TimedOutCode | None = None
        for row in self.timed_out_codes:
            if row.api_key != api_key or row.since > version or row.ending not in (None, ending):
                continue
            if best is None or (row.since, row.ending is not None) > (best.since, best.ending is not None):
                best = row
        return best

    def _never_acting(self, transaction_version: int) -> list[str]:
        """Rows of `timed_out_codes` that apply to no request of a client, each with the reason."""
        chosen = {
            id(self._timed_out_row(api_key, version, ending))
            for api_key, highest in CLIENT_VERSIONS.items()
            for version in range(highest[transaction_version >= 2] + 1)
            for ending in (_ENDINGS if api_key == END_TXN else (None,))
        }
        return [
            f"timed_out_codes: {row_text(row)} can never act: {_why_never(row, transaction_version)}"
            for row in self.timed_out_codes
            if id(row) not in chosen
        ]

    def problems(self, transaction_version: int) -> list[str]:
        """The reasons why these fields contradict each other, one line each; empty when they do not."""
        problems = self._never_acting(transaction_version)
        if self.timed_out_codes and self.timeout_keeps_last_epoch != "always" and transaction_version < 2:
            problems.append(
                "timed_out_codes name an epoch that timeout_keeps_last_epoch='transaction.version 2' forgets"
                f" with transaction.version {transaction_version}"
            )
        if self.transaction_state_layout == "kip-360" and transaction_version > 1:
            problems.append(
                "transaction_state_layout='kip-360' needs transaction.version 1 or 0: it has no room for the next"
                " producer id and the client version that transaction.version 2 logs"
            )
        if self.transaction_state_layout == "kip-360" and not self.persist_last_epoch:
            problems.append(
                "transaction_state_layout='kip-360' always holds the last epoch: persist_last_epoch must be true"
            )
        if self.fenced_code == DRAFT_TIMED_OUT_CODE and any(
            row.code == DRAFT_TIMED_OUT_CODE for row in self.timed_out_codes
        ):
            problems.append(
                "fenced_code and timed_out_codes both use 90: a client could not tell them apart; KIP-588's own numbers"
                " need minibroker.semantics.fenced_code=91 too"
            )
        return problems


KAFKA: Final = Semantics()

KIP: Final = Semantics(
    name="kip",
    producer=ProducerRules(
        unknown_producer_sequence="unknown_producer_id",
        stale_sequence_error=ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        waiting_sequence_check="unless_in_sequence",
        verification_ends="with_its_request",
        snapshot_all_batches=True,
        rebuild_from="first_segment",
        expire_by="arrival",
    ),
    # Java's client asks for a new epoch only while it is not completing, so KIP-588's loop needs EndTxn v5.
    transaction_version=2,
    timeout_keeps_last_epoch="always",
    timed_out_codes=RECOVERABLE_TIMED_OUT_CODES,
    init_compares_epoch_while_ongoing=True,
    remember_offered_producer_id=True,
    log_start_with_unknown_producer=True,
    advertise_describe_transaction_state=True,
    producer_state_expiration="transactional.id.expiration.ms",
    marker_without_leader="retried",
)

PRESETS: Final[Mapping[str, Semantics]] = MappingProxyType({"kafka": KAFKA, "kip": KIP})


class SemanticsField(NamedTuple):
    """One difference as a setting, a row of `semantics.json`.

    seeds: the rows of the table of texts that it is about, separated by spaces.
    choices: its values as text; () for a number, a truth value, a table of codes.
    of_producer: a field of `ProducerRules`, not of `Semantics`.
    """

    name: str
    seeds: str
    doc: str
    choices: tuple[str, ...]
    of_producer: bool

    def of(self, semantics: Semantics) -> Any:
        """The value in `semantics`."""
        return getattr(semantics.producer if self.of_producer else semantics, self.name)


def _field(name: str, doc: str, seeds: str = "", choices: Sequence[str] = ()) -> SemanticsField:
    return SemanticsField(name, seeds, doc, tuple(choices), of_producer=name in ProducerRules._fields)


FIELDS: Final = tuple(_field(name, **row) for name, row in json.loads(package_text(__name__, "semantics.json")).items())
"""Every difference between the semantics, in the order of the documentation."""

TRANSACTION_VERSION_FIELD: Final = "transaction_version"
"""Has an option of its own (`--transaction-version`) and so no setting."""


def mixed(preset: Semantics, setting: Callable[[str], object]) -> Semantics:
    """`preset` with the values of `setting(name of a field)`, except for those that are None.

    Raises ValueError for a table that does not parse.
    """
    own: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    for spec in FIELDS:
        value = setting(spec.name) if spec.name != TRANSACTION_VERSION_FIELD else None
        if value is None:
            continue
        if spec.name == "timed_out_codes":
            value = parse_timed_out_codes(str(value))
        elif spec.name == "stale_sequence_error":
            value = ErrorCode[str(value)]
        (producer if spec.of_producer else own)[spec.name] = value
    if not own and not producer:
        return preset
    return replace(preset, producer=preset.producer._replace(**producer), **own)


def parse_timed_out_codes(text: str) -> tuple[TimedOutCode, ...]:
    """``none``, ``recoverable``, ``draft``, or rows ``API:VERSION[:commit|abort]=CODE`` separated by commas.

    Raises ValueError with one line.
    """
    if text in TIMED_OUT_TABLES:
        return TIMED_OUT_TABLES[text]
    return tuple(_parse_row(row.strip()) for row in text.split(","))


_ROW: Final = re.compile(r"(?P<api>\w+):(?P<since>\d+)(?::(?P<ending>commit|abort))?=(?P<code>\d+)")


def _parse_row(text: str) -> TimedOutCode:
    row = _ROW.fullmatch(text)
    if row is None or row["api"] not in API_NAMES:
        raise ValueError(
            f"{text!r} is neither {', '.join(TIMED_OUT_TABLES)} nor API:VERSION[:commit|abort]=CODE with an API of"
            f" {', '.join(API_NAMES)}"
        )
    api_key, code = API_NAMES[row["api"]], int(row["code"])
    if api_key in _ANSWERED_BY_LEADERS and code not in ErrorCode.__members__.values():
        raise ValueError(f"{text!r}: {code} is none of Kafka's error codes")
    if code == ErrorCode.NONE and (api_key != END_TXN or row["ending"] != "abort"):
        raise ValueError(f"{text!r}: 0 says that it is done, which holds for an abort only")
    return TimedOutCode(api_key, int(row["since"]), row["ending"], code)  # type: ignore[arg-type]
