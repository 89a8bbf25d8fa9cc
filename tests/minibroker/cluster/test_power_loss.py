"""Power is lost during the n-th disk call of a whole broker that acknowledges after syncing: nothing it acknowledged is
gone, whatever became of the rest."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from sampling import thinned
from seed_client import OK, Producer, SeedClient
from served import fetched, group_offsets

from minibroker.releases.semantics import KAFKA
from minibroker_lab.simulation.faulty_disk import FaultyDisk, PowerLost
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.disk import StorageError

CONFIG = {
    "minibroker.acknowledge.after.sync": "true",
    "log.segment.bytes": "1048576",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
FEW = 40  # of the first calls every one (by default every third), and a sample of the later ones
BATCHES = 4


@dataclass
class Promises:
    """What the broker acknowledged."""

    idempotent: list[int] = field(default_factory=list)  # first sequences, each at the same offset of partition 1
    committed: int = 0  # transactions
    begun: int = 0
    producers: list[Producer] = field(default_factory=list)


def play(disk: FaultyDisk, promises: Promises) -> None:
    """Stops at the first request that gets no answer, or an error."""
    client = SeedClient(KAFKA, CONFIG, disk=disk)
    idempotent = client.new(name=None)
    promises.producers.append(idempotent)
    producer = client.new()
    promises.producers.append(producer)
    for number in range(BATCHES):
        if client.produce(idempotent, number, transactional=False, partition=1).code != OK:
            return
        promises.idempotent.append(number)
        if client.add(producer) != OK:
            return
        promises.begun += 1
        if client.produce(producer, 0, count=2).code != OK or client.add_offsets(producer) != OK:
            return
        if client.commit_offset(producer, number + 1) != OK or client.end(producer, commit=True) != OK:
            return
        promises.committed += 1
        producer = client.claim(producer)
        if number == 1:
            client.cluster.broker.partition("t", 1).log.roll(client.cluster.clock.now_ms())
            client.cluster.timers.advance(60_000)  # checkpoints
    client.stop()


def lose_power(n: int, seed: int) -> bool:
    """Plays until the n-th call; False when there are fewer."""
    disk, promises = FaultyDisk(lose_power_at=n), Promises()
    try:
        play(disk, promises)
    except (PowerLost, RuntimeError, AssertionError):  # no answer came, or none that the story can go on with
        assert disk.calls >= n
    lost = disk.calls >= n
    choices = random.Random(f"{n} {seed}") if seed else None
    check(disk.after_power_loss(choices), promises)
    return lost


def check(disk: FaultyDisk, promises: Promises) -> None:
    client = SeedClient(KAFKA, CONFIG, disk=disk)
    client.cluster.timers.advance(1000)  # markers of what was decided
    values = [value for _, value in fetched(client.cluster, "t-1", 0)]
    assert values[: len(promises.idempotent)] == [b"%d" % number for number in promises.idempotent]
    assert len(values) <= len(promises.idempotent) + 1
    new = client.new(name=None)
    assert new[0] not in {producer_id for producer_id, _ in promises.producers}
    code, _ = client.init()
    if code == ErrorCode.CONCURRENT_TRANSACTIONS:
        client.cluster.timers.advance(1000)
        code, _ = client.init()
    assert code == OK
    committed = [value for _, value in fetched(client.cluster, "t-0", 1)]
    transactions = len(committed) // 2
    assert committed == [b"0", b"1"] * transactions
    assert promises.committed <= transactions <= promises.begun
    offset = group_offsets(client.cluster, "g").get("t-0", [0])[0]
    assert offset == transactions
    client.stop()


def calls() -> Iterator[int]:
    yield from range(1, FEW)
    yield from random.Random(4).sample(range(FEW, 400), 40)


@pytest.mark.parametrize(("seed", "step"), thinned([(0, 3), (0, 1), (1, 1), (2, 1)], 4, several=True))
def test_what_was_acknowledged_survives(seed: int, step: int) -> None:
    chosen = [*calls()][::step]
    assert sum(lose_power(n, seed) for n in chosen) > len(chosen) // 2


def fail_and_lose_power(n: int, seed: int) -> None:
    """The n-th call fails, all others succeed; power is lost once the story ended or met an error."""
    disk, promises = FaultyDisk(fail_at=n), Promises()
    with suppress(StorageError, ApiError, RuntimeError, AssertionError):  # no answer, or none the story can go on with
        play(disk, promises)
    choices = random.Random(f"{n} {seed}") if seed else None
    check(disk.after_power_loss(choices), promises)


@pytest.mark.parametrize("seed", thinned([0, 1, 2], 3))
def test_a_call_fails_once_and_what_was_acknowledged_survives_a_later_power_loss(seed: int) -> None:
    for n in [*calls()][seed::5]:
        fail_and_lose_power(n, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_call_fails_once_at_every_call(seed: int) -> None:
    for n in range(1, 400):
        fail_and_lose_power(n, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_survives_at_every_call(seed: int) -> None:
    n = 1
    while lose_power(n, seed):
        n += 1
    assert n > 200
