"""One broker for the whole tier; every test names its topics and groups itself, so they never meet."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from broker import running_broker


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker") / "broker.log") as servers:
        yield servers


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names nobody used before, on a broker that may have been running for days."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:10]}"
