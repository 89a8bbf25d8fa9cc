"""Refusals that look different on the wire depending on API, version and semantics.

Why the rules are as they are: `minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from typing import Final

from minibroker.coordinators.transactions.metadata import (
    LAST_USABLE_EPOCH,
    NO_PRODUCER_EPOCH,
    ProducerIdAndEpoch,
    TransactionEntry,
)
from minibroker.coordinators.transactions.transitions import after_completion
from minibroker.releases.semantics import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    Ending,
    Semantics,
)
from minibroker_protocol.errors import ApiError, ErrorCode

FENCED_SINCE = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}
"""First version of each API that knows PRODUCER_FENCED; below it the code is INVALID_PRODUCER_EPOCH (KIP-588)."""


class Fenced(ApiError):
    """PRODUCER_FENCED.

    timed_out: the epoch is the one before a timeout's bump, and the new one is not claimed yet.
    successor: the producer id and epoch to claim.
    """

    def __init__(self, message: str, *, timed_out: bool, successor: ProducerIdAndEpoch) -> None:
        super().__init__(ErrorCode.PRODUCER_FENCED, message)
        self.timed_out = timed_out
        self.successor = successor


def fenced(entry: TransactionEntry, offered: ProducerIdAndEpoch, why: str) -> Fenced:
    """`offered` is fenced from `entry`; the text names the expected and the received epoch.

    A timeout takes the place of `why`: a client cannot tell one from a newer instance.
    """
    metadata, late = entry.metadata, timed_out(entry, offered)
    if late:
        why = f"timed out after {metadata.timeout_ms} ms"
    return Fenced(
        f"{offered} {why}: {metadata.transactional_id} is {entry}",
        timed_out=late,
        successor=ProducerIdAndEpoch(*after_completion(metadata)),
    )


def timed_out(entry: TransactionEntry, offered: ProducerIdAndEpoch) -> bool:
    """Whether `offered` is the producer whose transaction timed out, and the next epoch is not claimed yet."""
    metadata = entry.metadata
    # Without a last epoch no client can hold what a timeout bumped away: a new instance has none (KIP-360).
    if not metadata.timed_out or NO_PRODUCER_EPOCH in (offered.producer_epoch, entry.last_epoch):
        return False
    if offered.producer_epoch != entry.last_epoch:
        return False
    if offered.producer_id == metadata.producer_id:
        # A timeout bumps once. A larger distance is that of later claims.
        return entry.last_epoch == entry.epoch - 1
    # The timeout took the last epoch there was: with transaction.version 2 its end gave a new producer id.
    rotated = entry.last_epoch == LAST_USABLE_EPOCH and entry.epoch == 0
    return rotated and offered.producer_id == metadata.previous_producer_id


def refuse_timed_out(semantics: Semantics, entry: TransactionEntry, producer: ProducerIdAndEpoch) -> None:
    """Raise Fenced for the epoch that timed out, where there are codes for it.

    Before anything else is asked of the id: while the markers are on their way a client would only be sent round again,
    and after a rotation its producer id is not the current one any more.
    """
    if semantics.timed_out_codes and timed_out(entry, producer):
        raise fenced(entry, producer, "timed out")


TIMED_OUT_FOR_LEADERS: Final = ErrorCode.UNKNOWN_PRODUCER_ID
"""The code that AddPartitionsToTxn v4+ gives a partition leader for the epoch of a timed-out transaction, so that it
can answer Produce with the matching code. It is used for nothing else there."""


def code_for_leader(error: ApiError, semantics: Semantics) -> ErrorCode:
    """The code of `error` between brokers: leaders translate for their clients."""
    if isinstance(error, Fenced) and error.timed_out and semantics.timed_out_codes:
        return TIMED_OUT_FOR_LEADERS
    return error.code


def wire_code(error: ApiError, semantics: Semantics, api_key: int, version: int, ending: Ending | None = None) -> int:
    """The code of `error` in a response of `api_key` in `version`; `ending` is EndTxn's."""
    if error.code is not ErrorCode.PRODUCER_FENCED:
        return error.code
    if isinstance(error, Fenced) and error.timed_out:
        code = semantics.timed_out_code(api_key, version, ending)
        if code is not None:
            return code
    if version < FENCED_SINCE.get(api_key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return semantics.fenced_code
