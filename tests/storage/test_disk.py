"""One contract for every disk: memory, the operating system's, the latter without pread (as on Windows), and the one
that fails as told."""

import errno
import gc
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_storage import os_disk
from minibroker_storage.disk import Disk, DiskFull, Locked, NotFound, StorageError, SyncFailed, join
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk, OsFile

KINDS = ("memory", "faulty", "os", "os without pread", "os not durable")


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: dict[str, Callable[[], Disk]] = {
        "memory": MemoryDisk,
        "faulty": FaultyDisk,
        "os": lambda: OsDisk(str(tmp_path)),
        "os without pread": lambda: OsDisk(str(tmp_path), positional=False),
        "os not durable": lambda: OsDisk(str(tmp_path), durable=False),
    }
    found = made[request.param]()
    yield found
    found.close()


def test_append_read_and_cut(disk: Disk) -> None:
    file = disk.open("a", create=True)
    assert file.append([b"one"]) == 0
    assert file.append([bytearray(b"two"), memoryview(b"three"), b""]) == 3
    assert file.size == 11
    assert file.pread(100, 0) == b"onetwothree"
    assert file.pread(3, 3) == b"two"
    assert file.pread(3, 11) == b""
    file.truncate(4)
    assert file.append([b"X"]) == 4
    assert file.pread(100, 0) == b"onetX"
    file.pwrite(b"N", 0)
    file.pwrite(b"end", 4)
    file.sync()
    assert disk.read_bytes("a") == b"Nnetend"
    assert disk.size("a") == file.size == 7
    file.close()
    assert file.pread(1, 0) == b"N"  # opened again
    for change in (file.sync, lambda: file.pwrite(b"D", 6), lambda: file.truncate(8), lambda: file.append([b"!"])):
        file.close()
        change()
    assert disk.read_bytes("a") == b"NnetenD\0!"
    assert disk.open("a").size == 9


def test_many_buffers_in_one_append(disk: Disk) -> None:
    file = disk.open("a", create=True)
    parts = [b"%d," % i for i in range(2000)]
    file.append(parts)
    assert disk.read_bytes("a") == b"".join(parts)


def test_opening_touches_nothing_until_it_is_used(disk: Disk) -> None:
    file = disk.open("missing")
    assert not disk.exists("missing")
    with pytest.raises(NotFound):
        file.pread(1, 0)
    with pytest.raises(NotFound):
        _ = file.size
    disk.open("made", create=True).append([b"x"])
    disk.open("made", create=True)
    assert disk.read_bytes("made") == b"x"


def test_the_tree(disk: Disk) -> None:
    disk.make_dir("d/e")
    disk.make_dir("d/e")
    disk.open("d/e/f", create=True).append([b"1"])
    disk.write_atomic("d/g", b"2")
    disk.write_atomic("d/g", b"22")
    assert disk.list("d") == ["e", "g"]
    assert disk.is_dir("d/e")
    assert not disk.is_dir("d/g")
    assert not disk.is_dir("nothing")
    disk.sync_dir("d")
    disk.rename("d/e", "d/h")
    assert disk.read_bytes("d/h/f") == b"1"
    disk.rename("d/h/f", "d/g")
    assert disk.read_bytes("d/g") == b"1"
    assert disk.list("d/h") == []
    assert disk.modified_ms("d/g") >= 0
    disk.remove("d/g")
    disk.remove_tree("d")
    assert not disk.exists("d")
    for call in (disk.list, disk.remove, disk.size, disk.read_bytes, disk.remove_tree, disk.modified_ms):
        with pytest.raises(NotFound):
            call("d")
    with pytest.raises(NotFound):
        disk.rename("d", "e")
    with pytest.raises(NotFound):
        disk.write_atomic("no/file", b"")
    with pytest.raises(NotFound):
        disk.open("no/file", create=True).append([b"x"])


