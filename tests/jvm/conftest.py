"""Kafka's jars and compiled programs for this tier; whatever is missing skips it, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import running_broker
from jvm import JVM_TIER, compile_java
from toolchain import Unavailable, tool


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of this tier's compiled classes."""
    try:
        tool("java")
        tool("javac")
        return compile_java(sorted(JVM_TIER.glob("*.java")), tmp_path_factory.mktemp("classes"))
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def bootstrap(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker") / "broker.log") as servers:
        yield servers
