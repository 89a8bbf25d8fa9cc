"""Ask a live Apache Kafka, or a broker in memory, the matrix of rights, and keep Kafka's answers.

As a program it starts Kafka, asks it everything, and writes the tables that tests compare minibroker with:
`python tests/support rights_record [RELEASE …]` (two minutes each; needs Java and Kafka's jars).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from free_ports import free_ports
from jvm import NEWEST, POMS
from real_kafka import RealKafka
from rights_cases import CASES, Table, run
from rights_stories import STORIES, Told
from rights_world import ADMIN, CLOSED, SESSION_USERS, USERS, fitted, furnish

from minibroker.client.connection import BrokerFailed, Connection
from minibroker.client.security import Security
from minibroker_protocol.dsl import Request
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.registry import registry

TABLES = {name: Path(__file__).with_name(f"rights_of_kafka_{name.replace('.', '_')}.json") for name in POMS}
NAMES = (ADMIN, *USERS, *SESSION_USERS)
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
COMMON = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.consumer.max.session.timeout.ms": "3600000",
    "group.consumer.session.timeout.ms": "3600000",
    "unstable.api.versions.enable": "false",
}
"""Settings of both brokers."""
_SECURITY = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{{controller_port}},SASL_PLAINTEXT://127.0.0.1:{sasl_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
authorizer.class.name={authorizer}
super.users=User:admin;User:ANONYMOUS
listener.name.sasl_plaintext.plain.sasl.jaas.config={module} required {users};
"""
_SECONDS = 30.0


class KafkaSide:
    """A live Kafka; every user has a connection of its own."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._connections: dict[str, Connection] = {}
        self._entries = 0

    def ask(self, user: str, request: Request, version: int) -> Any:
        kind = type(request)
        silent = getattr(request, "acks", None) == 0
        connection = self._connections.get(user) or self._connect(user)
        try:
            connection.correlation_id += 1
            header = RequestHeader(
                request_api_key=kind.__api_key__,
                request_api_version=version,
                correlation_id=connection.correlation_id,
                client_id="t",
            )
            flexible = version >= first_flexible_version(kind.__api_key__)
            connection.send_frame(header.encode(2 if flexible else 1) + fitted(request, version).encode(version))
            if silent:
                return None
            frame = connection.receive(_SECONDS)
        except BrokerFailed:
            self._connections.pop(user).close()
            return CLOSED
        position = 5 if flexible and kind.__api_key__ != 18 else 4
        return registry()[kind.__api_key__][1].decode(frame, version, position)

    def _connect(self, user: str) -> Connection:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                made = Security.of({**login, "sasl.password": "a"}).connect(self._address, _SECONDS)
            except BrokerFailed:
                # Kafka opens its listeners one after the other.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                self._connections[user] = made
                return made

    def settle(self) -> None:
        """Entries come to the broker's and the controller's authorizer one after the other, after the answer."""
        time.sleep(1.0)

    def close(self) -> None:
        for connection in self._connections.values():
            with suppress(BrokerFailed):
                connection.close()


@contextmanager
def kafka_side(release: str = NEWEST) -> Iterator[KafkaSide]:
    port, sasl_port = free_ports(2)
    security = _SECURITY.format(
        port=port,
        sasl_port=sasl_port,
        authorizer=AUTHORIZER,
        module="org.apache.kafka.common.security.plain.PlainLoginModule",
        users=" ".join(f'user_{name}="a"' for name in NAMES),
    )
    extra = security + "".join(f"{name}={value}\n" for name, value in COMMON.items())
    kafka = RealKafka(extra, port, release=release)
    side = KafkaSide(sasl_port)
    try:
        kafka.start()
        kafka.wait()
        yield side
    finally:
        side.close()
        kafka.close()


def record(side: Any) -> dict[str, Any]:
    """{"matrix": …, "stories": …} of one side."""
    names = furnish(side)
    stories: dict[str, list[Told]] = {name: story(side, names) for name, story in STORIES.items()}
    return {"matrix": run(side, names), "stories": stories}


def as_text(recorded: dict[str, Any]) -> str:
    """One answer a line, with the users who got it; what most users got is theirs without being named."""
    lines = ["{", '"matrix": {']
    cases = [f"{json.dumps(key)}: [\n{_rows(rows)}\n]" for key, rows in recorded["matrix"].items()]
    lines += [",\n".join(cases), "},", '"stories": {']
    stories = [
        f"{json.dumps(key)}: [\n" + ",\n".join("  " + json.dumps(step) for step in steps) + "\n]"
        for key, steps in recorded["stories"].items()
    ]
    lines += [",\n".join(stories), "}", "}", ""]
    return "\n".join(lines)


def _rows(rows: list[tuple[Any, list[str]]]) -> str:
    most = max(rows, key=lambda row: len(row[1]))
    return ",\n".join(
        "  " + json.dumps([answer, "others" if row is most else " ".join(users)])
        for row in rows
        for answer, users in (row,)
    )


def load(release: str = NEWEST) -> tuple[dict[str, dict[str, Any]], dict[str, list[Told]]]:
    """(case → user → answer, story → answers) of the kept table."""
    kept = json.loads(TABLES[release].read_text())
    return {key: by_user(rows) for key, rows in kept["matrix"].items()}, kept["stories"]


def by_user(rows: list[Any]) -> dict[str, Any]:
    named = {user: answer for answer, users in rows if users != "others" for user in users.split()}
    rest = [answer for answer, users in rows if users == "others"]
    return {user: named[user] if user in named else rest[0] for user in USERS}


def flat(table: Table) -> dict[str, dict[str, Any]]:
    """The same of a table that was just made."""
    return {key: {user: answer for answer, users in rows for user in users} for key, rows in table.items()}


def main() -> int:
    for release in sys.argv[1:] or TABLES:
        began = time.monotonic()
        with kafka_side(release) as side:
            recorded = record(side)
        TABLES[release].write_text(as_text(recorded))
        count = len(CASES) * len(USERS)
        print(f"{count} answers of the matrix in {time.monotonic() - began:.0f} s: {TABLES[release].name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
