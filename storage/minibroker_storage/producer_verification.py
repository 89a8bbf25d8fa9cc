"""Transaction verification on the partition leader (KIP-890; Kafka's VerificationStateEntry and VerificationGuard).

A first transactional batch is only written after the coordinator has confirmed that the partition belongs to the
transaction. The guard ties that answer to the append: a marker that arrives in between removes the entry, and with it
the guard's validity. What the state is for, and what can go wrong: `minibroker_storage.producer_state`.
"""

from itertools import count

from minibroker_storage.producer_rules import ProducerRules

_ids = count(1)


class VerificationGuard:
    """Proof of one verification; equal only to itself."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = next(_ids)  # only for reading traces

    def __repr__(self) -> str:
        return f"VerificationGuard({self.number})"


class VerificationEntry:
    """A verification under way for one producer id. In memory only: lost with leadership and restarts."""

    __slots__ = ("created_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump", "waiting")

    def __init__(self, created_ms: int, sequence: int, epoch: int, supports_epoch_bump: bool) -> None:
        self.created_ms = created_ms
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        self.waiting = [(epoch, sequence)]  # one for each request that is not answered yet

    def observe(self, sequence: int, epoch: int) -> None:
        """Another request waits too: no batch above the lowest waiting sequence may be written before it."""
        self.waiting.append((epoch, sequence))
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence

    def answered(self, sequence: int, epoch: int, rules: ProducerRules) -> None:
        """A request that waited is answered."""
        self.waiting.remove((epoch, sequence))
        if self.waiting and rules.verification_ends == "with_its_request":
            self.epoch = max(epoch for epoch, _ in self.waiting)
            self.lowest_sequence = min(sequence for epoch, sequence in self.waiting if epoch == self.epoch)

    def outlives(self, *, control: bool, epoch: int, rules: ProducerRules) -> bool:
        """Whether the entry stays when a transactional batch of `epoch` is written.

        In Kafka (UnifiedLog.updateProducers) only a marker does, and only when the entry belongs to the epoch that the
        marker has just begun: then the producer's next transaction (transaction.version 2) is already being verified.
        With `with_its_request` no batch of an older epoch ends a verification either, as it belongs to an earlier
        transaction. Kafka does not need this, because there a late batch above the waiting sequence is out of order.
        """
        if epoch < self.epoch and rules.verification_ends == "with_its_request":
            return True
        return self.supports_epoch_bump and control and epoch == self.epoch
