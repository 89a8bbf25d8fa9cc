"""The first start over a Kafka's directory is killed at any of its disk calls: the next one ends as if it were the
first."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden import unpack
from memory_cluster import MemoryCluster
from sampling import thinned
from served import fetched

from minibroker_lab.simulation.faulty_disk import FaultyDisk, PowerLost

NOW_MS = 1_795_760_000_000  # soon after the directory was closed
CALLS = 48


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("kafka-4.4.0/two-brokers.tar.xz", tmp_path_factory.mktemp("golden")) / "1a"


def start(disk: FaultyDisk) -> MemoryCluster:
    return MemoryCluster(disk=disk, now_ms=NOW_MS)


def outcome(disk: FaultyDisk) -> dict[str, Any]:
    """What a start makes of the directory."""
    cluster = start(disk)
    state = cluster.cluster.controller.state
    image = state.image
    records = {at: fetched(cluster, at, 0) for at in ("open-0", "placed-0", "placed-3")}
    cluster.stop()
    return {
        "topics": {name: (topic.topic_id, topic.configs) for name, topic in image.topics.items()},
        "replicas": [
            (topic.name, p.index, p.replicas, p.isr, p.elr, p.offline, p.leader)
            for topic in image.topics.values()
            for p in topic.partitions
        ],
        "features": dict(image.features),
        "security": (image.acls, image.scram_credentials, state.security_taken_over),
        "configs": (image.broker_configs, image.resource_configs),
        "ids": state.next_producer_id,
        "records": records,
    }


@cache
def undisturbed(directory: Path) -> tuple[dict[str, Any], int]:
    disk = FaultyDisk.of(directory)
    start(disk)
    calls = disk.calls
    return outcome(FaultyDisk.of(directory)), calls


def test_every_call_is_one_of_those_that_are_tried(directory: Path) -> None:
    assert undisturbed(directory)[1] == CALLS


@pytest.mark.parametrize("call", thinned(list(range(1, CALLS + 1)), 11))
def test_a_takeover_that_is_killed_is_begun_again(directory: Path, call: int) -> None:
    disk = FaultyDisk.of(directory, lose_power_at=call)
    with pytest.raises(PowerLost):
        start(disk)
    for found in (disk.after_kill(), disk.after_power_loss(), disk.after_power_loss(random.Random(call))):
        assert outcome(found) == undisturbed(directory)[0]
