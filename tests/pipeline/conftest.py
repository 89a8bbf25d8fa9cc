"""One Spark session for all tests, with the jars of Spark's own Kafka connector where Maven gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jvm import fetched_jars
from planting import KEPT, Planted, write_files
from toolchain import Unavailable

DOWNLOAD_SECONDS = 90.0
"""Ten megabytes; a download that hangs is no reason to give up the other tests."""
CONNECTOR = Path(__file__).parent / "connector" / "pom.xml"


@pytest.fixture(scope="session")
def connector() -> list[Path] | str:
    """The connector's jars, or why there are none."""
    try:
        return sorted(fetched_jars(CONNECTOR, "Spark's Kafka connector", DOWNLOAD_SECONDS).glob("*.jar"))
    except Unavailable as missing:
        return str(missing)


@pytest.fixture(scope="session")
def spark(connector: list[Path] | str) -> Iterator[Any]:
    from minibroker_pipeline import session

    settings = ["spark.driver.memory=1g", "spark.default.parallelism=4", "spark.sql.shuffle.partitions=2"]
    if not isinstance(connector, str):
        settings.append(f"spark.jars={','.join(map(str, connector))}")
    opened, _ = session.open_session("local[2]", settings)
    yield opened
    opened.stop()


@pytest.fixture(scope="session", autouse=True)
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The golden directory. What tests write of it links to its files."""
    files = Planted().files
    path = write_files(files, tmp_path_factory.mktemp("golden"))
    KEPT.update((content, f"{path}/{name}") for name, content in files.items())
    yield path
    KEPT.clear()
    assert [name for name, content in files.items() if (path / name).read_bytes() != content] == []
