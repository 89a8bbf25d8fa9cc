"""Requests with very many elements in one of their lists, for every API and every list."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

from minibroker.handlers.table import apis
from minibroker.requests.api import Api
from minibroker_protocol.dsl import Request
from minibroker_protocol.shapes import Kind, Shapes
from minibroker_protocol.structs import Struct

_NAMES = ("name", "topic", "topic_name", "resource_name")
_INDEXES = ("partition_index", "partition", "partition_id", "index")
_SMALL = ("replication_factor", "num_partitions", "count")


def list_paths(api: Api, version: int) -> Iterator[tuple[str, ...]]:
    """The lists of a request as paths of field names."""
    shapes = Shapes(api.request, version)

    def walk(kind: type[Struct], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in (*shapes.present(kind), *shapes.tagged(kind)):
            shape = shapes.kind(field)
            if shape.array:
                yield (*path, field.name)
            if shape.struct is not None:
                yield from walk(shape.struct, (*path, field.name))

    return walk(api.request, ())


def places() -> list[tuple[Api, tuple[str, ...]]]:
    """Every list of every API that is served, in the last version that has it."""
    places = []
    for api in apis().values():
        paths: dict[tuple[str, ...], int] = {}
        for version in range(api.min_version, api.max_version + 1):
            paths |= dict.fromkeys(list_paths(api, version), version)
        places += [(api, path) for path in paths]
    return places


def last_version(api: Api, path: tuple[str, ...]) -> int:
    """The last version whose request has the list."""
    versions = range(api.min_version, api.max_version + 1)
    return max(version for version in versions if path in list_paths(api, version))


PARTITIONS = 128
"""Partitions of the topic that `large_request` names, where nothing else is said."""


def large_request(
    api: Api, path: tuple[str, ...], count: int, topic: str | None = None, partitions: int = PARTITIONS
) -> tuple[Request, int]:
    """A request whose list at `path` has `count` elements, every other list one or, where it may, none, and its
    version. Names and indexes of the elements differ, as far as there are `partitions`; topics are called `topic`,
    where one is given and the list is of something else."""
    version = last_version(api, path)
    made = _Maker(Shapes(api.request, version), path, count, topic, partitions).struct(api.request, (), 0)
    assert isinstance(made, Request)
    return made, version


def twice(request: Request, path: tuple[str, ...]) -> Request:
    """The same with every element of the list at `path` twice: all of them once, then all again."""
    holder: Any = request
    for name in path[:-1]:
        holder = getattr(holder, name)
        holder = holder[0] if isinstance(holder, list) else holder
    setattr(holder, path[-1], getattr(holder, path[-1]) * 2)
    return request


class _Maker:
    def __init__(self, shapes: Shapes, path: tuple[str, ...], count: int, topic: str | None, partitions: int) -> None:
        self.shapes, self.path, self.count, self.topic = shapes, path, count, topic
        self.partitions = partitions

    def struct(self, kind: type[Struct], here: tuple[str, ...], number: int) -> Struct:
        values: dict[str, Any] = {field.name: self.shapes.default(field) for field in kind.__fields__}
        for field in (*self.shapes.present(kind), *self.shapes.tagged(kind)):
            values[field.name] = self.field(field.name, self.shapes.kind(field), (*here, field.name), number)
        return kind(**values)

    def field(self, name: str, kind: Kind, here: tuple[str, ...], number: int) -> Any:
        if not kind.array:
            return self.value(name, kind, here, number)
        element = Kind(kind.code, kind.struct, False)
        if here == self.path and kind.struct is not None:
            first = self.struct(kind.struct, here, 0)
            return [first, *(self.numbered(first, i) for i in range(1, self.count))]
        return [self.value(name, element, here, i) for i in range(self.count if here == self.path else 1)]

    def numbered(self, first: Struct, number: int) -> Struct:
        """The same with names and indexes of its own; what its lists hold is shared."""
        made = copy(first)
        for field in self.shapes.present(type(first)):
            kind = self.shapes.kind(field)
            if not kind.array and kind.struct is None:
                setattr(made, field.name, self.value(field.name, kind, self.path, number))
        return made

    def value(self, name: str, kind: Kind, here: tuple[str, ...], number: int) -> Any:
        if kind.struct is not None:
            return self.struct(kind.struct, here, number)
        if kind.code == "string":
            if name in _NAMES and self.topic is not None and here[: len(self.path)] != self.path:
                return self.topic
            return f"{name}{number}"
        if kind.code in ("bytes", "records"):
            return b""
        if kind.code == "16s":
            return number.to_bytes(16, "big")
        if kind.code == "?":
            return False
        if kind.code == "d":
            return 0.0
        if name in _SMALL:
            return 1
        return number % self.partitions if name in _INDEXES or "partition" in name else 0
