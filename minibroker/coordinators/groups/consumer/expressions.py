"""Subscriptions by regular expression: when they are matched against the topics (KIP-848).

As in Kafka (GroupMetadataManager.maybeUpdateRegularExpressions) a heartbeat only asks for it. All expressions of the
group are matched right after its answer, with the rights of its client; the heartbeats after that find what changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from minibroker.coordinators.groups.consumer import records
from minibroker.coordinators.groups.consumer.change import Change
from minibroker.coordinators.groups.consumer.group import ConsumerGroup, Resolved, metadata_hash
from minibroker.coordinators.groups.environment import Environment, TimerKey
from minibroker.coordinators.patterns import compile_pattern, takes_long
from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import MetadataImage
from minibroker_protocol.errors import ApiError

log = get_logger(__name__)

MIN_INTERVAL_MS = 10_000
"""Between two times that a group's expressions are matched (Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""


class Subscribed(Enum):
    """What a heartbeat did to its member's expression. RESOLVED: made it one whose topics are known, or none."""

    AS_BEFORE = auto()
    CHANGED = auto()
    RESOLVED = auto()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The expressions to match, and the client whose rights decide which topics they see."""

    group_id: str
    expressions: frozenset[str]
    may_describe: Callable[[str], bool]

    @property
    def key(self) -> TimerKey:
        return ("expressions", self.group_id, "")


class Expressions:
    """Decides when to match a group's regular expressions with the topics, and matches them.

    find: looks the group up again, as it may have changed in the meantime.
    """

    def __init__(self, env: Environment, find: Callable[[str], ConsumerGroup | None]) -> None:
        self._env = env
        self._find = find
        self._requested: set[str] = set()

    def follow(self, change: Change, before: str, now: str) -> Subscribed:
        """A heartbeat of a member whose expression was `before` and is `now`. Raises INVALID_REGULAR_EXPRESSION."""
        group, uses = change.group, change.group.expression_uses
        subscribed, is_new = Subscribed.AS_BEFORE, False
        if before != now:
            subscribed = Subscribed.CHANGED
            if uses[before] == 1:
                change.records.append(records.regular_expression_tombstone(group.group_id, before))
            if not now or (now in group.expressions and uses[now]):
                subscribed = Subscribed.RESOLVED
            elif not uses[now]:
                _matching(now, change.image)
                is_new = True
        if is_new or uses:
            wanted = frozenset(e for e in {*uses, now} if e and uses[e] + (e == now) - (e == before) > 0)
            if wanted and group.group_id not in self._requested and self._due(group, wanted, change.image, is_new):
                resolution = _Wanted(group.group_id, wanted, change.client.may_describe)
                change.effects.append(partial(self._ask, resolution))
        return subscribed

    def _due(self, group: ConsumerGroup, wanted: frozenset[str], image: MetadataImage, is_new: bool) -> bool:
        if not group.expressions:
            return True
        last = max(group.expressions.values(), key=lambda resolved: resolved.timestamp_ms)
        age_ms = self._env.now_ms() - last.timestamp_ms
        # Matching all topics is dear, and every heartbeat could ask for it.
        return age_ms > MIN_INTERVAL_MS and (
            is_new
            or len(wanted) != len(group.expressions)
            or last.version < image.new_topic_offset
            or age_ms > self._env.config().consumer_regex_refresh_interval_ms
        )

    def _ask(self, wanted: _Wanted) -> None:
        self._requested.add(wanted.group_id)
        self._env.timers.schedule(wanted.key, 0, partial(self._begin, wanted))

    def _begin(self, wanted: _Wanted) -> CoordinatorResult[None]:
        group, image = self._find(wanted.group_id), self._env.image()
        # The members that asked are gone, or subscribe otherwise by now.
        if group is None or not wanted.expressions & group.expression_uses.keys():
            self._requested.discard(wanted.group_id)
            return CoordinatorResult(None)
        if not any(takes_long(expression, image.topics) for expression in wanted.expressions):
            self._requested.discard(wanted.group_id)
            return CoordinatorResult(None, tuple(_resolved(group, image, wanted, self._env.now_ms())))
        work = partial(_resolved, group.copy(), image, wanted, self._env.now_ms())
        self._env.aside(work).then(partial(self._matched, wanted, group, group.version))
        return CoordinatorResult(None)

    def _matched(
        self, wanted: _Wanted, group: ConsumerGroup, version: int, done: Deferred[list[CoordinatorRecord]]
    ) -> None:
        """Use the topics that another thread has matched, unless the group has changed in the meantime."""

        def take() -> CoordinatorResult[None]:
            if self._find(wanted.group_id) is not group or group.version != version:
                return self._begin(wanted)
            self._requested.discard(wanted.group_id)
            return CoordinatorResult(None, tuple(done.result()))

        self._env.timers.schedule(wanted.key, 0, take)


def _resolved(group: ConsumerGroup, image: MetadataImage, wanted: _Wanted, now_ms: int) -> list[CoordinatorRecord]:
    """Match the expressions; a new epoch when one matches other topics than before."""
    made: list[CoordinatorRecord] = []
    expressions, changed = dict(group.expressions), False
    for expression in sorted(wanted.expressions & group.expression_uses.keys()):
        before = expressions.get(expression)
        had = frozenset[str]() if before is None else before.topics
        try:
            topics = frozenset(filter(wanted.may_describe, _matching(expression, image)))
        except ApiError as error:  # there are more topics than when the member joined
            log.warning("group %s: %s", group.group_id, error.message)
            topics = had
        changed |= topics != had
        expressions[expression] = Resolved(topics, image.offset, now_ms)
        made.append(records.regular_expression(group.group_id, expression, topics, image.offset, now_ms))
    topics_hash = metadata_hash(image, group.subscribed_topics(group.members.values(), expressions))
    if changed or topics_hash != group.metadata_hash:
        made.append(records.group_epoch(group.group_id, group.group_epoch + 1, topics_hash))
        log.debug("group %s: epoch %d, its expressions match other topics", group.group_id, group.group_epoch + 1)
    for record in made:
        record.encode()
    return made


def _matching(expression: str, image: MetadataImage) -> frozenset[str]:
    """Topics whose whole name the expression matches. Raises INVALID_REGULAR_EXPRESSION."""
    try:
        pattern = compile_pattern(expression)
        return frozenset(image.topics) if pattern is None else pattern.matching(image.topics)
    except ApiError as error:
        raise ApiError(
            error.code, f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error.message}"
        ) from None
