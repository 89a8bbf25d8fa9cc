"""When logs were read, and so what may be compared between them.

A running cluster keeps writing while its logs are read in turn. A decision in `__transaction_state` is written before
its markers, and its completion after them. So a marker must have its decision if `__transaction_state` was read after
the partition, and a complete decision must have its marker if it was complete before the partition was read. What lies
between is unknown, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minibroker.rules import rows as r

APART_MS = 3_600_000
"""The logs of directories that were copied while their brokers ran are as far apart in time, at most."""
CLOCKS_MS = 1_000
"""The clocks of brokers differ by at most so much."""


class Moments:
    """When the logs of an audit were read.

    Of a running cluster, `LogFacts.settled_offset` tells it exactly. Logs of one directory that was closed are of one
    moment, which is not before the newest time in it. Logs of other directories are up to `apart_ms` apart; 0: they are
    of one moment, as in a simulation.

    newest_ms: data directory -> the latest time that a broker wrote in it.
    first_marker_ms: topic -> the time of its first marker; None: no topic was deleted and made again.
    """

    def __init__(
        self,
        facts: Iterable[r.LogFacts],
        newest_ms: Mapping[str, int],
        apart_ms: int,
        first_marker_ms: Mapping[str, int] | None = None,
    ) -> None:
        logs = [fact for fact in facts if fact.log.topic == r.TRANSACTION_STATE]
        self._settled = {fact.log.partition: fact.settled_offset for fact in logs if fact.settled_offset < r.EVERYTHING}
        self._roots = {fact.log.root for fact in logs}
        self._closed = all(fact.clean for fact in logs)
        self._newest = newest_ms
        self._apart = apart_ms
        self._first_marker = first_marker_ms

    def settled(self, state: r.TxnState) -> bool:
        """Whether the record was there before the end of any other log was read."""
        return state.offset < self._settled.get(state.log.partition, r.EVERYTHING)

    def together(self, fact: r.LogFacts) -> bool:
        """Whether the log was read before, or together with, the coordinators' logs."""
        return not self._apart or (fact.clean and self._closed and self._roots <= {fact.log.root})

    def written_before(self, time_ms: int, fact: r.LogFacts) -> bool:
        """Whether what brokers wrote at this time was written before the log was read."""
        apart = CLOCKS_MS if fact.clean else self._apart
        return self.together(fact) or time_ms < self._newest.get(fact.log.root, 0) - apart

    def may_be_of_another_topic(self, complete_ms: int, topic: str) -> bool:
        """Whether a transaction was complete before the topic's first marker: one of the same name may have been
        deleted since, and `__transaction_state` has names only."""
        return self._first_marker is not None and 0 < complete_ms < self._first_marker.get(topic, r.EVERYTHING)

    def decided_before(self, marker: r.Transaction, fact: r.LogFacts, last_known_ms: int) -> bool:
        """Whether the decision of a marker was written before the coordinators' logs were read, which know states of
        its producer up to `last_known_ms`."""
        if self.together(fact) or marker.end_timestamp + CLOCKS_MS < last_known_ms:
            return True
        newest = max((self._newest.get(root, 0) for root in self._roots), default=0)
        return marker.end_timestamp < newest - (CLOCKS_MS if self._closed else self._apart)

    @property
    def oldest_ms(self) -> int:
        """Every state that an id had from this time on may have been its current one when some log was read."""
        if not self._apart or (self._closed and len({*self._newest} | self._roots) < 2):
            return r.EVERYTHING
        return min(self._newest.values(), default=0) - self._apart


ONE_MOMENT = Moments((), {}, 0)


def newest_ms(states: Iterable[r.TxnState], transactions: Iterable[r.Transaction]) -> dict[str, int]:
    """Data directory -> the latest time that a broker wrote in it."""
    newest: dict[str, int] = {}
    for state in states:
        newest[state.log.root] = max(newest.get(state.log.root, 0), state.update_timestamp)
    for txn in transactions:
        if txn.marker_offset >= 0:
            newest[txn.log.root] = max(newest.get(txn.log.root, 0), txn.end_timestamp)
    return newest


def first_marker_ms(transactions: Iterable[r.Transaction]) -> dict[str, int]:
    """Topic -> the time of its first marker, in any of its partitions."""
    first: dict[str, int] = {}
    for txn in transactions:
        if txn.marker_offset >= 0:
            first[txn.log.topic] = min(first.get(txn.log.topic, txn.end_timestamp), txn.end_timestamp)
    return first
