"""A judged command that works with an existing cluster: failures act in a proxy, and what was written is read back.

The brokers' clock and state belong to others, so a script that needs them does not apply. Time passes really. What the
topics of the run and the coordinators' topics got during the run becomes a data directory, for the rules of the audit.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minibroker.client.connection import BrokerFailed
from minibroker.client.security import PLAINTEXT, Security, read_security
from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, ReadingClient
from minibroker.config.types import ConfigError
from minibroker.faults.rules import rule_from
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker.kernel.words import counted, reason
from minibroker.program import whole
from minibroker.rules.rows import CONSUMER_OFFSETS, TRANSACTION_STATE
from minibroker.server.service import StartError
from minibroker.testing.proxy import Proxy
from minibroker_lab.judge.application import OFFSET_COMMITS, topic_name
from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.own_cluster import LeftBehind
from minibroker_lab.judge.scripts import Script
from minibroker_protocol.errors import ApiError, Malformed
from minibroker_storage.checkpoints import CLEANER_OFFSET, encode_offsets

if TYPE_CHECKING:
    from minibroker.testing.life_cycle import Embedded

_MARKERS_SECONDS: Final = 10.0
"""How long markers of ended transactions may take to be written."""
_POLL_SECONDS: Final = 0.05
_COORDINATORS: Final = (TRANSACTION_STATE, CONSUMER_OFFSETS)
_TOPICS_OF: Final = {"Produce": "topic_data", "Fetch": "topics", **dict.fromkeys(OFFSET_COMMITS, "topics")}
"""API → the field of its request with the topics."""

Places = dict[tuple[str, int], int]
"""(topic, partition) → an offset."""


class Upstream:
    """Made for one run.

    servers: the cluster's bootstrap servers.
    command_config: file with the properties of a client.
    topics: created where they are not there, refused with fewer partitions.
    whole_topics: read from their start, not only what the run wrote.
    longest: seconds that a script may have pass.

    Raises ConfigError.
    """

    def __init__(
        self,
        servers: str,
        command_config: str | None,
        data_dir: Path,
        topics: Mapping[str, int],
        *,
        whole_topics: Collection[str],
        longest: float,
    ) -> None:
        self._proxy = Proxy(servers, command_config=command_config)
        self._client = ReadingClient(servers, security=_security(command_config))
        self._data_dir = data_dir
        self._topics = topics
        self._whole_topics = whole_topics
        self._longest = longest
        self._began: Places = {}
        self._ids: dict[str, bytes] = {}

    def misfit(self, script: Script) -> str:
        return misfit(script, self._longest)

    @contextmanager
    def running(self) -> Iterator[Embedded]:
        with whole(self._proxy) as proxy, self._client:
            with _in_one_line():
                there = Counter(topic for topic, _ in self._client.leaders())
                for topic, partitions in self._topics.items():
                    if topic not in there:
                        proxy.create_topic(topic, partitions=partitions)
                    elif there[topic] < partitions:
                        has = counted(there[topic], "partition")
                        raise StartError(f"the upstream: topic {topic} has {has}, not {partitions}")
                self._began = self._client.ends()
                self._ids = dict(self._client.topic_ids)
            yield proxy

    def passes(self, ms: int, *, sessions: bool) -> float:
        return ms / 1000

    def settle(self, exchanges: Sequence[Exchange]) -> LeftBehind:
        with _in_one_line():
            topics = self._touched(exchanges)
            self._wait_for_markers(topics)
            ends = self._client.ends()
            for place, end in sorted(ends.items()):
                if place[0] in topics or (place[0] in _COORDINATORS and self._start(place) < end):
                    self._copy(*place, end)
            names = {topic_id: topic for topic, topic_id in {**self._ids, **self._client.topic_ids}.items()}
            policies = self._client.cleanup_policies(sorted(topics & {topic for topic, _ in ends}))
        compacted = frozenset(topic for topic, policy in policies.items() if policy != "delete")
        cleaned = {place: end for place, end in ends.items() if place[0] in compacted}
        (self._data_dir / CLEANER_OFFSET).write_bytes(encode_offsets(cleaned))
        return LeftBehind(wall_ms(), compacted, names, {place: self._start(place) for place in ends})

    def _start(self, place: tuple[str, int]) -> int:
        """Where a partition ended when the run began; 0 for one that was made since, in place of another too."""
        topic = place[0]
        same = self._ids.get(topic) == self._client.topic_ids.get(topic)
        return self._began.get(place, 0) if same else 0

    def _touched(self, exchanges: Sequence[Exchange]) -> set[str]:
        """The topics that requests name, and those of the run; without those that are not there any more."""
        there = {topic for topic, _ in self._client.leaders()}
        names = {_text(topic_id): topic for topic, topic_id in {**self._ids, **self._client.topic_ids}.items()}
        named = {
            topic_name(topic, names)
            for exchange in exchanges
            for topic in (exchange["request"] or {}).get(_TOPICS_OF.get(exchange["api"], ""), ())
        }
        return (named | set(self._topics) | set(self._whole_topics)) & there

    def _wait_for_markers(self, topics: Collection[str]) -> None:
        """An EndTxn is answered before its markers are written. A transaction that a killed command left open stays
        open."""
        deadline = time.monotonic() + _MARKERS_SECONDS
        for (topic, partition), end in self._client.ends().items():
            if topic not in topics:
                continue
            while self._client.offset(topic, partition, LATEST, READ_COMMITTED) < end and time.monotonic() < deadline:
                self._client.pause(_POLL_SECONDS)

    def _copy(self, topic: str, partition: int, end: int) -> None:
        first = self._client.offset(topic, partition, EARLIEST)
        start = first if topic in self._whole_topics else max(first, self._start((topic, partition)))
        directory = self._data_dir / f"{topic}-{partition}"
        directory.mkdir()
        with (directory / f"{start:020d}.log").open("wb") as file:
            for _, batch in self._client.batches(topic, partition, start, end):
                file.write(batch)


def misfit(script: Script, longest: float) -> str:
    """Why a script does not apply to a cluster that runs elsewhere; empty when it does.

    longest: seconds that it may have pass.
    """
    for step in script.steps:
        action = rule_from(dict(step.rule)).action
        if action.needs_cluster:
            return f"{action.name} acts on what brokers keep, and those of the upstream are not ours"
        if step.advance_ms > longest * 1000:
            return f"{step.advance_ms // 1000} s would have to pass, which is more than --timeout"
    return ""


def _security(command_config: str | None) -> Security:
    try:
        return read_security(command_config) if command_config else PLAINTEXT
    except (OSError, ValueError) as error:
        raise ConfigError(reason(error)) from None


def _text(topic_id: bytes) -> str:
    """As exchanges have it."""
    return str(uuid.UUID(bytes=topic_id))


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except (BrokerFailed, ApiError, Malformed) as error:
        raise StartError(f"the upstream: {error}") from None
