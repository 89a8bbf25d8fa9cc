"""Entries of index files as claims about the log: what is wrong with them, and where in the file."""

from __future__ import annotations

import pytest

from minibroker_storage.index_entries import EntryFault, IndexCheck, IndexClaims, offset_claims, time_claims


def offsets(*entries: tuple[int, int]) -> IndexClaims:
    return offset_claims("i", 100, b"".join(a.to_bytes(4) + b.to_bytes(4, signed=True) for a, b in entries))


def times(*entries: tuple[int, int]) -> IndexClaims:
    return time_claims("i", 100, b"".join(a.to_bytes(8) + b.to_bytes(4) for a, b in entries))


@pytest.mark.parametrize(
    ("claims", "keys", "values", "fault"),
    [
        (offsets(), (), (), None),
        (offsets((0, 0), (5, 70)), [0, 70], [100, 105], None),
        (offsets((3, 10), (3, 70)), (), (), EntryFault("entry (103, 70) after (103, 10): entries must rise", 8, 103)),
        (offsets((3, 70), (4, 70)), (), (), EntryFault("entry (104, 70) after (103, 70): entries must rise", 8, 104)),
        (offsets((0, 10), (0, 70)), (), (), EntryFault("entry (100, 70) after (100, 10): entries must rise", 8, 100)),
        (offsets((0, -1)), (), (), EntryFault("entry (100, -1) after (99, -1): entries must rise", 0, 100)),
        (times((7, 0), (9, 0), (12, 4)), [100, 100, 104], [7, 9, 12], None),
        (times((7, 2), (7, 3)), (), (), EntryFault("entry (7, 103) after (7, 102): timestamps must rise", 12, 103)),
        (times((7, 2), (8, 1)), (), (), EntryFault("entry (8, 101) after (7, 102): timestamps must rise", 12, 101)),
    ],
)
def test_entries_rise(claims: IndexClaims, keys: list[int], values: list[int], fault: EntryFault | None) -> None:
    assert (list(claims.keys), list(claims.values), claims.wrong) == (list(keys), list(values), fault)


@pytest.mark.parametrize(
    ("claims", "there", "fault"),
    [
        (offsets((0, 0), (5, 70)), None, EntryFault("no batch begins at byte 70", 8, 105)),
        (offsets((0, 0), (5, 70)), 104, EntryFault("entry for offset 105, the batch at byte 70 ends at 104", 8, 105)),
        (times((7, 2), (8, 3)), None, EntryFault("no batch ends at this offset (timestamp 8)", 12, 103)),
        (times((7, 2), (8, 3)), 9, EntryFault("entry says 8 is the largest timestamp up to here, it is 9", 12, 103)),
    ],
)
def test_an_entry_that_the_log_contradicts(claims: IndexClaims, there: int | None, fault: EntryFault) -> None:
    assert claims.fault(1, there) == fault


def test_an_entry_for_a_time_that_no_batch_has() -> None:
    """Batches without a timestamp have -1, which is below every entry."""
    claims = times((0, 4))
    check = IndexCheck(offsets(), claims)
    check.batch(0, 104, -1)
    fault = EntryFault("entry says 0 is the largest timestamp up to here, it is -1", 0, 104)
    assert check.faults(whole=True) == [(claims, fault)]
