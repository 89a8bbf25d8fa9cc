"""Files and directories in places that other users may write to: the system's temporary directory, a shared cache.

Another user can put a link, a pipe or a directory of their own where this process expects its own. Each function checks
the opened file: no link is followed, the owner is this process's user, the directories have mode 0700. Windows has
neither owners in this sense nor ``O_NOFOLLOW``; its temporary directory belongs to one user.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_BASE_FLAGS = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
# Without O_NONBLOCK, opening a pipe could wait for its other end.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_ROOT = 0
_MOST_LINKS = 40
"""With more the system refuses the path."""


def open_without_links(path: str, *, create: bool = True, exclusive: bool = False, mode: int = 0o666) -> int:
    """A descriptor to read and write a regular file, which is created unless it exists.

    exclusive: it must not exist. Raises OSError, also for a link and for what is no regular file.
    """
    flags = _BASE_FLAGS | _NO_LINK | (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0)
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
        raise _link(path)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        # FreeBSD has EMLINK where Linux and macOS have ELOOP.
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise _link(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def open_private(path: str, *, create: bool) -> int:
    """A descriptor of a file of this process's user that has no other name.

    create: it is new, with mode 0600.

    Raises OSError; PermissionError for another user's file, and for one with a second name (a hard link).
    """
    descriptor = open_without_links(path, create=create, exclusive=create, mode=0o600)
    info = os.fstat(descriptor)
    if not _is_own(info) or info.st_nlink > 1:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "belongs to another user", path)
    return descriptor


def is_own_directory(path: str) -> bool:
    """Whether this is a directory of this process's user, and no link to one."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and _is_own(info)


def user_cache(*names: str) -> Path:
    """A directory below ``minibroker`` in $XDG_CACHE_HOME (~/.cache when unset or relative), created with mode 0700.

    Programs are started from it, so it must be this user's or root's. Raises OSError for another user's directory or
    link, and for a directory that everybody may write to.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    place = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("minibroker", *names):
        place /= name
        _make_private(str(place))
    return place


def output_path(path: str | Path) -> Path:
    """The path, to write to. Raises PermissionError for what another user has put into a directory like /tmp: a link on
    the way, or the file itself.

    As Linux refuses it with ``fs.protected_symlinks``, ``fs.protected_regular`` and ``fs.protected_fifos``, which not
    every system has: in a sticky directory that everybody may write to, a link is followed, and a file or pipe is
    written to, if it belongs to this user or to the directory's owner. A file with a second name may be one of this
    user's that another user has linked there. The other user may still put something there between this check and the
    opening of the file.
    """
    if sys.platform != "win32":
        _check_output(os.path.abspath(path))
    return Path(path)


def _check_output(path: str) -> None:
    rest = path.split("/")[::-1]
    at, links = "", 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        place = f"{at}/{name}"
        try:
            info = os.lstat(place)
        except OSError:
            return  # what opens it says why
        directory = os.stat(at or "/")
        shared = directory.st_mode & stat.S_ISVTX and directory.st_mode & stat.S_IWOTH
        strange = shared and info.st_uid not in (os.geteuid(), directory.st_uid)
        if not stat.S_ISLNK(info.st_mode):
            if strange and (stat.S_ISREG(info.st_mode) or stat.S_ISFIFO(info.st_mode)):
                raise PermissionError(errno.EACCES, "another user's file in a shared directory", path)
            if shared and stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
                raise PermissionError(errno.EACCES, "a file with a second name in a shared directory", path)
            at = place
            continue
        if strange:
            raise PermissionError(errno.EACCES, "another user's symbolic link in a shared directory", path)
        links += 1
        if links > _MOST_LINKS:
            return
        target = os.readlink(place)
        at = "" if target.startswith("/") else at
        rest += target.split("/")[::-1]


def replace_private(path: Path, text: str, mode: int, *, durable: bool = False) -> None:
    """Write a small file under its name in one step, into a directory of the user's.

    mode: its permissions.

    durable: also a power loss leaves the old text or the new one. Only one process may write the file, and replaces
    what it left unfinished when it was killed.
    """
    if durable:
        unfinished = str(path.with_name(f".{path.name}-unfinished"))
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
        descriptor = open_private(unfinished, create=True)
    else:
        descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(unfinished, mode)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _make_private(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
        return
    except FileExistsError:
        info = os.lstat(path)
    if sys.platform == "win32":
        return
    if stat.S_ISLNK(info.st_mode) and _is_trusted(info):
        info = os.stat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory, or another user's link", path)
    if not _is_trusted(info):
        raise PermissionError(errno.EPERM, "belongs to another user", path)
    if info.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "every user may write to it", path)
    if info.st_mode & stat.S_IWGRP and _is_own(info):
        os.chmod(path, 0o700)


def _is_own(info: os.stat_result) -> bool:
    return sys.platform == "win32" or info.st_uid == os.geteuid()


def _is_trusted(info: os.stat_result) -> bool:
    return _is_own(info) or info.st_uid == _ROOT


def _link(path: str) -> OSError:
    return OSError(errno.ELOOP, "a symbolic link, which is not followed here", path)
