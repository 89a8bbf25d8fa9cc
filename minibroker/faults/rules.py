"""A rule: which requests it is about, and how often it acts on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING, Any

from minibroker.faults.actions import Action, action_from, action_to, within_action
from minibroker.faults.facts import Facts, carried_by
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near

if TYPE_CHECKING:
    from minibroker.requests.api import Api
    from minibroker.requests.tapped_request import TappedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests; a field that is None or empty does not matter, and all others must fit.

    api: names as in Kafka's protocol ("EndTxn").
    versions: lowest and highest. client_id, topic, group and transactional_id take ``*`` and ``?``.
    sequence: lowest and highest; a batch fits when one of its sequences does.
    broker: node id of the one that is asked (-1: the controller).
    between_brokers: not requests of clients but those that brokers send, to each other, to themselves and to the
        controller; their client id is ``broker-N``.
    """

    api: tuple[str, ...] = ()
    versions: tuple[int, int] | None = None
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    sequence: tuple[int, int] | None = None
    broker: int | None = None
    between_brokers: bool = False

    @property
    def needs_facts(self) -> frozenset[str]:
        """The fields of `facts.carried_by` that this looks at."""
        names = ("topic", "partition", "group", "transactional_id", "producer_id", "producer_epoch", "sequence")
        return frozenset(name for name in names if getattr(self, name) is not None)

    def fits_header(self, tapped: TappedRequest) -> bool:
        """Whether all that can be seen without looking into the request fits."""
        if tapped.between_brokers != self.between_brokers:
            return False
        if self.api and tapped.api.name not in self.api:
            return False
        if self.versions is not None and not self.versions[0] <= tapped.version <= self.versions[1]:
            return False
        if self.client_id is not None and not fnmatchcase(tapped.context.client_id or "", self.client_id):
            return False
        return self.broker is None or tapped.receiver == self.broker

    def fits(self, facts: Facts) -> bool:
        """Whether what the request is about fits."""
        if self.topic is not None and not any(
            fnmatchcase(name, self.topic) and (self.partition is None or index in (self.partition, -1))
            for name, index in facts.partitions
        ):
            return False
        if self.group is not None and not any(fnmatchcase(name, self.group) for name in facts.groups):
            return False
        if self.transactional_id is not None and not any(
            fnmatchcase(name, self.transactional_id) for name in facts.transactional_ids
        ):
            return False
        if self.producer_id is None and self.producer_epoch is None and self.sequence is None:
            return True
        return any(
            self._fits_producer(p.producer_id, p.epoch, p.first_sequence, p.last_sequence) for p in facts.producers
        )

    def _fits_producer(self, producer_id: int, epoch: int, first: int, last: int) -> bool:
        if self.producer_id is not None and producer_id != self.producer_id:
            return False
        if self.producer_epoch is not None and epoch != self.producer_epoch:
            return False
        if self.sequence is None:
            return True
        low, high = self.sequence
        if first < 0:
            return False
        # A batch whose sequences wrap at 2^31 - 1 has its last below its first.
        return (first <= high and last >= low) if first <= last else (high >= first or low <= last)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """`action` on the requests of `match`: from the `nth` that fits on, `times` of them (None: all), each with
    `probability`, drawn from `seed`."""

    match: Match
    action: Action
    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    seed: int = 0

    def checked(self, apis: Mapping[int, Api], apis_of_brokers: Mapping[int, Api]) -> FaultRule:
        """This rule. Raises FaultError for a rule that can never act, or whose action does not apply to its requests.

        apis: what clients can send.
        apis_of_brokers: those of requests that brokers send each other.
        """
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise FaultError("nth and times are 1 or more")
        if not 0 < self.probability <= 1:
            raise FaultError("probability is above 0 and at most 1")
        match = self.match
        if match.partition is not None and match.topic is None:
            raise FaultError("a partition needs a topic")
        for name in ("versions", "sequence"):
            bounds = getattr(match, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise FaultError(f"{name}: {bounds[0]} is above {bounds[1]}")
        if match.between_brokers and not self.action.for_brokers:
            raise FaultError(f"{self.action.name} is not done to brokers: it is for clients")
        chosen = self._chosen(apis_of_brokers if match.between_brokers else apis)
        problem = next(filter(None, (self.action.problem(api) for api in chosen)), None)
        if problem is not None and match.api:
            raise FaultError(problem)
        if problem is not None and all(self.action.problem(api) for api in chosen):
            raise FaultError(problem)
        return self

    def _chosen(self, apis: Mapping[int, Api]) -> list[Api]:
        match = self.match
        by_name = {api.name: api for api in apis.values()}
        for name in match.api:
            if name not in by_name:
                who = "no broker sends" if match.between_brokers else "there is no API"
                raise FaultError(f"{who} {name!r}{near(name, by_name)}")
        chosen = [by_name[name] for name in match.api] or list(by_name.values())
        needs = match.needs_facts
        for api in chosen:
            lacking = needs - carried_by(api.request)
            if lacking and match.api:
                raise FaultError(f"a request of {api.name} has no {sorted(lacking)[0]}")
            if match.versions is not None and match.api:
                low, high = match.versions
                if high < api.min_version or low > api.max_version:
                    raise FaultError(f"{api.name} is served in versions {api.min_version}-{api.max_version}")
        if not any(needs <= carried_by(api.request) for api in chosen):
            raise FaultError(f"no request has all of {', '.join(sorted(needs))}")
        return chosen

    def random(self) -> Random:
        return Random(self.seed)


_LIMITS = ("nth", "times", "probability", "seed")


def rule_from(table: Mapping[str, Any]) -> FaultRule:
    """The rule that a JSON object describes; `rule_to` is its reverse. Raises FaultError."""
    rest = dict(table)
    done = rest.pop("action", None)
    limits = {name: rest.pop(name) for name in _LIMITS if name in rest}
    known = {field.name for field in fields(Match)}
    for name in rest:
        if name not in known:
            raise FaultError(
                f"a rule has no field {name!r}{within_action(name, done) or near(name, [*known, *_LIMITS])}"
            )
    action = action_from(done)
    for name, value in limits.items():
        if name == "times" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float) if name == "probability" else int):
            raise FaultError(f"{name} is a number, not {value!r}")
    return FaultRule(match=_match_from(rest), action=action, **limits)


