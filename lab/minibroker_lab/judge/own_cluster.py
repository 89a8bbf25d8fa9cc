"""What a judged command works with: a new cluster of our own. `upstream.py` has the other kind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.program import whole
from minibroker.testing.embedded import Minibroker
from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.scripts import Script

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from minibroker.cluster.cluster import Cluster
    from minibroker.testing.life_cycle import Embedded

_POLL_SECONDS = 0.05
_REPLICATED_SECONDS = 10.0
_ENDING_MS = 16 * 60_000
"""Above transaction.max.timeout.ms, so that every open transaction has been aborted."""


@dataclass(slots=True)
class LeftBehind:
    """What the rules need to know about a run's data besides the data.

    as_of_ms: the clock of its brokers.
    compacted: topics that compaction may have touched.
    topic_names: by topic id.
    before: for a cluster that others use too, the end of each partition before the run; None for one of the run's own.
    """

    as_of_ms: int = 0
    compacted: frozenset[str] = frozenset()
    topic_names: dict[bytes, str] = field(default_factory=dict)
    before: Mapping[tuple[str, int], int] | None = None


class JudgedCluster(Protocol):
    """What a command works with during one run."""

    def misfit(self, script: Script) -> str:
        """Why the script cannot act here; empty where it can."""

    def running(self) -> AbstractContextManager[Embedded]:
        """Serve. Raises ConfigError, StartError."""

    def passes(self, ms: int, *, sessions: bool) -> float:
        """Have time pass for the brokers, with `sessions` for members of groups too; the seconds that the judge has to
        wait for that."""

    def settle(self, exchanges: Sequence[Exchange]) -> LeftBehind:
        """The command has ended: end what it left open, and see to it that the data directory has all. Raises
        StartError where that cannot be read."""


class OwnCluster:
    """Made for one run.

    options: the options of `Minibroker`.
    """

    def __init__(self, data_dir: Path, options: Mapping[str, Any]) -> None:
        self._broker = Minibroker(data_dir=str(data_dir), **options)

    def misfit(self, script: Script) -> str:
        return ""

    @contextmanager
    def running(self) -> Iterator[Embedded]:
        with whole(self._broker) as broker:
            yield broker

    def passes(self, ms: int, *, sessions: bool) -> float:
        self._broker.clock.advance(ms=ms, sessions=sessions)
        return 0.0

    def settle(self, exchanges: Sequence[Exchange]) -> LeftBehind:
        broker = self._broker
        as_of_ms = broker.clock.advance(ms=_ENDING_MS)
        _wait_for_replicas(broker)
        names = broker.cluster.run(lambda c: {bytes(t.topic_id): t.name for t in c.image.topics.values()})
        return LeftBehind(as_of_ms, broker.cluster.run(compacted_topics), names)


def compacted_topics(cluster: Cluster) -> frozenset[str]:
    """Topics with `cleanup.policy=compact`, and those with another policy by now that the cleaner worked on."""
    return frozenset(
        partition.topic
        for broker in cluster.brokers.values()
        for partition in broker.partitions()
        if partition.has_log
        and (
            partition.log.config.compacts
            or broker.directory.cleaner_offsets.get((partition.topic, partition.index), 0) > 0
        )
    )


def _wait_for_replicas(broker: Minibroker) -> None:
    """Any replica is read for all, so each must have all."""
    deadline = time.monotonic() + _REPLICATED_SECONDS
    while not broker.cluster.run(_replicated) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _replicated(cluster: Cluster) -> bool:
    brokers = cluster.brokers.values()
    ends: dict[tuple[str, int], set[int]] = {}
    for partition in (partition_ for broker in brokers for partition_ in broker.partitions()):
        ends.setdefault((partition.topic, partition.index), set()).add(partition.log_end_offset)
    return all(len(offsets) == 1 for offsets in ends.values())
