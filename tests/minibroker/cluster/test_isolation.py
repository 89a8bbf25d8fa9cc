"""No object of one broker can be reached from another: what they share is what was handed in from outside."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator

from many_brokers import ManyBrokers

from minibroker.broker.broker import Broker
from minibroker.config.settings import Settings
from minibroker.metadata.image import MetadataImage
from minibroker.releases.semantics import Semantics
from minibroker_storage.memory_disk import MemoryDisk

# Code and what never changes.
_NEVER_CHANGES = (types.ModuleType, type, types.CodeType, str, bytes, int, float, bool, type(None))
_SHARED = (MetadataImage, Semantics, Settings)


def reachable(root: object, boundary: set[int]) -> Iterator[object]:
    """Every object that can be reached from `root` without passing through `boundary`, code or frozen values."""
    seen = set(boundary)
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, types.FunctionType):
            waiting += [cell.cell_contents for cell in found.__closure__ or () if _filled(cell)]
            waiting += [*(found.__defaults__ or ()), *(found.__kwdefaults__ or {}).values()]
            continue
        if isinstance(found, (*_NEVER_CHANGES, *_SHARED)):
            continue
        waiting += gc.get_referents(found)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def handed_in(brokers: ManyBrokers) -> set[int]:
    """The world outside a broker: clock, timers, threads and the wire."""
    cluster = brokers.cluster
    return {id(o) for o in (brokers.clock, brokers.timers, cluster.network, brokers.executor)}


def used(brokers: ManyBrokers) -> None:
    """Some life: replicated records, a coordinator, a change of leaders."""
    brokers.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    brokers.coordinator("tx")
    brokers.coordinator("group", 0)
    for index in range(3):
        brokers.produce("t", b"value", index=index, producer_id=5, producer_epoch=0, base_sequence=0)
    brokers.settle(600)
    brokers.cluster.move_leader("t", 0, 2)
    brokers.cluster.kill_broker(3)
    brokers.cluster.start_broker(3)
    brokers.settle(2000)
    brokers.produce("t", b"value")
    brokers.settle(600)


def test_no_object_of_one_broker_is_reachable_from_another() -> None:
    brokers = ManyBrokers(3)
    used(brokers)
    outside = handed_in(brokers)
    own: dict[int, set[int]] = {}
    keep: list[object] = []
    for node_id, broker in brokers.cluster.brokers.items():
        found = list(reachable(broker, outside))
        keep += found
        others = [o.node_id for o in found if isinstance(o, Broker) and o is not broker]
        assert others == [], f"broker {node_id} reaches brokers {others}"
        disks = [o for o in found if isinstance(o, MemoryDisk)]
        assert disks == [brokers.disks[node_id]]
        own[node_id] = {id(o) for o in found if _of_a_broker(o)}
        assert len(own[node_id]) > 50  # the walk went into partitions, logs and coordinators
    for node_id, objects in own.items():
        for other, theirs in own.items():
            if node_id < other:
                both = [o for o in keep if id(o) in objects & theirs]
                assert not both, f"brokers {node_id} and {other} share {both[:3]!r}"
    brokers.stop()


def test_the_walk_finds_a_shared_object() -> None:
    brokers = ManyBrokers(2)
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"x")
    brokers.cluster.brokers[1].partition("t", 0).watch(lambda: brokers.partition(2, "t").notify())
    found = list(reachable(brokers.cluster.brokers[1], handed_in(brokers)))
    assert any(isinstance(o, Broker) and o.node_id == 2 for o in found)
    brokers.stop()


def _of_a_broker(found: object) -> bool:
    """Instances of this project's classes that can change; enumerations, frozen values and code are common to all."""
    kind = type(found)
    if isinstance(found, (*_NEVER_CHANGES, *_SHARED)) or not kind.__module__.startswith("minibroker"):
        return False
    frozen = getattr(kind, "__dataclass_params__", None)
    return not (frozen is not None and frozen.frozen) and not hasattr(kind, "__members__")
