"""What the executable file runs: `minibroker`, or, for its own children, `-P -m MODULE` as Python takes it.

PyInstaller's bootloader unpacks the file into `_MEI…` below the temporary directory, starts this in a process of its
own, and removes the directory when that process ends. Two things are lost when the bootloader is killed: its child goes
on running, and the directory stays. So the child asks the kernel to be ended with its parent, and each start removes
the directories that no process holds any more.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from minibroker.cli import program
from minibroker_storage.disk import Locked
from minibroker_storage.os_disk import OsLock
from minibroker_storage.private_files import is_own_directory, open_private

LOCK = "minibroker.lock"
PR_SET_PDEATHSIG = 1


def main() -> None:
    unpacked = Path(sys._MEIPASS)  # type: ignore[attr-defined]  # set by PyInstaller
    held = hold(unpacked)
    if held is not None:  # a child of this program runs from the files of its parent, which ends it
        end_with_bootloader()
        remove_abandoned(unpacked)
    own_libraries_are_not_of_children()
    if sys.argv[1:3] == ["-P", "-m"] and len(sys.argv) > 3:
        del sys.argv[1:3]
        module = sys.argv.pop(1)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        program()


def end_with_bootloader() -> None:
    """SIGTERM when the bootloader ends, however it does; at once if it has ended already. Only Linux can."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def hold(unpacked: Path) -> OsLock | None:
    """The lock that says that these files are in use; None if another process of this program has it."""
    path = str(unpacked / LOCK)
    made = path if sys.platform == "win32" else f"{path}.new"  # Windows renames no open file
    if os.path.lexists(path):
        return None
    lock = OsLock(made, made, str(os.getpid()), partial(open_private, create=True))
    if made != path:  # under this name it is locked from the first moment on, whoever looks for what is abandoned
        os.rename(made, path)
    return lock


def remove_abandoned(own: Path) -> None:
    """Remove this user's unpacked files whose process was killed."""
    for directory in own.parent.glob("_MEI*"):
        lock_path = str(directory / LOCK)
        if directory == own or not is_own_directory(str(directory)) or not os.path.lexists(lock_path):
            continue  # of another program, or just being unpacked
        try:
            lock = OsLock(lock_path, lock_path, "", partial(open_private, create=False))
        except (Locked, OSError):
            continue
        shutil.rmtree(directory, ignore_errors=True)
        lock.release()


def own_libraries_are_not_of_children() -> None:
    """The bootloader points LD_LIBRARY_PATH at the unpacked files: a judged application would load those."""
    before = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
    os.environ.pop("LD_LIBRARY_PATH", None)
    if before is not None:
        os.environ["LD_LIBRARY_PATH"] = before


if __name__ == "__main__":
    main()
