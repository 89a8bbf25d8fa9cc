"""Markers of ended transactions: where they are sent, what each answer means, and what is no longer sent.

Kafka's TransactionMarkerChannelManager and TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from manual_time import ManualTimers

from minibroker.coordinator_runtime.transaction_markers import (
    RETRY_DELAY_MS,
    EndedTransaction,
    Marker,
    MarkerSender,
)
from minibroker.kernel.deferred import Deferred, failed, resolved
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import WriteTxnMarkersResponse

HERE, THERE, ELSEWHERE = 1, 2, 3
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)

DONE = ("NONE", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UNSUPPORTED_VERSION")
RETRY = (
    "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR", "NETWORK_EXCEPTION",
)  # fmt: skip
STOP = ("INVALID_PRODUCER_EPOCH", "TRANSACTION_COORDINATOR_FENCED", "CORRUPT_MESSAGE")


class Story:
    """A sender on broker 1. `sent` has what it asked of others, `here` what it wrote itself; a test answers."""

    direct = True

    def __init__(self, *, drop_without_leader: bool = False) -> None:
        self.timers = ManualTimers()
        self.leaders: dict[tuple[str, int], int | None] = {T0: THERE, T1: THERE, U0: THERE}
        self.sent: list[tuple[int, Any, Deferred[Any]]] = []
        self.here: list[tuple[str, int]] = []
        self.append: Any = None  # what comes of a marker written here, when it is not written at once
        self.dropped: list[tuple[str, int]] = []
        self.sending: list[list[tuple[str, int]]] = []
        self.sender = MarkerSender(
            self, self.timers, self._described, HERE, self._write, self._written,
            drop_without_leader=drop_without_leader,
        )  # fmt: skip
        self.ended: list[Ended] = []
        self.sender.on_dropped = lambda job, partition: self.dropped.append(partition)
        self.sender.on_sending = lambda job, partitions: self.sending.append(list(partitions))

    def _described(self, topic: str, index: int) -> PartitionImage | None:
        if (topic, index) not in self.leaders:
            return None
        leader = self.leaders[topic, index]
        return PartitionImage(index, (HERE, THERE), (HERE, THERE), NO_LEADER if leader is None else leader, 0)

    def send(self, node_id: int, request: Any, api_version: int) -> Deferred[Any]:
        self.sent.append((node_id, request, Deferred()))
        return self.sent[-1][2]

    def _write(self, marker: Marker, partition: tuple[str, int]) -> Deferred[None]:
        self.here.append(partition)
        if isinstance(self.append, Exception):
            raise self.append
        return resolved(None) if self.append is None else self.append

    def _written(self, job: EndedTransaction, partition: tuple[str, int]) -> None:
        (ended,) = (ended for ended in self.ended if ended.job is job)
        ended.missing.remove(partition)

    def end(self, *partitions: tuple[str, int], name: str = "tx", shard: int = 0, epoch: int = 7) -> Ended:
        job = EndedTransaction(name, shard, Marker(5, 3, True, epoch, 2), frozenset(partitions))
        self.ended.append(Ended(job, set(partitions)))
        self.sender.send(job)
        return self.ended[-1]

    def asked(self, number: int = -1) -> tuple[int, dict[str, list[int]]]:
        """Whom the sender asked, and for which partitions."""
        node_id, request, _ = self.sent[number]
        return node_id, {topic.name: topic.partition_indexes for topic in request.markers[0].topics}

    def answer(self, code: str = "NONE", number: int = -1) -> None:
        _, request, waiting = self.sent[number]
        topics = [
            WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=ErrorCode[code]
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.markers[0].topics
        ]
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=5, topics=topics)
        waiting.resolve(WriteTxnMarkersResponse(markers=[result]))


@dataclass
class Ended:
    """A transaction and the partitions that have not confirmed its marker, each of which may do so once."""

    job: EndedTransaction
    missing: set[tuple[str, int]]

    @property
    def finished(self) -> int:
        return int(not self.missing)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_marker_says_which_transaction_ends_and_how(story: Story) -> None:
    story.end(T0, T1, U0)
    (marker,) = story.sent[0][1].markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (5, 3, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (7, 2)
    assert story.asked() == (THERE, {"t": [0, 1], "u": [0]})


def test_each_leader_is_asked_once_for_all_of_its_partitions(story: Story) -> None:
    story.leaders[U0] = ELSEWHERE
    ended = story.end(T0, T1, U0)
    assert [story.asked(number) for number in (0, 1)] == [(THERE, {"t": [0, 1]}), (ELSEWHERE, {"u": [0]})]
    story.answer(number=0)
    assert (ended.finished, story.sender.active) == (0, ["tx"])
    story.answer(number=1)
    assert (ended.finished, story.sender.active, ended.missing) == (1, [], set())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((code, (1, 1, [])) for code in DONE),
        *((code, (0, 2, ["tx"])) for code in RETRY),
        *((code, (0, 1, ["tx"])) for code in STOP),
    ],
)
def test_what_an_answer_means(story: Story, code: str, expected: tuple[int, int, list[str]]) -> None:
    """Times finished, requests sent, and whose markers are not all written."""
    ended = story.end(T0)
    story.answer(code)
    story.timers.advance(RETRY_DELAY_MS - 1)
    assert len(story.sent) == 1
    story.timers.advance(1)
    assert (ended.finished, len(story.sent), story.sender.active) == expected


@pytest.mark.parametrize("error", [ApiError(ErrorCode.NETWORK_EXCEPTION, "away"), ValueError("no answer")])
def test_no_answer(story: Story, error: Exception) -> None:
    """Out of reach is tried again; what is not understood stops the transaction until a reload."""
    story.end(T0)
    story.sent[0][2].fail(error)
    story.timers.advance(RETRY_DELAY_MS)
    assert len(story.sent) == (2 if isinstance(error, ApiError) else 1)


def test_a_partition_that_an_answer_leaves_out_is_not_taken_for_written(story: Story) -> None:
    ended = story.end(T0)
    story.sent[0][2].resolve(WriteTxnMarkersResponse(markers=[]))
    assert (ended.finished, ended.missing) == (0, {T0})


def test_a_retry_asks_whoever_leads_by_then_and_only_for_what_is_missing(story: Story) -> None:
    story.leaders[U0] = ELSEWHERE
    ended = story.end(T0, U0)
    story.answer(number=0)
    story.answer("NOT_LEADER_OR_FOLLOWER", number=1)
    story.leaders[U0] = THERE
    story.timers.advance(RETRY_DELAY_MS)
    assert story.asked() == (THERE, {"u": [0]})
    story.answer()
    assert ended.finished == 1


@pytest.mark.parametrize("when", ["cancelled", "shard moved", "closed"])
def test_a_late_answer_of_a_job_that_is_no_longer_there_changes_nothing(story: Story, when: str) -> None:
    ended = story.end(T0)
    if when == "cancelled":
        story.sender.cancel("tx")
    elif when == "shard moved":
        story.sender.cancel_shard(0)
    else:
        story.sender.close()
    story.answer()
    assert (ended.finished, ended.missing, story.sender.active) == (0, {T0}, [])


@pytest.mark.parametrize("when", ["cancelled", "closed"])
def test_a_retry_that_is_due_after_the_end_is_not_made(story: Story, when: str) -> None:
    story.end(T0)
    story.answer("NETWORK_EXCEPTION")
    story.sender.cancel("tx") if when == "cancelled" else story.sender.close()
    story.timers.advance(RETRY_DELAY_MS)
    assert len(story.sent) == 1


def test_another_shards_markers_go_on(story: Story) -> None:
    ended = story.end(T0, shard=4)
    story.sender.cancel_shard(0)
    story.answer()
    assert ended.finished == 1


def test_a_second_job_of_one_id_takes_the_place_of_the_first(story: Story) -> None:
    first = story.end(T0, epoch=7)
    second = story.end(T1, epoch=8)
    story.answer(number=0)
    assert (first.finished, story.sender.active) == (0, ["tx"])
    story.answer(number=1)
    assert (first.finished, second.finished, story.sender.active) == (0, 1, [])


# -- without a leader --------------------------------------------------------------------------------------------------


def test_a_partition_without_a_leader_is_tried_again(story: Story) -> None:
    story.leaders[T0] = None
    ended = story.end(T0)
    assert (story.sent, ended.finished, story.dropped) == ([], 0, [])
    story.leaders[T0] = THERE
    story.timers.advance(RETRY_DELAY_MS)
    story.answer()
    assert ended.finished == 1


def test_kafka_takes_a_partition_without_a_leader_for_a_deleted_one() -> None:
    story = Story(drop_without_leader=True)
    story.leaders[T0] = None
    ended = story.end(T0)
    assert (ended.finished, story.dropped) == (1, [T0])


@pytest.mark.parametrize("drop", [True, False])
def test_a_deleted_partition_needs_no_marker(drop: bool) -> None:
    story = Story(drop_without_leader=drop)
    ended = story.end(("gone", 0))
    assert (ended.finished, story.dropped, story.sent) == (1, [], [])


# -- written here ------------------------------------------------------------------------------------------------------


def test_this_brokers_own_partitions_need_no_request(story: Story) -> None:
    story.leaders[T0] = HERE
    ended = story.end(T0)
    assert (story.here, story.sent, ended.finished) == ([T0], [], 1)


def test_a_rule_about_the_wire_makes_a_request_of_it(story: Story) -> None:
    story.leaders[T0] = HERE
    story.direct = False
    story.end(T0)
    assert (story.here, story.asked()) == ([], (HERE, {"t": [0]}))


@pytest.mark.parametrize("how", ["raised", "failed"])
def test_what_is_refused_here_is_asked_for_in_a_request_which_says_why(story: Story, how: str) -> None:
    story.leaders[T0] = HERE
    error = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")
    story.append = error if how == "raised" else failed(error)
    ended = story.end(T0)
    assert (ended.finished, story.asked()) == (0, (HERE, {"t": [0]}))


@pytest.mark.parametrize(
    ("code", "retried"),
    [("NONE", False), ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", True), ("NOT_LEADER_OR_FOLLOWER", True)],
)
def test_a_marker_written_here_counts_once_it_is_replicated(story: Story, code: str, retried: bool) -> None:
    story.leaders[T0], story.append = HERE, Deferred()
    ended = story.end(T0)
    assert ended.finished == 0
    if code == "NONE":
        story.append.resolve(None)
    else:
        story.append.fail(ApiError(ErrorCode[code], "not yet"))
    story.append = None
    story.timers.advance(RETRY_DELAY_MS)
    assert (ended.finished, len(story.here)) == (1, 2 if retried else 1)


def test_many_partitions_let_other_work_in_between(story: Story) -> None:
    partitions = [("t", index) for index in range(130)]
    story.leaders = dict.fromkeys(partitions, HERE)
    ended = story.end(*partitions)
    assert (len(story.here), ended.finished) == (64, 0)
    story.timers.advance(0)
    assert (sorted(story.here), ended.finished) == (partitions, 1)
    assert [len(part) for part in story.sending] == [64, 64, 2]
