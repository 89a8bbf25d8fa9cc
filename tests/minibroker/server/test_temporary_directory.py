from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.config.settings import Settings
from minibroker.server import broker_disks, temporary_directory
from minibroker.server.broker_disks import BrokerDisks
from minibroker.server.options import make_options
from minibroker.server.temporary_directory import TemporaryDirectory, remove_abandoned
from minibroker_storage.os_disk import OsDisk


def test_a_running_owners_directory_stays_and_remove_leaves_nothing(tmp_path: Path) -> None:
    directory = TemporaryDirectory(str(tmp_path))
    (Path(directory.path) / "file").write_text("x")
    assert remove_abandoned(str(tmp_path)) == []
    assert Path(directory.path, "file").exists()
    directory.remove()
    directory.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    (tmp_path / "minibroker-000000000000").touch()
    with pytest.raises(FileExistsError):
        TemporaryDirectory(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["minibroker-000000000000"]


def test_only_a_directory_that_is_kept_is_synced(tmp_path: Path) -> None:
    for kept in (str(tmp_path / "kept"), None):
        disks = BrokerDisks(make_options(data_dir=kept), Settings({}))
        disk = disks.brokers[0].disk
        assert isinstance(disk, OsDisk)
        assert disk.durable is (kept is not None)
        disks.close()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from minibroker.server.temporary_directory import TemporaryDirectory;"
        "d = TemporaryDirectory(sys.argv[1]); open(d.path + '/file', 'w').close(); print(d.path, flush=True);"
        "sys.stdin.read()"
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as owner:
        assert owner.stdout is not None
        path = owner.stdout.readline().strip()
        assert remove_abandoned(str(tmp_path)) == []  # the owner lives
        owner.kill()
        owner.wait()
        assert remove_abandoned(str(tmp_path)) == [path]
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "minibroker-notes").mkdir()
    (tmp_path / "other.lock").write_text("1")
    (tmp_path / "minibroker-new.lock").write_text("")  # made this moment, not locked yet
    (tmp_path / "minibroker-new").mkdir()
    assert remove_abandoned(str(tmp_path)) == []
    assert {p.name for p in tmp_path.iterdir()} == {
        "minibroker-notes",
        "other.lock",
        "minibroker-new.lock",
        "minibroker-new",
    }
    assert remove_abandoned(str(tmp_path / "missing")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="few may make links on Windows")
def test_what_others_put_into_a_shared_directory_is_not_followed(tmp_path: Path) -> None:
    secrets, shared = tmp_path / "secrets", tmp_path / "shared"
    secrets.mkdir()
    shared.mkdir()
    (secrets / "keys").write_text("ssh-ed25519 AAAA")
    (shared / "minibroker-aaaa.lock").symlink_to(secrets / "keys")
    (shared / "minibroker-bbbb.lock").hardlink_to(secrets / "keys")
    os.mkfifo(shared / "minibroker-cccc.lock")
    (shared / "minibroker-dddd.lock").write_text("\n4711")  # left behind, without its directory
    (shared / "minibroker-dddd").symlink_to(secrets)
    assert remove_abandoned(str(shared)) == []
    assert (secrets / "keys").read_text() == "ssh-ed25519 AAAA"
    assert sorted(path.name for path in shared.iterdir()) == [
        "minibroker-aaaa.lock",
        "minibroker-bbbb.lock",
        "minibroker-cccc.lock",
        "minibroker-dddd",
    ]


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="only root can give a file away")
def test_leftovers_of_another_user_stay_his(tmp_path: Path) -> None:
    lock, directory = tmp_path / "minibroker-aaaa.lock", tmp_path / "minibroker-aaaa"
    lock.write_text("\n4711")
    directory.mkdir()
    os.chown(lock, 65534, -1)
    assert remove_abandoned(str(tmp_path)) == []
    assert lock.read_text() == "\n4711"
    os.chown(lock, os.getuid(), -1)
    os.chown(directory, 65534, -1)
    assert remove_abandoned(str(tmp_path)) == []
    assert directory.exists()
    assert not lock.exists()


def test_names_that_others_have_taken_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(3))
    monkeypatch.setattr(os, "urandom", lambda count: next(numbers).to_bytes(count, "big"))
    (tmp_path / "minibroker-000000000000.lock").write_text("")
    (tmp_path / "minibroker-000000000001").mkdir()
    directory = TemporaryDirectory(str(tmp_path))
    assert directory.path == str(tmp_path / "minibroker-000000000002")
    if sys.platform != "win32":
        assert os.stat(directory.path).st_mode & 0o777 == 0o700
    directory.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "minibroker-000000000000.lock",
        "minibroker-000000000001",
    ]


def test_a_lock_that_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where another process may have the file open."""
    directory = TemporaryDirectory(str(tmp_path))

    def refuse(path: str) -> None:
        raise PermissionError(13, "in use", path)

    monkeypatch.setattr(temporary_directory.os, "unlink", refuse)
    directory.remove()
    monkeypatch.undo()
    (lock,) = tmp_path.iterdir()
    assert not os.path.exists(directory.path)
    assert remove_abandoned(str(tmp_path)) == []
    assert not lock.exists()


def test_a_lock_that_can_be_removed_once_it_is_released_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = TemporaryDirectory(str(tmp_path))
    unlink, refusals = os.unlink, [PermissionError(13, "in use")]

    def refuse_once(path: str) -> None:
        if refusals:
            raise refusals.pop()
        unlink(path)

    monkeypatch.setattr(temporary_directory.os, "unlink", refuse_once)
    directory.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_removed_is_told_of_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = TemporaryDirectory(str(tmp_path))

    def refuse(path: str) -> None:
        raise PermissionError(13, "in use", path)

    monkeypatch.setattr(temporary_directory.shutil, "rmtree", refuse)
    directory.remove()
    assert f"{directory.path} could not be removed" in caplog.text
    assert remove_abandoned(str(tmp_path)) == []
    assert caplog.text.count("could not be removed") == 2
    monkeypatch.undo()
    assert remove_abandoned(str(tmp_path)) == [directory.path]
    assert list(tmp_path.iterdir()) == []


def test_the_room_of_a_volume_that_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    options = make_options(data_dir=str(tmp_path / "data"))
    places = broker_disks.BrokerDisks(options, Settings())
    (place,) = places.brokers
    assert place.volume_bytes() == (-1, -1)
    (tmp_path / "data").mkdir(exist_ok=True)
    total, free = place.volume_bytes()
    assert total >= free > 0
    places.close()
