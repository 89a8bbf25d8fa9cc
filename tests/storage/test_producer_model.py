"""Producers against a partition in any order: compared with a model written the slow way, and reloaded on the way."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from producers import KAFKA, KIP, NOW, Partition
from sampling import search

from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.producer_state import ProducerStateManager

MAX = 2**31 - 1
PIDS = st.integers(0, 2)
EPOCHS = st.integers(0, 3)
COUNTS = st.integers(1, 4)


class Remembered:
    """The model of one producer: what a reader of the log alone would say."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.batches: list[tuple[int, int, int]] = []  # first sequence, last sequence, base offset
        self.txn: int | None = None
        self.coordinator_epoch = -1


class Producers(RuleBasedStateMachine):
    semantics: ProducerRules = KAFKA

    @initialize(start=st.sampled_from([0, MAX - 2]))
    def begin(self, start: int) -> None:
        self.partition = Partition(self.semantics)
        self.model = {pid: Remembered() for pid in range(3)}
        self.aborted: list[tuple[int, int, int]] = []
        self.start = start

    @property
    def producers(self) -> ProducerStateManager:
        return self.partition.producers

    def following(self, pid: int) -> int:
        known = self.model[pid]
        return (known.batches[-1][1] + 1) % (MAX + 1) if known.batches else 0

    def take(self, pid: int, epoch: int, sequence: int, count: int, txn: bool) -> None:
        known = self.model[pid]
        if epoch != known.epoch:
            known.epoch, known.batches = epoch, []
        base = self.partition.end - count
        known.batches = [*known.batches, (sequence, (sequence + count - 1) % (MAX + 1), base)][-5:]
        if txn and known.txn is None:
            known.txn = base

    def expected(self, pid: int, epoch: int, sequence: int, count: int, txn: bool) -> str:
        known = self.model[pid]
        end = self.partition.end
        last = (sequence + count - 1) % (MAX + 1)
        if known.epoch == epoch:
            for first_known, last_known, base in known.batches:
                if (first_known, last_known) == (sequence, last):
                    return f"dup@{base}"
        if known.epoch is not None and epoch < known.epoch:
            return "INVALID_PRODUCER_EPOCH"
        code = self.sequence_error(known, epoch, sequence)
        if code:
            return code
        if known.txn is not None and not txn:
            return "INVALID_TXN_STATE"
        return f"@{end}"

    def sequence_error(self, known: Remembered, epoch: int, sequence: int) -> str:
        kip = self.semantics is KIP
        if known.epoch is None:
            return "UNKNOWN_PRODUCER_ID" if kip and sequence else ""
        if epoch != known.epoch or not known.batches:
            return ("UNKNOWN_PRODUCER_ID" if kip else "OUT_OF_ORDER_SEQUENCE_NUMBER") if sequence else ""
        ahead = (sequence - known.batches[-1][1] - 1) % (MAX + 1)
        if not ahead:
            return ""
        return "DUPLICATE_SEQUENCE_NUMBER" if kip and ahead > MAX // 2 else "OUT_OF_ORDER_SEQUENCE_NUMBER"

    def send(self, pid: int, epoch: int, sequence: int, count: int, txn: bool) -> None:
        if not txn and self.model[pid].txn is None:
            self.partition.now += 1
        expected = self.expected(pid, epoch, sequence, count, txn)
        before = self.state(), self.partition.end
        answer = self.partition.append(sequence, count, pid=pid, epoch=epoch, txn=txn, verify=txn and self.verified)
        assert answer == expected
        if answer.startswith("@"):
            self.take(pid, epoch, sequence, count, txn)
        else:
            assert (self.state(), self.partition.end) == before, "a refused batch left a trace"

    @property
    def verified(self) -> bool:
        return self.semantics.verification_enabled

    def state(self) -> tuple[object, ...]:
        entries = [self.producers.entry(pid) for pid in range(3)]
        return (entries, self.producers.open_transactions(), self.producers.first_unstable_offset)

    @rule(pid=PIDS, count=COUNTS, txn=st.booleans())
    def next_batch(self, pid: int, count: int, txn: bool) -> None:
        self.send(pid, self.model[pid].epoch or 0, self.following(pid), count, txn and not self.verified)

    @precondition(lambda self: any(p.epoch is None for p in self.model.values()))
    @rule(pid=PIDS, count=COUNTS)
    def first_batch_anywhere(self, pid: int, count: int) -> None:
        if self.model[pid].epoch is None:
            self.send(pid, 0, self.start, count, False)

    @rule(pid=PIDS, epoch=EPOCHS, sequence=st.integers(0, 9), count=COUNTS, txn=st.booleans())
    def any_batch(self, pid: int, epoch: int, sequence: int, count: int, txn: bool) -> None:
        self.send(pid, epoch, sequence, count, txn and not self.verified)

    @rule(pid=PIDS, back=st.integers(1, 7), shift=st.sampled_from([0, 0, 0, 1]))
    def old_batch(self, pid: int, back: int, shift: int) -> None:
        known = self.model[pid]
        if back <= len(known.batches):
            first, last, _ = known.batches[-back]
            self.send(pid, known.epoch or 0, first, (last - first) % (MAX + 1) + 1 + shift, False)

    @rule(pid=PIDS, bump=st.integers(-1, 1), coordinator_epoch=st.integers(0, 2), commit=st.booleans())
    def marker(self, pid: int, bump: int, coordinator_epoch: int, commit: bool) -> None:
        known = self.model[pid]
        epoch = max((known.epoch or 0) + bump, 0)
        before = self.state()
        others = sorted(m.txn for p, m in self.model.items() if p != pid and m.txn is not None)
        result = self.partition.mark(commit=commit, pid=pid, epoch=epoch, coordinator_epoch=coordinator_epoch, tv=1)
        if known.epoch is not None and epoch < known.epoch:
            assert result == "INVALID_PRODUCER_EPOCH"
        elif coordinator_epoch < known.coordinator_epoch:
            assert result == "TRANSACTION_COORDINATOR_FENCED"
        else:
            self.completed(known, result, others[0] if others else self.partition.end, commit)
            if epoch != known.epoch:
                known.epoch, known.batches = epoch, []
            known.coordinator_epoch = coordinator_epoch
            known.txn = None
            return
        assert self.state() == before, "a refused marker left a trace"

    def completed(self, known: Remembered, result: object, stable: int, commit: bool) -> None:
        if known.txn is None:
            assert result is None
            return
        assert not isinstance(result, str)
        assert result is not None
        row = (result.first_offset, result.last_offset, result.last_stable_offset, result.aborted)  # type: ignore[attr-defined]
        assert row == (known.txn, self.partition.end - 1, stable, not commit)

    @rule(lag=st.integers(0, 5))
    def high_watermark(self, lag: int) -> None:
        self.producers.on_high_watermark(self.partition.end - lag)

    @rule()
    def reload_by_replaying_the_log(self) -> None:
        """What is volatile is lost: verifications, and nothing else."""
        replayed = ProducerStateManager(self.semantics)
        for header, control in self.partition.log:
            replayed.replay(header, control, self.partition.now)
        replayed.on_high_watermark(self.partition.end)
        self.producers.on_high_watermark(self.partition.end)
        self.swap(replayed)

    @rule()
    def reload_from_a_snapshot(self) -> None:
        """Kafka's file keeps the newest batch only; with the side file nothing is lost."""
        self.producers.on_high_watermark(self.partition.end)
        data = self.producers.snapshot()
        loaded = ProducerStateManager(self.semantics)
        loaded.load_snapshot(data, self.partition.end, self.partition.now, remembered=self.producers.remembered(data))
        if not self.semantics.snapshot_all_batches:
            for known in self.model.values():
                known.batches = known.batches[-1:]
            assert loaded.snapshot() == data
            self.partition.producers = loaded
            self.partition.log = []
            return
        self.swap(loaded)

    def swap(self, reloaded: ProducerStateManager) -> None:
        before = self.state()
        if self.partition.log and self.partition.log[0][0].base_offset == 0:
            self.partition.producers = reloaded
            assert self.state() == before
            assert reloaded.map_end_offset == self.partition.end

    @invariant()
    def offsets_are_those_of_the_open_transactions(self) -> None:
        if not hasattr(self, "model"):
            return
        open_ = sorted(known.txn for known in self.model.values() if known.txn is not None)
        assert list(self.producers.open_transactions()) == open_
        unstable = self.producers.first_unstable_offset
        if open_:
            assert unstable is not None
            assert unstable <= open_[0]

    @invariant()
    def described_rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        rows = {row.producer_id: row for row in self.producers.active()}
        known = {pid: m for pid, m in self.model.items() if m.epoch is not None}
        assert rows.keys() == known.keys()
        for pid, m in known.items():
            last = m.batches[-1][1] if m.batches else -1
            assert (rows[pid].producer_epoch, rows[pid].last_sequence) == (m.epoch, last)
            assert rows[pid].current_txn_start_offset == (-1 if m.txn is None else m.txn)
            assert rows[pid].coordinator_epoch == m.coordinator_epoch


def machine(rules: ProducerRules) -> Callable[[], None]:
    case = type("Case", (Producers,), {"semantics": rules}).TestCase  # type: ignore[attr-defined]
    case.settings = search(60, steps=40)
    return lambda: case("runTest").runTest()


@pytest.mark.parametrize(
    "rules",
    [KAFKA, ProducerRules(verification_enabled=False), KIP],
    ids=["kafka", "kafka-without-verification", "kip"],
)
def test_producers_behave_as_the_model(rules: ProducerRules) -> None:
    machine(rules)()


def test_two_runs_of_one_log_give_one_state() -> None:
    partition = Partition(ProducerRules(verification_enabled=False))
    partition.append(0, 3)
    partition.append(0, pid=8, txn=True)
    partition.mark(pid=8, commit=False)
    replayed = ProducerStateManager(KAFKA)
    for header, control in partition.log:
        replayed.replay(header, control, NOW)
    assert replayed.snapshot() == partition.producers.snapshot()
