"""What became of a stream's topics since its last batch, without a cluster."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")

from minibroker.client.topics import Position, Span
from minibroker_pipeline.files import NotReadable
from minibroker_pipeline.stream_offsets import (
    Changes,
    Offsets,
    TopicOffsets,
    from_json,
    is_old_form,
    kept_where_equal,
    not_after,
    not_before,
    readable_topics,
    to_json,
)

A, B = b"a" * 16, b"b" * 16


def at(topic_id: bytes | None, *offsets: int, epoch: int = 0, topic: str = "t") -> Offsets:
    return {topic: TopicOffsets(topic_id, {number: Position(offset, epoch) for number, offset in enumerate(offsets)})}


def changes(
    start: Offsets,
    end: Offsets,
    now: dict[str, bytes | None] | None = None,
    *,
    first: int = 0,
    cut: int | None = None,
) -> tuple[list[tuple[int, int, int]], list[str]]:
    """(partition, start, stop) of what is read, and what is said to be lost."""
    lost: list[str] = []
    found = Changes(lost.append, lambda topic, partition: first, lambda topic, partition, position: cut)
    spans = list(found.spans(start, end, now if now is not None else {"t": end["t"].topic_id}))
    assert all(span.topic_id == end["t"].topic_id for span in spans)
    return [(span.partition, span.start, span.stop) for span in spans], lost


def test_offsets_go_through_json_in_one_order() -> None:
    offsets = {**at(A, 5, 0, epoch=3), **at(None, 7, topic="a-1")}
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    assert not is_old_form(json.loads(text))
    backwards = {
        topic: TopicOffsets(of.topic_id, dict(reversed(of.partitions.items()))) for topic, of in offsets.items()
    }
    assert json.dumps(to_json(dict(reversed(backwards.items())))) == text


def test_offsets_of_earlier_releases_are_read() -> None:
    old = {"a-b-0": 5, "a-b-1": 0}
    assert is_old_form(old)
    assert from_json(old) == {"a-b": TopicOffsets(None, {0: Position(5), 1: Position(0)})}
    assert changes(from_json({"t-0": 5}), at(A, 9)) == ([(0, 5, 9)], [])
    spans, (said,) = changes(from_json({"t-0": 5}), at(A, 3))
    assert spans == [(0, 0, 3)]
    assert said.startswith(
        "t-0 was read up to offset 5, but its log ends at 3: it was truncated, or the topic was deleted"
    )


@pytest.mark.parametrize("content", [{"t-0": "5"}, {"t-0": {"offset": 5}}, {"t": 5}, {"t-0": None}, {"t-0": True}])
def test_what_the_source_has_not_written_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(NotReadable, match="has not written these offsets"):
        from_json(content)


def test_nothing_changed() -> None:
    assert changes(at(A, 5, 2), at(A, 9, 2)) == ([(0, 5, 9)], [])
    assert changes({}, at(A, 9)) == ([(0, 0, 9)], [])
    assert list(Changes(pytest.fail, lambda *_: 0, lambda *_: None).spans(at(A, 5), at(A, 9, epoch=4), {"t": A})) == [
        Span("t", 0, 5, 9, 4, A)
    ]


def test_a_new_leader_alone_is_nothing_new() -> None:
    kept = kept_where_equal(at(A, 5, 7, epoch=1), at(A, 5, 8, epoch=2))
    assert kept == {"t": TopicOffsets(A, {0: Position(5, 1), 1: Position(8, 2)})}
    other = at(B, 5, epoch=1)
    assert kept_where_equal(at(A, 5), other) == other


def test_an_end_that_was_asked_for_too_early_is_no_truncation() -> None:
    """Without a new leader nothing can have been cut."""
    start, early = at(A, 8, 1, epoch=1), at(A, 5, 4, epoch=1)
    moved = {"t": TopicOffsets(A, {0: Position(8, 1), 1: Position(4, 1)})}
    assert not_before(start, early, begins=False) == moved
    assert not_before(start, at(A, 5, 4, epoch=0), begins=False)["t"].partitions[0] == Position(8, 1)
    for end in (at(A, 5, 4, epoch=2), at(A, 5, 4, epoch=-1), at(B, 5, 4, epoch=1), at(None, 5, 4, epoch=1)):
        for begins in (False, True):
            if begins and end["t"].topic_id is None:
                continue
            assert not_before(start, end, begins=begins) == end
    nameless = at(None, 5, epoch=1)
    assert not_before(at(None, 8, epoch=1), nameless, begins=False) == nameless
    # An offset of the options has no epoch.
    assert not_before(at(A, 8, epoch=-1), at(A, 5, epoch=3), begins=True) == at(A, 8, epoch=-1)
    assert not_before(at(A, 8, epoch=-1), at(A, 5, epoch=3), begins=False) == at(A, 5, epoch=3)
    assert not_before({}, early, begins=True) == early


@pytest.mark.parametrize(("of_end", "expected"), [(A, (5, 8)), (None, (5, 8)), (B, (9, 8))])
def test_offsets_are_cut_to_the_end_of_their_own_topic(of_end: bytes | None, expected: tuple[int, int]) -> None:
    """Not to that of another one with its name; a topic or a partition without an end is left as it is."""
    cut = not_after(at(A, 9, 8), at(of_end, 5))
    assert cut == at(A, *expected)
    assert not_after(at(A, 9), at(A, 5, topic="other")) == at(A, 9)
    assert not_after(at(A, 4), at(A, 5)) == at(A, 4)


def test_a_topic_made_again_is_read_from_its_start() -> None:
    for end in (at(B, 3), at(B, 300)):
        spans, (said,) = changes(at(A, 100), end)
        assert spans == [(0, 0, end["t"].partitions[0].offset)]
        assert said.startswith("topic t was deleted and made again: its id was YWFh")
        assert "read up to offset 0@100" in said


def test_a_topic_that_is_gone_since_the_batch_was_planned() -> None:
    spans, (said,) = changes(at(A, 5), at(A, 9), {"t": B})
    assert (spans, said.split(":")[0]) == (
        [],
        "topic t, which is to be read up to offset 0@9, was deleted and made again",
    )
    spans, (said,) = changes(at(A, 5), at(A, 9), {})
    assert (spans, said) == ([], "topic t, which is to be read up to offset 0@9, is not in the cluster: it was deleted")
    lost: list[str] = []
    assert list(readable_topics(at(A, 5, 1, 2, 3, 4, 5), {}, {}, lost.append)) == []
    assert lost == [
        "topic t, which was read up to offset 0@5, 1@1, 2@2, 3@3 and 2 more, is not in the cluster: it was deleted"
    ]
    lost.clear()
    assert list(readable_topics(at(A, 5), {}, {"t": A}, lost.append)) == []
    assert lost == ["topic t, which was read up to offset 0@5, is not read any more"]


def test_records_that_retention_deleted_unread() -> None:
    spans, (said,) = changes(at(A, 30), at(A, 100), first=60)
    assert spans == [(0, 60, 100)]
    assert said.startswith("t-0 is to be read from offset 30, but its log starts at 60: retention or DeleteRecords has")
    assert changes(at(A, 30), at(A, 40), first=60)[0] == []
    spans, (said,) = changes(at(A, 30), at(A, 40, 9), first=4)
    assert spans == [(0, 30, 40), (1, 4, 9)]
    assert said.startswith("t-1, a new partition, starts at offset 4")
    assert changes(at(A, 60), at(A, 60), first=90) == ([], [])  # all of it was read


def test_a_log_that_was_truncated() -> None:
    spans, (said,) = changes(at(A, 30), at(A, 100, epoch=2), cut=25)
    assert spans == [(0, 25, 100)]
    assert said.startswith("t-0 was read up to offset 30, but its log was truncated to offset 25")
    assert changes(at(A, 30), at(A, 25, epoch=2), cut=25)[0] == []
    assert changes(at(A, 30, epoch=2), at(A, 100, epoch=2), cut=25) == ([(0, 30, 100)], [])  # not without an election


@pytest.mark.parametrize(
    ("before", "now", "asked"), [(0, 0, False), (2, 2, False), (0, 1, True), (0, 2, True), (-1, 0, True), (2, 1, True)]
)
def test_whoever_leads_anew_is_asked_for_a_truncation(before: int, now: int, asked: bool) -> None:
    spans, said = changes(at(A, 30, epoch=before), at(A, 100, epoch=now), cut=25)
    assert (spans, len(said)) == ([(0, 25 if asked else 30, 100)], asked)


def test_a_partition_that_is_not_read_any_more() -> None:
    spans, (said,) = changes(from_json({"t-0": 5, "t-1": 4}), at(A, 9))
    assert (spans, said) == ([(0, 5, 9)], "t-1, which was read up to offset 4, is not read any more")
