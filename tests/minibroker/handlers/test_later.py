"""Handlers that come with their first request: the names are right, and a start does without them."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.handlers import table
from minibroker.kernel.deferred import Deferred
from minibroker.requests import forwarded
from minibroker_protocol.messages import CreateTopicsRequest


def test_every_handler_named_in_the_table_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[tuple[str, str]] = []
    monkeypatch.setattr(table, "_later", lambda module, name: named.append((module, name)))
    table.apis()
    assert len(named) > 10
    for module, name in named:
        assert callable(getattr(__import__(f"minibroker.handlers.{module}", fromlist=[name]), name))


def test_whatever_the_controller_s_answer_ends_with_is_told() -> None:
    sent: Deferred[Any] = Deferred()
    channel = SimpleNamespace(send=lambda request, version: sent)
    ctx: Any = SimpleNamespace(api_version=7, broker=SimpleNamespace(controller_channel=channel))
    answer = forwarded.handle(ctx, CreateTopicsRequest(topics=[]))
    sent.fail(RuntimeError("a defect of the controller"))
    with pytest.raises(RuntimeError, match="a defect"):
        answer.result()


def test_a_start_loads_no_coordinator_and_no_administration() -> None:
    program = "import sys, minibroker.cluster.cluster, minibroker.handlers.table; print(*sys.modules)"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    modules = done.stdout.split()
    assert "minibroker.handlers.produce" in modules
    late = (
        "minibroker.coordinators.groups",
        "minibroker.coordinators.patterns",
        "minibroker.coordinators.transactions",
        "minibroker.coordinator_runtime.group_service",
        "minibroker.coordinator_runtime.transaction_service",
        "minibroker.handlers.administration",
        "minibroker_protocol.coordinator_records",
        "minibroker_storage.transaction_layout",
    )
    assert [name for name in modules if name.startswith(late)] == []
