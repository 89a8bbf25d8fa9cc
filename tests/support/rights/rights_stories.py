"""Rights that change while a session or a connection is open: short stories, each a list of answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rights_cases import fetch
from rights_world import (
    ADMIN,
    ALLOW,
    CLOSED,
    LITERAL,
    OPERATIONS,
    Entry,
    Names,
    Side,
    add_partitions,
    as_shown,
    entry,
    grant,
    heartbeat,
    make_topics,
    produce,
    revoke,
    topic_ids,
    until_good,
)

from minibroker_protocol import messages as m

Told = Any
Story = Callable[[Side, Names], list[Told]]
READ_A = entry("topic", "READ")
READ_B: Entry = (2, "b", 3, 3, 3)


class _Fetcher:
    """One user's incremental session at one version."""

    def __init__(self, side: Side, names: Names, version: int) -> None:
        self._side = side
        self._names = names
        self._version = version
        self.id = self._epoch = 0
        self.heard: list[Told] = []

    def open(self, *topics: str, user: str = "session") -> None:
        self.id = self._epoch = 0
        self._ask(user, topics, 0, ())

    def fetch(self, *topics: str, user: str = "session", offset: int = 0, forget: tuple[str, ...] = ()) -> None:
        self._epoch += 1
        self._ask(user, topics, offset, forget)

    def _ask(self, user: str, topics: tuple[str, ...], offset: int, forget: tuple[str, ...]) -> None:
        request = fetch(self._names, topics, session=(self.id, self._epoch), offset=offset, forget=forget)
        answer = self._side.ask(user, request, self._version)
        self.heard.append(as_shown(answer, self._names))
        self.id = self.id or answer.session_id


def _revoked(version: int) -> Story:
    def story(side: Side, names: Names) -> list[Told]:
        fetcher = _Fetcher(side, names, version)
        grant(side, {"session": [READ_A]})
        fetcher.open("a", "b")
        fetcher.fetch("a", offset=1)
        revoke(side, "session")
        until_good(side, ADMIN, produce("a"), 9)
        fetcher.fetch()
        fetcher.fetch()
        grant(side, {"session": [READ_A]})
        fetcher.fetch()
        fetcher.fetch("a", offset=2)
        revoke(side, "session")
        fetcher.fetch()
        fetcher.fetch(forget=("a",))
        fetcher.fetch(forget=("b",))
        return fetcher.heard

    return story


def _granted(version: int) -> Story:
    def story(side: Side, names: Names) -> list[Told]:
        fetcher = _Fetcher(side, names, version)
        fetcher.open("b")
        fetcher.fetch()
        fetcher.fetch("ax")
        grant(side, {"session": [READ_B]})
        fetcher.fetch()
        fetcher.fetch("b", offset=1)
        fetcher.fetch()
        revoke(side, "session")
        fetcher.fetch()
        return fetcher.heard

    return story


def _stranger(version: int) -> Story:
    def story(side: Side, names: Names) -> list[Told]:
        fetcher = _Fetcher(side, names, version)
        grant(side, {"session": [READ_A, READ_B]})
        fetcher.open("a", "b")
        fetcher.fetch(user="stranger")
        fetcher.fetch()
        revoke(side, "session")
        return fetcher.heard

    return story


def _deny_beside_allow(side: Side, names: Names) -> list[Told]:
    fetcher = _Fetcher(side, names, 16)
    grant(side, {"session": [READ_A]})
    fetcher.open("a")
    grant(side, {"session": [entry("topic", "ALL", 2)]})
    until_good(side, ADMIN, produce("a"), 9)
    fetcher.fetch()
    revoke(side, "session")
    return fetcher.heard


