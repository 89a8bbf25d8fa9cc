"""The lines of `minibroker serve` that say where it can be reached, which programs read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.server.command import _say_where

KAFKA = [
    "[KafkaServer id=5] Transitioning from RECOVERY to RUNNING", "[KafkaServer id=5] started", "Kafka Server started",
]  # fmt: skip
"""What testcontainers and others wait for in the log of Kafka's image."""


def service(
    *, token: str | None, page: bool = True, control: bool = True, metrics: bool = True, host: str = "127.0.0.1"
) -> Any:
    served = SimpleNamespace(address=(host, 8), token="made up", page=page or None, page_url="http://h:8/?token=x")
    return SimpleNamespace(
        outside_servers="me:9092",
        bootstrap_servers="127.0.0.1:9092",
        metrics=SimpleNamespace(address=(host, 7)) if metrics else None,
        control=served if control else None,
        options=SimpleNamespace(control_token=token),
        cluster=SimpleNamespace(nodes=[SimpleNamespace(node_id=5)]),
    )


@pytest.mark.parametrize(
    ("made", "like_kafka", "lines", "aside"),
    [
        (service(token="given", control=False, metrics=False), False, ["bootstrap.servers=127.0.0.1:9092"], ""),
        (
            service(token="given"),
            False,
            [
                "bootstrap.servers=127.0.0.1:9092",
                "control=127.0.0.1:8",
                "page=http://h:8/?token=x",
                "metrics=127.0.0.1:7",
            ],
            "",
        ),
        (
            service(token=None, page=False, host="::1"),
            False,
            ["bootstrap.servers=127.0.0.1:9092", "control=[::1]:8", "metrics=[::1]:7"],
            "minibroker: the control API's token is made up\n",
        ),
        (service(token="given", control=False, metrics=False), True, ["bootstrap.servers=me:9092", *KAFKA], ""),
    ],
)
def test_where_it_can_be_reached(
    made: Any, like_kafka: bool, lines: list[str], aside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _say_where(made, SimpleNamespace(like_kafka_image=like_kafka))  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert said.err == aside
    assert said.out.splitlines() == lines
