"""Which disk each broker of a cluster has, and under which node id."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError
from minibroker.controller.journal import JOURNAL
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker.server.options import Options
from minibroker.server.temporary_directory import TemporaryDirectory
from minibroker_storage.checkpoints import CLEANER_OFFSET, whole_number
from minibroker_storage.directory import BROKER_DIR, META_FILE, VERSION_FILE, partition_of
from minibroker_storage.disk import Disk
from minibroker_storage.lost import CHECKPOINTS
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk, default_max_handles

_FIRST_NODE_ID = 1
_NAMED = 3  # entries that a refusal names
_FILES = (META_FILE, VERSION_FILE, JOURNAL, *CHECKPOINTS, CLEANER_OFFSET, "bootstrap.checkpoint")
"""Prefixes of the file names in data directories of minibroker and Kafka."""


class BrokerDisk(NamedTuple):
    """One broker's own."""

    node_id: int
    disk: Disk
    log_dir: str
    volume_bytes: Callable[[], tuple[int, int]]


class BrokerDisks:
    """The disks of a cluster.

    A single broker's directory is the data directory itself, laid out as Kafka's; several brokers have one directory
    each in it, and the controller's journal beside them.

    in_memory: everything is kept in memory, so no disk work is slow.

    Raises ConfigError when the data directory was created with another number of brokers.
    """

    def __init__(self, options: Options, settings: Settings) -> None:
        self.in_memory = options.ephemeral
        self._temporary: list[Callable[[], None]] = []
        self._durable = options.data_dir is not None
        count = len(options.ports)
        self._share = settings.get_int("minibroker.ephemeral.max.bytes") // count
        self._handles = max(16, default_max_handles() // count)
        node_id = _given_node_id(settings, count)
        self._root, first = "", _FIRST_NODE_ID if node_id is None else node_id
        if not self.in_memory:
            root = options.data_dir
            if root is None:
                directory = TemporaryDirectory()
                self._temporary.append(directory.remove)
                root = directory.path
            self._root = os.path.abspath(root)
            _check_layout(self._root, count)
            if count == 1:
                first = _single_node_id(self._root, node_id)
        self.brokers: list[BrokerDisk] = []
        if count == 1:
            self.brokers.append(self._make(first, self._root))
            self.journal_disk = self.brokers[0].disk
        else:
            for i in range(count):
                self.add(first + i)
            self.journal_disk = self._make(0, self._root).disk

    def _make(self, node_id: int, path: str) -> BrokerDisk:
        if self.in_memory:
            disk = MemoryDisk(self._share, wall_ms)
            return BrokerDisk(node_id, disk, "memory", lambda: (disk.max_bytes, disk.max_bytes - disk.used_bytes))
        files = OsDisk(path, durable=self._durable, max_handles=self._handles)
        return BrokerDisk(node_id, files, path, partial(_volume_bytes, path))

    def add(self, node_id: int) -> BrokerDisk:
        """A disk for a broker that is added later, of the same kind as the others."""
        self.brokers.append(self._make(node_id, os.path.join(self._root, BROKER_DIR.format(node_id))))
        return self.brokers[-1]

    def close(self) -> None:
        """Close the journal's disk and remove what was temporary; the brokers close their own disks."""
        self.journal_disk.close()
        for remove in self._temporary:
            remove()


def _check_layout(root: str, count: int) -> None:
    if os.path.lexists(root) and not os.path.isdir(root):  # a link to nothing too
        raise ConfigError(f"data directory {root} is not a directory")
    made_by = 1 if os.path.exists(os.path.join(root, META_FILE)) else 0
    while os.path.isdir(os.path.join(root, BROKER_DIR.format(made_by + 1))):
        made_by += 1
    if made_by not in (0, count):
        raise ConfigError(f"data directory {root} is that of {made_by} broker(s), not of {count}")
    if made_by == 0 and os.path.isdir(root) and (others := sorted(filter(_is_strange, os.listdir(root)))):
        named = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
        raise ConfigError(
            f"data directory {root} has no {META_FILE}, but {named}: name an empty directory, or a new one"
        )


def _is_strange(name: str) -> bool:
    """Whether no data directory has an entry of this name; a broker must not start on a directory that has one."""
    if name.startswith(".") or name == "lost+found":
        return False
    return partition_of(name) is None and not name.startswith(_FILES)


def _given_node_id(settings: Settings, count: int) -> int | None:
    """The node id that the settings give, None without one. Raises ConfigError when there are several brokers."""
    for name in ("node.id", "broker.id"):
        value = settings.get(name)
        if value is not None:
            if count > 1:
                raise ConfigError(f"{name} is for a single broker; several have 1, 2, …")
            return cast("int", value)
    return None


def _single_node_id(root: str, wanted: int | None) -> int:
    """What meta.properties says, so that a directory made by a Kafka of any node id can be taken up.

    ConfigError when that is not the given one, as Kafka refuses it as well.
    """
    try:
        with open(os.path.join(root, META_FILE), encoding="latin-1") as file:
            for line in file:
                name, _, value = line.partition("=")
                node_id = whole_number(value.strip()) if name.strip() == "node.id" else None
                if node_id is not None:
                    if wanted not in (None, node_id):
                        raise ConfigError(f"data directory {root} is that of node.id {node_id}, not of {wanted}")
                    return node_id
    except OSError:
        pass
    return _FIRST_NODE_ID if wanted is None else wanted


def _volume_bytes(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free
