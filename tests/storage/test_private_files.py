from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from packages import PACKAGES, ROOT

from minibroker_storage.os_disk import OsLock
from minibroker_storage.private_files import (
    is_own_directory,
    open_private,
    open_without_links,
    output_path,
    replace_private,
    user_cache,
)

SECRET = "ssh-ed25519 AAAA somebody@home\n"
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no owners, and few may make links")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of this user that something in a shared directory points to."""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return file


def _as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to this user is another's from now on; root's stays trusted, so it must not be root."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4711)


def _given_away(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1, follow_symlinks=False)


@posix
def test_a_lock_follows_no_link(tmp_path: Path, secret: Path) -> None:
    lock = tmp_path / "lock"
    lock.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        OsLock(str(lock), str(lock), "4711")
    assert secret.read_text() == SECRET


@posix
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_without_links(str(tmp_path / "pipe"))  # and does not wait for the other end
    open_files = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    with pytest.raises(OSError, match="not a regular file"):
        open_without_links(str(tmp_path / "pipe"))
    assert not open_files or len(os.listdir("/proc/self/fd")) == len(open_files)


def test_a_new_private_file_is_new_and_ours(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    os.close(open_private(path, create=True))
    with pytest.raises(FileExistsError):
        open_private(path, create=True)
    os.close(open_private(path, create=False))
    if sys.platform != "win32":
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@posix
def test_another_users_file_is_not_opened(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = tmp_path / "hard"
    hard.hardlink_to(secret)
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_private(str(hard), create=False)
    hard.unlink()
    os.close(open_private(str(secret), create=False))
    _as_another_user(monkeypatch)
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_private(str(secret), create=False)
    assert not is_own_directory(str(tmp_path))


@posix
def test_a_cache_is_private_whatever_the_mask_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mask = os.umask(0)
    try:
        place = user_cache("clients", "java")
    finally:
        os.umask(mask)
    assert place == tmp_path / "cache" / "minibroker" / "clients" / "java"
    for path in (place, *place.parents[:3]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    # As a release before this one made it, with the mask 002.
    (tmp_path / "cache" / "minibroker").chmod(0o775)
    assert user_cache("clients", "java") == place
    assert stat.S_IMODE((tmp_path / "cache" / "minibroker").stat().st_mode) == 0o700


def test_a_relative_cache_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert user_cache() == tmp_path / ".cache" / "minibroker"


@posix
def test_a_cache_that_others_prepared_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "minibroker"
    place.mkdir(mode=0o700)
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="every user may write to it"):
        user_cache()
    place.chmod(0o700)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert user_cache("own-link").is_dir()  # a link of this user, to a directory of this user
    with monkeypatch.context() as other:
        if os.getuid() == 0:
            _given_away(place)
        else:
            _as_another_user(other)
        with pytest.raises(OSError, match="another user"):
            user_cache()
    place.unlink()
    place.write_text("")
    with pytest.raises(NotADirectoryError):
        user_cache()


@posix
def test_a_directory_of_another_user_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "minibroker").mkdir(mode=0o755)
    _given_away(tmp_path / "minibroker")
    with pytest.raises(PermissionError, match="belongs to another user"):
        user_cache()


def test_a_file_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "java"
    replace_private(path, "one", 0o755)
    replace_private(path, "two", 0o755)
    assert path.read_text() == "two"
    assert sys.platform == "win32" or stat.S_IMODE(path.stat().st_mode) == 0o755

    def refuse(old: str, new: Path) -> None:
        raise OSError(28, "no room", str(new))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        replace_private(path, "three", 0o755)
    assert [one.name for one in tmp_path.iterdir()] == ["java"]
    assert path.read_text() == "two"


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_killed_process_left_is_replaced(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written often has one name while it is unfinished, and is on the disk before it is renamed."""
    path, steps = tmp_path / "checkpoint", []
    replace, sync = os.replace, os.fsync

    def renamed(old: str, new: Path) -> None:
        steps.append("rename")
        if fails:
            raise OSError(28, "no room", str(new))
        replace(old, new)

    class Killed(BaseException):
        pass

    def killed(descriptor: int) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        patched.setattr(os, "unlink", lambda name: None)  # a killed process does not tidy up
        with pytest.raises(Killed):
            replace_private(path, "one", 0o600, durable=True)
    assert len([*tmp_path.iterdir()]) == 1
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor)))
    monkeypatch.setattr(os, "replace", renamed)
    if fails:
        with pytest.raises(OSError, match="no room"):
            replace_private(path, "two", 0o600, durable=True)
        assert [*tmp_path.iterdir()] == []
    else:
        replace_private(path, "two", 0o600, durable=True)
        assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("checkpoint", "two")]
    assert steps == ["sync", "rename"]


def test_temporary_and_cache_directories_have_one_place() -> None:
    """Names in a temporary or cache directory are made by the modules that check owners, or by mkdtemp and mkstemp."""
    named = ("gettempdir", "mktemp", "XDG_CACHE_HOME", '".cache"', '"/tmp')
    allowed = {"storage/minibroker_storage/private_files.py", "minibroker/server/temporary_directory.py"}
    sources = [source for folder in (*PACKAGES.values(), ROOT / "tools") for source in folder.rglob("*.py")]
    assert len(sources) > 300
    found = {
        source.relative_to(ROOT).as_posix()
        for source in sources
        if any(name in source.read_text(encoding="utf-8") for name in named)
    }
    assert found == allowed


@posix
@pytest.mark.parametrize("name", ["out", "out/below", "own/out"])
def test_output_follows_no_link_of_another_user_in_a_shared_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux with fs.protected_symlinks: neither the last link of a path nor one on the way."""
    shared, target = tmp_path / "shared", tmp_path / "target"
    for directory in (shared, target):
        directory.mkdir()
    (shared / "out").symlink_to(target)
    (tmp_path / "own").symlink_to(shared)
    path = shared / name if name != "own/out" else tmp_path / name
    assert output_path(path) == path  # its own
    shared.chmod(0o1777)
    assert output_path(path) == path
    _as_another_user(monkeypatch)
    assert output_path(path) == path  # the directory's owner's
    owner = os.getuid()
    stat_of = os.stat

    def of_another(place: str) -> os.stat_result:
        info = list(stat_of(place))
        info[stat.ST_UID] = owner + 1
        return os.stat_result(info)

    monkeypatch.setattr(os, "stat", of_another)
    with pytest.raises(PermissionError, match="another user's symbolic link"):
        output_path(path)
    shared.chmod(0o777)  # without the sticky bit anybody may replace anything there
    assert output_path(path) == path


@posix
def test_output_goes_to_devices_missing_files_and_loops_as_ever(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("/dev/stdout", "/dev/null", str(tmp_path / "new" / "file"), str(tmp_path / "loop")):
        assert output_path(name) == Path(name)


@posix
def test_output_replaces_no_file_of_another_user_in_a_shared_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux with fs.protected_regular=1 and fs.protected_fifos=1."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    file, pipe, folder, other = (shared / name for name in ("file", "pipe", "folder", "other"))
    file.write_text("")
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (file, pipe, folder / "report", shared / "new"):
        assert output_path(path) == path  # its own
    other.hardlink_to(file)
    with pytest.raises(PermissionError, match="a file with a second name"):
        output_path(file)
    other.unlink()
    _as_another_user(monkeypatch)
    assert output_path(file) == file  # the directory's owner's
    stat_of, owner = os.stat, os.getuid() + 1

    def of_another(place: str) -> os.stat_result:
        info = list(stat_of(place))
        info[stat.ST_UID] = owner
        return os.stat_result(info)

    monkeypatch.setattr(os, "stat", of_another)
    for path in (file, pipe):
        with pytest.raises(PermissionError, match="another user's file"):
            output_path(path)
    assert output_path(folder / "report") == folder / "report"
    shared.chmod(0o777)
    assert output_path(file) == file
