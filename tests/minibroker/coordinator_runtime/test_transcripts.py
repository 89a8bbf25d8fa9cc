"""Transactions step by step: each request, each effect, and what the coordinator and the partitions know after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import decode_records, iter_batches, parse_control

ID, PLACES = "tx", (("t", 0), ("u", 0))


class Transcript:
    """A transaction coordinator whose effects are held, and lines that say what each step did."""

    def __init__(self, transaction_version: int = 2) -> None:
        self.cluster = MemoryCluster(topics={"t": 1, "u": 1}, transaction_version=transaction_version)
        self.cluster.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
        self.service = self.cluster.broker.coordinators.transactions
        self.service.effects.hold()
        self.lines: list[str] = []
        self.state = ""
        self.written: set[str] = set()

    def ask(self, what: str, call: Callable[[], Deferred[Any]]) -> Any:
        try:
            answer = call().result()
            said = str(answer) if isinstance(answer, ProducerIdAndEpoch) else "done"
        except ApiError as error:
            answer, said = error, error.code.name
        self.lines.append(f"{what}: {said}")
        self._look()
        return answer

    def init(self, expected: ProducerIdAndEpoch | None = None, what: str = "InitProducerId") -> Any:
        return self.ask(what, lambda: self.service.init_producer_id(ID, 60_000, expected))

    def add(self, producer: ProducerIdAndEpoch) -> None:
        self.ask(
            "AddPartitionsToTxn",
            lambda: self.service.add_partitions(ID, producer, PLACES, transaction_version=self._version),
        )

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> Any:
        return self.ask(
            f"EndTxn {'commit' if commit else 'abort'}",
            lambda: self.service.end_txn(ID, producer, commit=commit, transaction_version=self._version),
        )

    def sweep(self) -> None:
        self.lines.append("the transaction times out")
        self.cluster.clock.advance(70_000)
        self._look()

    def steps(self) -> None:
        """Perform one effect after the other until none is due."""
        while self.service.effects.held:
            (effect, *_) = self.service.effects.held
            self.lines.append(f"{type(effect).__name__} {effect.transactional_id}")  # type: ignore[attr-defined]
            self.service.effects.release(lambda held, due=effect: held is due)  # type: ignore[misc]
            self.cluster.perform_effects()
            self._look()

    @property
    def _version(self) -> int:
        return self.service.config.transaction_version

    def _look(self) -> None:
        for topic, index in PLACES:
            for marker in self._markers(topic, index):
                if marker not in self.written:
                    self.written.add(marker)
                    self.lines.append(f"    {marker}")
        state = str(self.service.describe(ID))
        if state != self.state:
            self.state = state
            self.lines.append(f"    {state}")

    def _markers(self, topic: str, index: int) -> list[str]:
        log = self.cluster.broker.partition(topic, index).log
        if log.log_end_offset == log.log_start_offset:
            return []
        data = log.read(0, 1 << 20, bound=log.log_end_offset, min_one_message=True).records
        return [
            f"{topic}-{index} offset {header.base_offset}: {parse_control(record).type.name}"
            f" of producer id {header.producer_id} epoch {header.producer_epoch}"
            for position, header in iter_batches(data)
            if header.is_control
            for record in decode_records(data, position, header)
        ]

    def text(self) -> str:
        self.cluster.stop()
        return "\n".join(self.lines) + "\n"


def commit_of_version_2() -> Transcript:
    story = Transcript()
    producer = story.init()
    story.add(producer)
    following = story.end(producer, commit=True)
    story.add(following)
    story.end(producer, commit=True)
    story.steps()
    story.add(following)
    return story


def timeout_of_version_1() -> Transcript:
    story = Transcript(transaction_version=1)
    producer = story.init()
    story.add(producer)
    story.sweep()
    story.end(producer, commit=True)
    story.steps()
    story.init(producer, "InitProducerId of the owner")
    return story


def new_instance_while_ongoing() -> Transcript:
    story = Transcript()
    story.add(story.init())
    story.init(what="InitProducerId of a new instance")
    story.init(what="InitProducerId of a new instance")
    story.steps()
    story.init(what="InitProducerId of a new instance")
    return story


def new_coordinator_between_decision_and_markers() -> Transcript:
    story = Transcript()
    producer = story.init()
    story.add(producer)
    story.end(producer, commit=False)
    state = story.cluster.broker.partition(TRANSACTION_STATE_TOPIC, story.service.host.partition_for(ID))
    state.leader_epoch += 1
    story.lines.append("another leader epoch of the coordinator's partition")
    story.service.elected(state, state.leader_epoch)
    story.steps()
    return story


def abort_of_nothing() -> Transcript:
    story = Transcript()
    following = story.end(story.init(), commit=False)
    story.add(following)
    story.steps()
    story.add(following)
    return story


def refused_decision() -> Transcript:
    story = Transcript()
    producer = story.init()
    story.add(producer)
    state = story.cluster.broker.partition(TRANSACTION_STATE_TOPIC, story.service.host.partition_for(ID))
    epoch, state.leader_epoch = state.leader_epoch, state.leader_epoch + 1
    story.end(producer, commit=True)
    state.leader_epoch = epoch
    story.steps()
    story.end(producer, commit=True)
    story.steps()
    return story


STORIES = {
    commit_of_version_2: """
