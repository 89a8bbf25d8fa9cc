"""What ties the records of an application's output topic to those of its input topic."""

from __future__ import annotations

from typing import Any, NamedTuple

from minibroker.rules.lineage_keys import POSITION, bytes_of, checked_key, place_of, values_of
from minibroker_lab.judge.history import text_of
from minibroker_protocol.records import Record


class Lineage(NamedTuple):
    """Each record of `source` makes one of `target`.

    key: the value that both have (`lineage_keys.HOW`).
    """

    source: str
    target: str
    key: str = "value"

    def of_input(self, topic: str, partition: int, record: Record) -> list[str]:
        """The keys of a record of `source`."""
        if self.key.startswith(POSITION):
            return [f"{topic}-{partition}@{record.offset}"]
        return self._values(record)

    def of_output(self, record: Record) -> list[str]:
        """The keys of a record of `target`; one that names no place, where it should, has a key that no input has."""
        if not self.key.startswith(POSITION):
            return self._values(record)
        places = [place_of(value) for value in _values(self.key, record)] or [None]
        return ["no position" if place is None else "{}-{}@{}".format(*place) for place in places]

    def _values(self, record: Record) -> list[str]:
        keys = [text_of(bytes_of(value)) for value in _values(self.key, record)]
        # A missing key or value counts as one: the output must have as many such records as the input.
        return keys or ([""] if self.key in ("key", "value") else [])


def lineage_of(text: str, key: str) -> Lineage:
    """`--lineage IN=OUT` and `--lineage-key`. Raises ValueError."""
    source, equals, target = text.partition("=")
    if not equals or not source or not target:
        raise ValueError(f"expected IN=OUT, got {text!r}")
    return Lineage(source, target, checked_key(key))


def _values(how: str, record: Record) -> list[Any]:
    key, value = (None if part is None else bytes(part) for part in (record.key, record.value))
    return list(values_of(how, key, value, record.headers))