def _member(side: Side, names: Names) -> list[Told]:
    """A member of a group of the new protocol whose topic is no longer its own to describe."""
    heard = []

    def beat(topics: list[str] | None, epoch: int) -> int:
        answer = side.ask("member", heartbeat("g.member", topics, epoch=epoch), 1)
        heard.append([as_shown(answer, names), answer.member_epoch > 0])
        return int(answer.member_epoch)

    grant(side, {"member": [entry("group", "READ"), entry("topic", "DESCRIBE")]})
    epoch = beat(["a"], 0)
    revoke(side, "member")
    beat(None, epoch)
    grant(side, {"member": [entry("group", "READ")]})
    beat(None, epoch)
    beat(["a"], epoch)
    beat(["a", "b"], epoch)
    beat(None, -1)
    revoke(side, "member")
    return heard


def _partitions_that_cannot_join(side: Side, names: Names) -> list[Told]:
    """A client that has the right to write even to an internal topic asks to add it to its transaction."""
    internal: Entry = (2, "__consumer_offsets", LITERAL, OPERATIONS["WRITE"], ALLOW)
    grant(side, {"member": [entry("txn", "WRITE"), entry("topic", "WRITE"), internal]})
    topic_lists = (("a", "b", "__consumer_offsets"), ("a", "__consumer_offsets"), ("a", "ax"))
    requests = [add_partitions("x", (0, 0), topics) for topics in topic_lists]
    heard = [as_shown(side.ask("member", request, 3), names) for request in requests]
    revoke(side, "member")
    return heard


def _expression(side: Side, names: Names) -> list[Told]:
    """A member whose expression matches a topic that it may describe and one that it may not."""
    grant(side, {"member": [entry("group", "READ"), entry("topic", "DESCRIBE")]})
    joins = [heartbeat("g.expression", None, regex=expression) for expression in ("[ab]", "b|a", "(a|b)x?")]
    by_name_too = heartbeat("g.both", ["a"], regex="[ab]")
    heard = [as_shown(_assigned(side, join), names) for join in (*joins, by_name_too)]
    revoke(side, "member")
    return heard


def _assigned(side: Side, request: m.ConsumerGroupHeartbeatRequest) -> Any:
    """The answer to a member that joins, once it has partitions: Kafka resolves expressions after it has answered."""
    deadline = time.monotonic() + 30
    while True:
        answer = side.ask("member", request, 1)
        if answer.error_code or (answer.assignment is not None and answer.assignment.topic_partitions):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def _login_again(side: Side, names: Names) -> list[Told]:
    """The requests of a login on a connection whose user is known."""
    shake, login = m.SaslHandshakeRequest(mechanism="PLAIN"), m.SaslAuthenticateRequest(auth_bytes=b"\0admin\0a")
    heard = []
    for request, version in ((shake, 0), (shake, 1), (login, 2), (m.SaslHandshakeRequest(mechanism="NONE"), 1)):
        heard.append(as_shown(side.ask("session", request, version), names))
    ping = side.ask("session", m.ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
    heard.append(ping if ping == CLOSED else ping.error_code)
    return heard


def _topic_made_again(side: Side, names: Names) -> list[Told]:
    """A name that may be read, and a session that began before there was such a topic."""
    fetcher = _Fetcher(side, names, 11)
    grant(side, {"session": [READ_A]})
    fetcher.open("a", "a.later")
    make_topics(side, ["a.later"])
    until_good(side, ADMIN, produce("a.later"), 9)
    mine = Names(topic_ids(side), "later")
    fetcher._names = mine
    fetcher.fetch()
    revoke(side, "session")
    return fetcher.heard


STORIES: dict[str, Story] = {
    "a session whose right is taken, given and taken v11": _revoked(11),
    "a session whose right is taken, given and taken v16": _revoked(16),
    "a session whose right comes later v11": _granted(11),
    "a session whose right comes later v16": _granted(16),
    "a session of somebody else v11": _stranger(11),
    "a session of somebody else v16": _stranger(16),
    "a session and DENY beside ALLOW": _deny_beside_allow,
    "a session with a topic that comes later": _topic_made_again,
    "a transaction that partitions cannot join": _partitions_that_cannot_join,
    "a member whose topics are taken": _member,
    "a member whose expression matches what it may not describe": _expression,
    "a login on a connection whose user is known": _login_again,
}
