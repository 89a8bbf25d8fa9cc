"""The same random requests of transactional producers to two brokers, and every answer compared.

What may differ, and is not compared: producer ids (both sides number their own; an answer names the how-manieth one it
is), times, and how long a transaction takes to complete (each step waits until both sides have completed what ended).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random

from seed_client import produce_request

from minibroker.client.transactions import TransactionsClient
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

Answer = tuple[object, ...]
REFERENCES = ("current", "current", "current", "previous", "ahead", "behind", "stranger", "none")
SETTLE_SECONDS = 10.0
TRANSACTION_VERSION = "transaction.version"
LEVEL_CHANGES = 0.05
UPGRADE, SAFE_DOWNGRADE = 1, 2  # FeatureUpdate.UpgradeType


@dataclass(frozen=True)
class Step:
    """One request, in terms that hold for both brokers. reference: which producer id and epoch it carries."""

    kind: str
    name: str
    reference: str
    version: int
    partition: int = 0
    sequence: int = 0
    count: int = 1
    commit: bool = True


@dataclass
class Side:
    """One broker, and what its answers said so far."""

    client: TransactionsClient
    suffix: str
    seen: list[int] = field(default_factory=list)
    current: dict[str, tuple[int, int]] = field(default_factory=dict)
    previous: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"differential-{self.suffix}"

    @property
    def group(self) -> str:
        return f"group-{self.suffix}"

    def transactional_id(self, name: str) -> str:
        return f"{name}-{self.suffix}"

    def start(self) -> None:
        # The records are older than the default retention, which begins to act after half a minute.
        for_ever = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=self.topic, num_partitions=2, replication_factor=1, assignments=[], configs=[for_ever]
        )
        request = m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        answer = self.client.ask_any(request, m.CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == 0, answer
        for partition in (0, 1):
            self._wait(lambda partition=partition: self.client.producers(self.topic, partition) == [])
        find = m.FindCoordinatorRequest(key=self.group, key_type=0)
        self._wait(lambda: self.client.ask_any(find, m.FindCoordinatorResponse, 2).error_code == 0)
        for name in ("a", "b"):
            self._wait(lambda name=name: self._try_init(name))

    def finalize(self, level: int) -> None:
        """Give the broker transaction.version `level`, and wait until it has it."""
        unknown = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")

        def levels() -> dict[str, int]:
            answer = self.client.ask_any(unknown, m.ApiVersionsResponse, 3)
            return {feature.name: feature.max_version_level for feature in answer.finalized_features}

        now = levels().get(TRANSACTION_VERSION, 0)
        if now != level:
            way = UPGRADE if level > now else SAFE_DOWNGRADE
            update = m.UpdateFeaturesRequest.FeatureUpdateKey(
                feature=TRANSACTION_VERSION, max_version_level=level, upgrade_type=way
            )
            request = m.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update])
            answer = self.client.ask_any(request, m.UpdateFeaturesResponse, 1)
            assert answer.error_code == 0, answer
        self._wait(lambda: levels().get(TRANSACTION_VERSION, 0) == level)

    def _try_init(self, name: str) -> bool:
        code = self.apply(Step("init", name, "none", 4))[1]
        return code == 0

    @staticmethod
    def _wait(ready: object) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS * 3
        while time.monotonic() < deadline:
            try:
                if ready():  # type: ignore[operator]
                    return
            except ApiError:
                pass
            time.sleep(0.1)
        raise AssertionError("the broker is not ready")

    def settle(self) -> None:
        """Wait until no transaction is on its way to an end."""
        deadline = time.monotonic() + SETTLE_SECONDS
        for name in ("a", "b"):
            while time.monotonic() < deadline:
                try:
                    state = self.client.describe(self.transactional_id(name))[1].transaction_state
                except ApiError:
                    break
                if not state.startswith("Prepare"):
                    break
                time.sleep(0.01)

    def producer(self, step: Step) -> tuple[int, int]:
        producer_id, epoch = self.current[step.name]
        if step.reference == "previous":
            return self.previous.get(step.name, (producer_id, epoch))
        if step.reference == "stranger":
            return self.current["b" if step.name == "a" else "a"]
        change = {"ahead": 1, "behind": -1}.get(step.reference, 0)
        return producer_id, max(0, epoch + change)

    def _which(self, producer_id: int) -> int:
        if producer_id < 0:
            return producer_id
        if producer_id not in self.seen:
            self.seen.append(producer_id)
        return self.seen.index(producer_id)

    def _hold(self, name: str, producer: tuple[int, int]) -> None:
        if name in self.current and self.current[name] != producer:
            self.previous[name] = self.current[name]
        self.current[name] = producer

    # -- requests ----------------------------------------------------------------------------------------------------

    def apply(self, step: Step) -> Answer:
        """Send it; what the answer says, without what may differ."""
        answer: Answer = getattr(self, f"_{step.kind}")(step)
        return (step.kind, *answer)

    def _coordinator(self, name: str) -> tuple[str, int]:
        return self.client.coordinator(self.transactional_id(name), 1)[1]

    def _level(self, step: Step) -> Answer:
        self.finalize(step.version)
        return ()

    def _init(self, step: Step) -> Answer:
        held = (-1, -1) if step.reference == "none" else self.producer(step)
        request = m.InitProducerIdRequest(
            transactional_id=self.transactional_id(step.name),
            transaction_timeout_ms=60_000,
            producer_id=held[0],
            producer_epoch=held[1],
        )
        answer = self.client.ask(self._coordinator(step.name), request, m.InitProducerIdResponse, step.version)
        if answer.error_code == 0:
            self._hold(step.name, (answer.producer_id, answer.producer_epoch))
        return answer.error_code, self._which(answer.producer_id), answer.producer_epoch

    def _add(self, step: Step) -> Answer:
        producer_id, epoch = self.producer(step)
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self.topic, partitions=[step.partition])
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id(step.name),
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic],
        )
        answer = self.client.ask(self._coordinator(step.name), request, m.AddPartitionsToTxnResponse, step.version)
        return (answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,)

    def _batched(self, step: Step) -> Answer:
        """AddPartitionsToTxn as partition leaders send it: added for `commit`, else only looked up."""
        producer_id, epoch = self.producer(step)
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self.topic, partitions=[step.partition])
        transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id(step.name),
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=not step.commit,
            topics=[topic],
        )
        request = m.AddPartitionsToTxnRequest(transactions=[transaction])
        answer = self.client.ask(self._coordinator(step.name), request, m.AddPartitionsToTxnResponse, step.version)
        codes = [
            p.partition_error_code
            for result in answer.results_by_transaction
            for t in result.topic_results
            for p in t.results_by_partition
        ]
        return answer.error_code, codes

    def _add_offsets(self, step: Step) -> Answer:
        producer_id, epoch = self.producer(step)
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id(step.name),
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=self.group,
        )
        address = self._coordinator(step.name)
        return (self.client.ask(address, request, m.AddOffsetsToTxnResponse, step.version).error_code,)

    def _commit_offset(self, step: Step) -> Answer:
        producer_id, epoch = self.producer(step)
        partition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=step.partition, committed_offset=step.sequence, committed_metadata=""
        )
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id(step.name),
            group_id=self.group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        find = m.FindCoordinatorRequest(key=self.group, key_type=0)
        coordinator = self.client.ask_any(find, m.FindCoordinatorResponse, 2)
        answer = self.client.ask((coordinator.host, coordinator.port), request, m.TxnOffsetCommitResponse, step.version)
        return (answer.topics[0].partitions[0].error_code,)

    def _produce(self, step: Step) -> Answer:
        request = produce_request(
            self.producer(step), step.sequence, step.count, step.partition, True, 1_700_000_000_000
        )
        request.transactional_id = self.transactional_id(step.name)
        request.topic_data[0].name = self.topic
        answer = self.client.ask(
            self.client.leader(self.topic, step.partition), request, m.ProduceResponse, step.version
        )
        result = answer.responses[0].partition_responses[0]
        return result.error_code, result.base_offset, result.log_start_offset

    def _end(self, step: Step) -> Answer:
        producer_id, epoch = self.producer(step)
        request = m.EndTxnRequest(
            transactional_id=self.transactional_id(step.name),
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=step.commit,
        )
        answer = self.client.ask(self._coordinator(step.name), request, m.EndTxnResponse, step.version)
        if answer.error_code == 0 and answer.producer_id >= 0:
            self._hold(step.name, (answer.producer_id, answer.producer_epoch))
        return answer.error_code, self._which(answer.producer_id), answer.producer_epoch

    def picture(self) -> Answer:
        """What can be seen from outside between two steps."""
        states = []
        for name in ("a", "b"):
            _, state = self.client.describe(self.transactional_id(name))
            partitions = sorted((t.topic.split("-")[0], i) for t in state.topics for i in t.partitions)
            # The group's partition depends on its name, which differs.
            partitions = [(topic, 0 if topic == "__consumer_offsets" else index) for topic, index in partitions]
            states.append((state.transaction_state, self._which(state.producer_id), state.producer_epoch, partitions))
        producers = [
            sorted(
                (self._which(p.producer_id), p.producer_epoch, p.last_sequence, p.current_txn_start_offset)
                for p in self.client.producers(self.topic, partition)
            )
            for partition in (0, 1)
        ]
        group = m.OffsetFetchRequest.OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0, 1])
        fetch = m.OffsetFetchRequest(group_id=self.group, topics=[group], require_stable=True)
        coordinator = self.client.ask_any(
            m.FindCoordinatorRequest(key=self.group, key_type=0), m.FindCoordinatorResponse, 2
        )
        offsets = self.client.ask((coordinator.host, coordinator.port), fetch, m.OffsetFetchResponse, 7)
        committed = sorted(
            (p.partition_index, p.error_code, p.committed_offset) for t in offsets.topics for p in t.partitions
        )
        return states, producers, committed


def random_step(random: Random, last: dict[tuple[str, int], int], *, changes_level: bool = False) -> Step:
    """A request as likely right as wrong. last: (name, partition) → last sequence that was taken there."""
    if changes_level and random.random() < LEVEL_CHANGES:
        return Step("level", "a", "none", random.randrange(3))
    name = random.choice("ab")
    partition = random.randrange(2)
    kind = random.choice(
        ["init", "add", "add", "batched", "add_offsets", "commit_offset", "produce", "produce", "produce", "end", "end"]
    )
    reference = random.choice(REFERENCES[:-1])
    expected = last.get((name, partition), -1) + 1
    if kind == "init":
        return Step(kind, name, random.choice(REFERENCES), random.choice([3, 4, 5]))
    if kind == "add":
        return Step(kind, name, reference, random.randrange(4), partition)
    if kind == "batched":
        return Step(kind, name, reference, random.choice([4, 5]), partition, commit=random.random() < 0.3)
    if kind == "add_offsets":
        return Step(kind, name, reference, random.randrange(5))
    if kind == "commit_offset":
        return Step(kind, name, reference, random.randrange(6), partition, sequence=random.randrange(100))
    if kind == "produce":
        sequence = random.choice([expected, expected, expected, 0, 0, expected + 1, max(0, expected - 1)])
        version = random.choice([7, 9, 10, 11, 12])
        return Step(kind, name, reference, version, partition, sequence, random.choice([1, 1, 2]))
    return Step(kind, name, reference, random.randrange(6), commit=random.random() < 0.6)


def compare(ours: Side, theirs: Side, *, seed: int, steps: int, level: int | None = 2) -> int:
    """Drive both at transaction.version `level`, None for one that changes while they run. Returns the steps that were
    taken; raises AssertionError with the last ones at the first difference."""
    random = Random(seed)
    for side in (ours, theirs):
        side.finalize(2 if level is None else level)
        side.start()
    last: dict[tuple[str, int], int] = {}
    history: list[str] = []
    for number in range(steps):
        step = random_step(random, last, changes_level=level is None)
        answers = [side.apply(step) for side in (ours, theirs)]
        history.append(f"{number}: {step} -> {answers[1]}")
        for side in (ours, theirs):
            side.settle()
        pictures = [side.picture() for side in (ours, theirs)]
        if answers[0] != answers[1] or pictures[0] != pictures[1]:
            lines = "\n".join(
                [*history[-12:], f"ours:   {answers[0]} {pictures[0]}", f"theirs: {answers[1]} {pictures[1]}"]
            )
            raise AssertionError(f"seed {seed} step {number}\n{lines}")
        if step.kind == "produce" and answers[0][1] == ErrorCode.NONE:
            last[step.name, step.partition] = step.sequence + step.count - 1
        if step.kind in ("init", "end") and answers[0][1] == ErrorCode.NONE and step.version in (3, 4, 5):
            last = dict.fromkeys(last, -1) if random.random() < 0.5 else last
    return len(history)
