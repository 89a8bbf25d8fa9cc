"""A temporary directory that a later start removes when its process could not."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from functools import partial

from minibroker.kernel.logs import get_logger
from minibroker_storage.disk import Locked
from minibroker_storage.os_disk import OsLock
from minibroker_storage.private_files import is_own_directory, open_private

log = get_logger(__name__)

_PREFIX = "minibroker-"
_LOCK_SUFFIX = ".lock"
_ATTEMPTS = 100


class TemporaryDirectory:
    """A directory below the system's temporary one, removed by `remove` or by the next start of any broker.

    A lock file beside it is held for as long as this process lives, so that `remove_abandoned` can tell the leftovers
    of a killed process from the directory of a running one.
    """

    def __init__(self, parent: str | None = None) -> None:
        self.path, lock = _create(parent or tempfile.gettempdir())
        self._lock: OsLock | None = lock
        self._lock_path = self.path + _LOCK_SUFFIX

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove directory and lock; a second call does nothing."""
        if self._lock is None:
            return
        _remove(self.path, self._lock, self._lock_path)
        self._lock = None


def _create(parent: str) -> tuple[str, OsLock]:
    """A new directory and its lock. Another user, who sees the lock, can be faster with the directory's name."""
    attempts = 0
    while True:
        attempts += 1
        path = os.path.join(parent, f"{_PREFIX}{os.urandom(6).hex()}")
        lock_path = path + _LOCK_SUFFIX
        lock = None
        try:
            lock = OsLock(lock_path, lock_path, str(os.getpid()), partial(open_private, create=True))
            os.mkdir(path, 0o700)
        except OSError as error:
            if lock is not None:
                _drop_lock(lock, lock_path)
            if error.errno != errno.EEXIST or attempts == _ATTEMPTS:
                raise
        else:
            return path, lock


def remove_abandoned(parent: str | None = None) -> list[str]:
    """Remove this user's temporary directories whose process has ended; returns their paths."""
    parent = parent or tempfile.gettempdir()
    removed = []
    try:
        names = os.listdir(parent)
    except OSError:
        return []
    for name in names:
        if not (name.startswith(_PREFIX) and name.endswith(_LOCK_SUFFIX)):
            continue
        lock_path = os.path.join(parent, name)
        try:
            # An empty one is being made: its owner writes into it as soon as it is locked.
            info = os.lstat(lock_path)
            if info.st_size == 0 or not stat.S_ISREG(info.st_mode):
                continue
            lock = OsLock(lock_path, lock_path, "", partial(open_private, create=False))
        except (Locked, OSError):  # in use, or another user's
            continue
        path = lock_path.removesuffix(_LOCK_SUFFIX)
        existed = is_own_directory(path)
        if _remove(path, lock, lock_path) and existed:
            log.info("removed %s, which a killed broker left behind", path)
            removed.append(path)
    return removed


def _remove(path: str, lock: OsLock, lock_path: str) -> bool:
    """The directory, then its lock. The lock of a directory that stays tells the next start to try again.

    A link, or what another user put under that name, is not touched.
    """
    try:
        if is_own_directory(path):
            shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s could not be removed: %s", path, error)
        lock.release()
        return False
    _drop_lock(lock, lock_path)
    return True


def _drop_lock(lock: OsLock, path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        # Windows removes no open file, so no other process can have opened it between the two steps.
        lock.release()
        try:
            os.unlink(path)
        except OSError as error:
            log.debug("%s stays: %s", path, error)
        return
    lock.release()