def test_a_file_renamed_under_an_open_handle(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append([b"old"])
    disk.open("b", create=True).append([b"new content"])
    disk.rename("a", "c")
    assert disk.open("c").pread(9, 0) == b"old"
    disk.rename("b", "c")
    assert disk.open("c").pread(99, 0) == b"new content"


@pytest.mark.parametrize("disk", [kind for kind in KINDS if kind != "faulty"], indirect=True)
def test_the_lock(disk: Disk) -> None:
    lock = disk.lock(".lock", "4711")
    with pytest.raises(Locked) as taken:
        disk.lock(".lock", "4712")
    assert taken.value.holder == "4711"
    lock.release()
    lock.release()
    disk.lock(".lock", "4712").release()


def test_paths_are_joined_with_slashes() -> None:
    assert join("", "a") == "a"
    assert join("a", "b") == "a/b"


def test_memory_is_bounded() -> None:
    disk = MemoryDisk(max_bytes=10)
    file = disk.open("a", create=True)
    file.append([b"12345678"])
    for write in (
        lambda: file.append([b"9", b"01"]),
        lambda: file.pwrite(b"abc", 8),
        lambda: disk.write_atomic("b", b"abc"),
        lambda: file.truncate(11),
    ):
        with pytest.raises(DiskFull):
            write()
    file.pwrite(b"12", 0)
    assert disk.read_bytes("a") == b"12345678"
    assert disk.used_bytes == 8
    file.truncate(2)
    disk.write_atomic("b", b"abcdefgh")
    assert disk.used_bytes == 10
    disk.write_atomic("b", b"")
    disk.remove("a")
    assert disk.used_bytes == 0


def test_a_read_from_memory_copies_once() -> None:
    file = MemoryDisk().open("a", create=True)
    file.append([bytes(1 << 20)])
    tracemalloc.start()
    try:
        data = file.pread(1 << 20, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data == bytes(1 << 20)
    assert peak < 1.5 * (1 << 20)


def test_every_write_to_memory_has_its_time() -> None:
    now = [1]
    disk = MemoryDisk(now_ms=lambda: now[0])
    file = disk.open("a", create=True)
    file.append([b"ab"])
    now[0] = 2
    file.pwrite(b"c", 0)
    assert disk.modified_ms("a") == 2
    now[0] = 3
    file.append([b"d"])
    assert disk.modified_ms("a") == 3


def test_a_file_truncated_during_a_read_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(bytearray):
        def __len__(self) -> int:
            return 20  # as it was before another thread truncated it

    disk = MemoryDisk()
    file = disk.open("a", create=True)
    monkeypatch.setattr(disk, "content", lambda path: Longer(b"0123456789"))
    assert file.pread(20, 4) == b"456789"


def test_handles_are_bounded_and_the_least_used_go_first(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path), max_handles=3)
    files = [disk.open(f"f{i}", create=True) for i in range(10)]
    for turn in range(3):
        for i, file in enumerate(files):
            file.append([b"%d" % i])
            assert disk.open_handles <= 3, turn
    assert all(file.pread(9, 0) == b"%d%d%d" % (i, i, i) for i, file in enumerate(files))
    for file in files:
        file.close()
    assert disk.open_handles == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts handles as Linux shows them")
def test_closing_a_disk_gives_every_handle_back(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    files = [disk.open(f"f{i}", create=True) for i in range(3)]
    for file in files:
        file.append([b"x"])

    def held() -> list[str]:
        links = (fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return [target for fd in links if (target := os.readlink(fd)).startswith(str(tmp_path))]

    assert len(held()) == 3
    disk.close()
    assert held() == []
    assert [file.pread(1, 0) for file in files] == [b"x"] * 3  # opened again
    disk.close()


def test_a_file_written_at_once_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    take = os.open

    def taking(path: str, flags: int, mode: int) -> int:
        opened.append(take(path, flags, mode))
        return opened[-1]

    monkeypatch.setattr(os, "open", taking)
    disk = OsDisk(str(tmp_path))
    disk.write_atomic("a", b"x")
    assert opened
    for fd in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_was_synced_outlasts_one_power_loss_after_the_other() -> None:
    disk = FaultyDisk()
    disk.make_dir("d")
    disk.sync_dir("")
    disk.write_atomic("d/a", b"x")
    for _ in range(3):
        disk = disk.after_power_loss()
        assert disk.read_bytes("d/a") == b"x"


@pytest.mark.parametrize("call", ["append", "pwrite"])
def test_a_write_that_fails_leaves_half_of_it(call: str) -> None:
    disk = FaultyDisk()
    disk.write_atomic("a", b"")
    file = disk.open("a")
    disk.fail_at = disk.calls + 1
    with pytest.raises(StorageError):
        file.append([b"abcd"]) if call == "append" else file.pwrite(b"abcd", 0)
    assert bytes(disk.read_bytes("a")) == b"ab"


def test_of_what_was_not_synced_any_part_may_outlast_a_power_loss() -> None:
    """What a filesystem may do: keep a beginning of the writes, the last of them torn, or any of them."""
    disk = FaultyDisk()
    disk.make_dir("d")
    disk.sync_dir("")
    disk.write_atomic("d/a", b"")
    file = disk.open("d/a")
    for part in (b"aa", b"bb", b"cc"):
        file.append([part])
    left = {bytes(disk.after_power_loss(Random(seed)).read_bytes("d/a")) for seed in range(200)}
    beginnings = {b"aabbcc"[:size] for size in range(7)}
    assert left >= beginnings
    assert left - beginnings == {bytes(2) + b"bb", bytes(4) + b"cc", bytes(2) + b"bbcc", b"aa" + bytes(2) + b"cc"}


@pytest.mark.parametrize(("soft", "most"), [(None, 2000), (1 << 20, 2000), (1024, 256), (8, 16)])
def test_a_quarter_of_the_soft_limit_is_for_files(monkeypatch: pytest.MonkeyPatch, soft: int | None, most: int) -> None:
    assert 16 <= os_disk.default_max_handles() <= os_disk.MAX_HANDLES
    resource = pytest.importorskip("resource")
    limits = (resource.RLIM_INFINITY if soft is None else soft, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    assert os_disk.default_max_handles() == most


def test_out_of_handles_gives_one_back_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(str(tmp_path))
    disk.open("a", create=True).append([b"1"])
    disk.open("b", create=True)
    real, refusals = os.open, [1]

    def refuse_once(*args: object) -> int:
        if refusals and refusals.pop():
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse_once)
    file = disk.open("b")
    file.append([b"2"])
    assert disk.open_handles == 1
    assert disk.read_bytes("b") == b"2"


def test_out_of_handles_with_none_to_give_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(str(tmp_path))
    file = disk.open("a", create=True)

    def refuse(*args: object) -> int:
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError) as error:
        file.pread(1, 0)
    assert error.value.filename == "a"


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="the platform writes by seeking")
def test_a_write_that_breaks_off_leaves_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    calls = []

    def break_off(fd: int, data: bytes, offset: int) -> int:
        if offset < 5 or offset > 8:
            return real(fd, data, offset)
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:3], offset)

    monkeypatch.setattr(os, "pwrite", break_off)
    disk = OsDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.append([b"whole"])
    with pytest.raises(DiskFull):
        file.append([b"half-written"])
    assert file.size == 5
    assert disk.read_bytes("a") == b"whole"
    file.append([b"!"])
    assert disk.read_bytes("a") == b"whole!"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["os", "memory"])
