"""Which of a producer's batches are known as duplicates after the broker was started again (KIP-360, KAFKA-5793)."""

from __future__ import annotations

import pytest
from seed_client import OK, SeedClient

from minibroker.releases.semantics import PRESETS
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ErrorCode

WINDOW = 5


def written(client: SeedClient) -> tuple[int, int]:
    """A producer whose last five batches of two records each are in the log, after one that nobody remembers."""
    producer = client.new(name=None)
    for sequence in range(0, 2 * (WINDOW + 1), 2):
        assert client.produce(producer, sequence, count=2, transactional=False).code == OK
    return producer


def retried(client: SeedClient, producer: tuple[int, int]) -> list[tuple[int, int]]:
    """(code, base offset) of a retry of each batch, the oldest first."""
    answers = [client.produce(producer, s, count=2, transactional=False) for s in range(0, 2 * (WINDOW + 1), 2)]
    return [(answer.code, answer.base_offset) for answer in answers]


FORGOTTEN = {
    "kafka": (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    "kip": (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1),
}


@pytest.mark.parametrize("semantics", ["kafka", "kip"])
def test_before_a_restart_the_last_five_are_known(semantics: str) -> None:
    client = SeedClient(PRESETS[semantics])
    answers = retried(client, written(client))
    assert answers == [FORGOTTEN[semantics], *((OK, 2 * batch) for batch in range(1, WINDOW + 1))]
    client.stop()


def test_with_kips_semantics_a_clean_restart_keeps_the_whole_window() -> None:
    client = SeedClient(PRESETS["kip"])
    producer = written(client)
    for _ in range(2):
        client.restart()
        assert retried(client, producer) == [FORGOTTEN["kip"], *((OK, 2 * batch) for batch in range(1, WINDOW + 1))]
    assert client.produce(producer, 2 * (WINDOW + 1), transactional=False).code == OK
    client.stop()


def test_with_kafkas_semantics_only_the_newest_batch_outlives_a_clean_restart() -> None:
    client = SeedClient(PRESETS["kafka"])
    producer = written(client)
    client.restart()
    assert retried(client, producer) == [*[FORGOTTEN["kafka"]] * WINDOW, (OK, 2 * WINDOW)]
    client.stop()


@pytest.mark.parametrize("semantics", ["kafka", "kip"])
def test_after_a_crash_it_is_the_same(semantics: str) -> None:
    disk = FaultyDisk()
    client = SeedClient(PRESETS[semantics], {"log.flush.interval.messages": "1"}, disk=disk)
    producer = written(client)
    again = SeedClient(PRESETS[semantics], disk=disk.after_power_loss())
    kept = {"kafka": 1, "kip": WINDOW}[semantics]  # recovery ends with a snapshot, and starts from it
    known = [(OK, 2 * batch) for batch in range(1, WINDOW + 1)][-kept:]
    assert retried(again, producer) == [*[FORGOTTEN[semantics]] * (WINDOW + 1 - kept), *known]
    again.stop()