InitProducerId: producer id 0 epoch 0
    Empty, producer id 0 epoch 0 (last epoch -1)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 0 (last epoch -1)
EndTxn commit: producer id 0 epoch 1
    PrepareCommit, producer id 0 epoch 1 (last epoch 0), on its way to CompleteCommit
AddPartitionsToTxn: CONCURRENT_TRANSACTIONS
EndTxn commit: CONCURRENT_TRANSACTIONS
SendMarkers tx
    t-0 offset 0: COMMIT of producer id 0 epoch 1
    u-0 offset 0: COMMIT of producer id 0 epoch 1
Complete tx
    CompleteCommit, producer id 0 epoch 1 (last epoch 0)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 1 (last epoch 0)
""",
    timeout_of_version_1: """
InitProducerId: producer id 0 epoch 0
    Empty, producer id 0 epoch 0 (last epoch -1)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 0 (last epoch -1)
the transaction times out
    PrepareAbort, producer id 0 epoch 1 (last epoch -1), on its way to CompleteAbort
EndTxn commit: PRODUCER_FENCED
SendMarkers tx
    t-0 offset 0: ABORT of producer id 0 epoch 1
    u-0 offset 0: ABORT of producer id 0 epoch 1
Complete tx
    CompleteAbort, producer id 0 epoch 1 (last epoch -1)
InitProducerId of the owner: PRODUCER_FENCED
""",
    new_instance_while_ongoing: """
InitProducerId: producer id 0 epoch 0
    Empty, producer id 0 epoch 0 (last epoch -1)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 0 (last epoch -1)
InitProducerId of a new instance: CONCURRENT_TRANSACTIONS
    PrepareAbort, producer id 0 epoch 1 (last epoch 0), on its way to CompleteAbort
InitProducerId of a new instance: CONCURRENT_TRANSACTIONS
SendMarkers tx
    t-0 offset 0: ABORT of producer id 0 epoch 1
    u-0 offset 0: ABORT of producer id 0 epoch 1
Complete tx
    CompleteAbort, producer id 0 epoch 1 (last epoch 0)
InitProducerId of a new instance: producer id 0 epoch 2
    Empty, producer id 0 epoch 2 (last epoch -1)
""",
    new_coordinator_between_decision_and_markers: """
InitProducerId: producer id 0 epoch 0
    Empty, producer id 0 epoch 0 (last epoch -1)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 0 (last epoch -1)
EndTxn abort: producer id 0 epoch 1
    PrepareAbort, producer id 0 epoch 1 (last epoch 0), on its way to CompleteAbort
another leader epoch of the coordinator's partition
SendMarkers tx
    t-0 offset 0: ABORT of producer id 0 epoch 1
    u-0 offset 0: ABORT of producer id 0 epoch 1
Complete tx
    CompleteAbort, producer id 0 epoch 1 (last epoch 0)
""",
    abort_of_nothing: """
InitProducerId: producer id 0 epoch 0
    Empty, producer id 0 epoch 0 (last epoch -1)
EndTxn abort: producer id 0 epoch 1
    PrepareAbort, producer id 0 epoch 1 (last epoch 0), on its way to CompleteAbort
AddPartitionsToTxn: CONCURRENT_TRANSACTIONS
SendMarkers tx
Complete tx
    CompleteAbort, producer id 0 epoch 1 (last epoch 0)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 1 (last epoch 0)
""",
    refused_decision: """
InitProducerId: producer id 0 epoch 0
    Empty, producer id 0 epoch 0 (last epoch -1)
AddPartitionsToTxn: done
    Ongoing, producer id 0 epoch 0 (last epoch -1)
EndTxn commit: NOT_COORDINATOR
EndTxn commit: producer id 0 epoch 1
    PrepareCommit, producer id 0 epoch 1 (last epoch 0), on its way to CompleteCommit
SendMarkers tx
    t-0 offset 0: COMMIT of producer id 0 epoch 1
    u-0 offset 0: COMMIT of producer id 0 epoch 1
Complete tx
    CompleteCommit, producer id 0 epoch 1 (last epoch 0)
""",
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_transaction_step_by_step(story: Callable[[], Transcript]) -> None:
    assert story().text() == STORIES[story].lstrip("\n")