def test_a_disk_that_refuses_writes_loses_nothing_and_takes_them_again(tmp_path: Path, kind: str, code: int) -> None:
    disk: OsDisk | MemoryDisk = OsDisk(str(tmp_path)) if kind == "os" else MemoryDisk()
    file = disk.open("a", create=True)
    file.append([b"kept"])
    disk.refuse_writes(code)
    assert disk.refused == code
    for write in (
        lambda: file.append([b"x"]),
        lambda: file.append([b"x", b"y"]),
        lambda: file.pwrite(b"x", 0),
        lambda: disk.write_atomic("b", b"x"),
    ):
        with pytest.raises(StorageError) as error:
            write()
        assert error.value.errno == code
        assert isinstance(error.value, DiskFull) == (code == errno.ENOSPC)
    assert (file.size, file.pread(9, 0)) == (4, b"kept")
    disk.rename("a", "c")
    disk.refuse_writes(None)
    assert disk.refused is None
    moved = disk.open("c")
    moved.append([b", ", b"and more"])
    moved.pwrite(b"K", 0)
    assert disk.read_bytes("c") == b"Kept, and more"


@pytest.mark.skipif(not hasattr(os, "pwritev"), reason="the platform has no gathering write")
def test_short_gathering_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(str(tmp_path))
    file = disk.open("a", create=True)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: os.pwrite(fd, b"".join(buffers)[:7], offset))
    file.append([b"first", b"second", b"third"])
    assert disk.read_bytes("a") == b"firstsecondthird"


