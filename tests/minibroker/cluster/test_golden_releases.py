"""Data directories that released versions wrote (tests/golden/minibroker-*), opened by this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden import GOLDEN, unpack
from seed_client import OK, SeedClient
from write_golden import WINDOW, facts

from minibroker.releases.semantics import PRESETS
from minibroker.rules.directory import check_directory
from minibroker.version import __version__
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.check_finding import ERROR
from minibroker_storage.os_disk import OsDisk

NEWEST = (10, 12, 2)  # of the batches of the idempotent producer only this one is known under kafka's semantics
RELEASES = sorted(path.name for path in GOLDEN.glob("minibroker-*"))


def manifest(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / release / "manifest.json").read_text())
    return found


def test_this_release_has_its_golden_directories() -> None:
    assert f"minibroker-{__version__}" in RELEASES
    assert all(manifest(release)["minibroker"] == release.removeprefix("minibroker-") for release in RELEASES)


@pytest.mark.parametrize("kind", ["clean", "killed", "kip"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_directory_of_a_release_is_served(release: str, kind: str, tmp_path: Path) -> None:
    unpack(f"{release}/{kind}.tar.gz", tmp_path)
    before = OsDisk(str(tmp_path), read_only=True)
    assert [finding for finding in check_directory(before) if finding.severity == ERROR] == []
    semantics = PRESETS["kip" if kind == "kip" else "kafka"]
    client = SeedClient(semantics, disk=OsDisk(str(tmp_path)))
    expected = manifest(release)[kind]
    assert facts(client) == expected
    assert client.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS  # the open transaction is aborted first
    client.cluster.timers.advance(1000)
    producer_id, epoch = client.new()
    assert (producer_id, epoch > expected["transaction"][2]) == (expected["transaction"][1], True)
    known = WINDOW if kind == "kip" else NEWEST
    idempotent = tuple(manifest(release)["idempotent"][kind])
    for sequence in range(*known):
        assert client.produce(idempotent, sequence, count=2, transactional=False).code == OK
    assert client.cluster.broker.partition("t", 0).log_end_offset == expected["partitions"]["t-0"]["high_watermark"]
    client.stop()
    again = SeedClient(semantics, disk=OsDisk(str(tmp_path)))
    assert facts(again)["configs"] == expected["configs"]
    again.stop()


def test_a_start_says_which_other_version_opened_the_directory_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unpack(f"{RELEASES[0]}/clean.tar.gz", tmp_path)
    noted = tmp_path / "minibroker.version"
    assert noted.read_text() == f"version={__version__}\nlayout=1\n"
    noted.write_text("version=0.0.9\nlayout=1\n")
    with caplog.at_level("INFO"):
        SeedClient(PRESETS["kafka"], disk=OsDisk(str(tmp_path))).stop()
        assert f"was last opened by minibroker 0.0.9, this is {__version__}" in caplog.text
        caplog.clear()
        SeedClient(PRESETS["kafka"], disk=OsDisk(str(tmp_path))).stop()
        assert "was last opened by" not in caplog.text