def _match_from(fields: dict[str, Any]) -> Match:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name == "api":
            names = [value] if isinstance(value, str) else value
            if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
                raise FaultError("api is a name or a list of names")
            values[name] = tuple(names)
        elif name == "between_brokers":
            if not isinstance(value, bool):
                raise FaultError(f"{name} is true or false, not {value!r}")
            values[name] = value
        elif name in ("versions", "sequence"):
            bounds = [value, value] if isinstance(value, int) else value
            if not isinstance(bounds, Sequence) or len(bounds) != 2 or not all(isinstance(n, int) for n in bounds):
                raise FaultError(f"{name} is a number or a list of the lowest and the highest")
            values[name] = (bounds[0], bounds[1])
        else:
            wanted = str if name in ("client_id", "topic", "group", "transactional_id") else int
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise FaultError(f"{name} is a {'text' if wanted is str else 'number'}, not {value!r}")
            values[name] = value
    return Match(**values)


def rule_to(rule: FaultRule) -> dict[str, Any]:
    """A rule as a JSON object, without what does not matter."""
    table: dict[str, Any] = {"action": action_to(rule.action)}
    for field in fields(Match):
        value = getattr(rule.match, field.name)
        if value is not None and value is not False and value != ():  # 0 says something
            table[field.name] = list(value) if isinstance(value, tuple) else value
    for name in _LIMITS:
        table[name] = getattr(rule, name)
    return table