def test_nothing_is_synced_on_a_disk_that_does_not_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            synced.append(descriptor)

    monkeypatch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", sync)
    for durable in (False, True):
        disk = OsDisk(str(tmp_path), durable=durable)
        file = disk.open("a", create=True)
        file.append([b"x"])
        file.sync()
        disk.write_atomic("b", b"y")
        assert len(synced) == 2 * durable


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_no_failed_sync_counts_as_one_that_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The system may have dropped what it could not write, a full disk among the reasons: fsync(2)."""

    def fail(_: int) -> None:
        raise OSError(code, "sorry")

    disk = OsDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.append([b"x"])
    for name in {"fdatasync", "fsync"} & {*dir(os)}:
        monkeypatch.setattr(os, name, fail)
    syncs = [file.sync, lambda: disk.write_atomic("b", b"y")]
    if os.name == "posix":  # Windows opens no directories
        syncs.append(lambda: disk.sync_dir(""))
    for sync in syncs:
        with pytest.raises(SyncFailed, match="sorry") as error:
            sync()
        assert not isinstance(error.value, DiskFull)
    assert not disk.exists("b")


@pytest.mark.skipif(os.name != "posix", reason="Windows opens no directories")
def test_a_directory_is_synced_on_a_disk_that_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a file that was made or renamed may be gone after a power loss."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    (tmp_path / "d").mkdir()
    for durable in (False, True):
        OsDisk(str(tmp_path), durable=durable).sync_dir("d")
        assert synced == [(tmp_path / "d").stat().st_ino] * durable


@pytest.mark.skipif(os.name != "posix", reason="Windows opens no directories")
def test_the_handle_put_aside_serves_when_the_process_has_none_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(str(tmp_path))
    disk.open("a", create=True).append([b"1"])
    disk.close()
    told: list[None] = []
    disk.exhausted = lambda: told.append(None)
    disk.keep_spare()
    free, really_open, really_close = [0], os.open, os.close

    def opening(path: str, flags: int, mode: int = 0o777) -> int:
        if not free[0]:
            raise OSError(errno.EMFILE, "Too many open files")
        free[0] -= 1
        return really_open(path, flags, mode)

    def closing(fd: int) -> None:
        free[0] += 1
        really_close(fd)

    gc.collect()  # or what other tests left gives its handles back meanwhile
    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "close", closing)
    assert disk.open("a").pread(1, 0) == b"1"
    assert told == [None]
    disk.close()
    free[0] = 0
    with pytest.raises(StorageError):
        disk.open("a").pread(1, 0)
    assert len(told) == 2
    disk.keep_spare()  # none to be had: no error
    free[0] = 1
    disk.keep_spare()
    assert disk.open("a").pread(1, 0) == b"1"
    monkeypatch.undo()
    disk.close()


def test_replacing_or_removing_a_file_does_not_look_at_all_that_are_open(tmp_path: Path) -> None:
    """Thousands of logs are closed at the end, each with files that are written anew."""

    class Unlisted(dict[str, OsFile]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("every open file was looked at")

        items = __iter__  # type: ignore[assignment]

    disk = OsDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.append([b"old"])
    disk._open = Unlisted(disk._open)
    disk.write_atomic("a", b"new", sync=False)
    assert file.handle is None
    file.pread(1, 0)
    disk.remove("a")
    assert (file.handle, disk.open_handles) == (None, 0)


def test_a_directory_that_is_moved_takes_its_open_files_along(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    disk.make_dir("d")
    file, other = disk.open("d/a", create=True), disk.open("b", create=True)
    file.append([b"1"])
    other.append([b"2"])
    disk.rename("d", "e")
    assert file.handle is None
    assert other.handle is not None
    assert disk.open("e/a").pread(1, 0) == b"1"
    disk.close()
