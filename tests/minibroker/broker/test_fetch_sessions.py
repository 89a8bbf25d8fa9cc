from __future__ import annotations

from dataclasses import fields
from random import Random

import pytest

from minibroker.broker.fetch_sessions import FetchSessionCache, FetchTarget
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID


def target(topic: str, index: int = 0, offset: int = 0) -> FetchTarget:
    return FetchTarget(topic, NO_ID, index, offset, 1 << 20, -1, -1)


def cache(slots: int = 2) -> FetchSessionCache:
    return FetchSessionCache(slots, Random(1), eviction_ms=1000)


def test_fetch_session_id_not_found_for_an_id_nobody_gave_out() -> None:
    with pytest.raises(ApiError) as error:
        cache().resume(7, 1, False, 0)
    assert error.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_invalid_fetch_session_epoch_names_both_epochs() -> None:
    sessions = cache()
    session = sessions.create([target("t")], False, 0)
    assert session is not None
    with pytest.raises(ApiError, match="expected epoch 1, got 5") as error:
        sessions.resume(session.id, 5, False, 0)
    assert error.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_fetch_session_topic_id_error_when_a_client_changes_between_names_and_ids() -> None:
    sessions = cache()
    session = sessions.create([target("t")], False, 0)
    assert session is not None
    with pytest.raises(ApiError) as error:
        sessions.resume(session.id, 1, True, 0)
    assert error.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_epoch_wraps_to_one() -> None:
    sessions = cache()
    session = sessions.create([target("t")], False, 0)
    assert session is not None
    session.epoch = (1 << 31) - 1
    session.next_epoch()
    assert session.epoch == 1


def test_partitions_are_added_updated_and_forgotten() -> None:
    session = cache().create([target("a"), target("b")], False, 0)
    assert session is not None
    session.targets[target("a").key].known_high_watermark = 9
    said = FetchTarget("a", NO_ID, 0, 5, 7, 3, 2)
    session.apply([said, target("c")], [target("b").key])
    assert [(t.topic, t.fetch_offset) for t in session.targets.values()] == [("a", 5), ("c", 0)]
    kept = session.targets[said.key]
    assert {f.name: getattr(kept, f.name) for f in fields(kept) if f.init} == {
        f.name: getattr(said, f.name) for f in fields(said) if f.init
    }
    assert session.targets[target("a").key].known_high_watermark == 9


def test_a_partition_that_gave_data_moves_to_the_end() -> None:
    session = cache().create([target("a"), target("b")], False, 0)
    assert session is not None
    session.moved_to_end(target("a").key)
    assert [t.topic for t in session.targets.values()] == ["b", "a"]


def test_without_a_free_slot_there_is_no_session_until_the_stalest_is_old_enough() -> None:
    sessions = cache(slots=2)
    first = sessions.create([target("t")], False, 0)
    second = sessions.create([target("t")], False, 0)
    assert first is not None
    assert second is not None
    assert sessions.create([target("t")], False, 999) is None
    sessions.resume(first.id, 1, False, 999)
    assert sessions.create([target("t")], False, 1500) is not None
    with pytest.raises(ApiError):
        sessions.resume(second.id, 1, False, 1500)


def test_without_slots_there_are_no_sessions() -> None:
    assert cache(slots=0).create([target("t")], False, 1 << 40) is None


@pytest.mark.parametrize(
    ("used_ms", "asked_ms", "room"),
    [(0, 999, False), (0, 1000, True), (600, 1000, False), (600, 1599, False), (600, 1600, True)],
)
def test_a_session_makes_room_once_it_is_unused_for_long(used_ms: int, asked_ms: int, room: bool) -> None:
    """What counts is its last use, however old it is."""
    sessions = cache(1)
    session = sessions.create([target("t")], False, 0)
    assert session is not None
    if used_ms:
        sessions.resume(session.id, 1, False, used_ms)
    assert (sessions.create([target("u")], False, asked_ms) is not None) is room
