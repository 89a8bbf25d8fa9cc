"""Directories in which minibroker 0.1.0 kept ids in other partitions than Kafka, opened by this version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden import GOLDEN, unpack
from internal_partitions import ids_of
from misplaced_ids import COUNT, DECIDED, ABANDONED, Ids, go_on, opened

from minibroker.coordinators.hashing import partition_for
from minibroker_storage.check import ERROR, check_directory
from minibroker_storage.os_disk import OsDisk

DIRECTORIES = "minibroker-0.1.0/misplaced-ids"
MANIFEST: dict[str, Any] = json.loads((GOLDEN / DIRECTORIES / "manifest.json").read_text())
KINDS = ("clean", "killed", "three-brokers")


def brokers(kind: str) -> int:
    count: int = MANIFEST[kind]["brokers"]
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_directory_loses_nothing(kind: str, tmp_path: Path) -> None:
    unpack(f"{DIRECTORIES}/{kind}.tar.gz", tmp_path)
    cluster = opened(tmp_path, brokers(kind))
    go_on(Ids(cluster), MANIFEST[kind]["clients"])
    cluster.cluster.stop()
