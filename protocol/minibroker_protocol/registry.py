"""All declared messages, by API key or as a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import minibroker_protocol.messages
import minibroker_protocol.messages.headers  # noqa: F401  (declares them)
from minibroker_protocol.dsl import APIS, DECLARED, Message, Request, Response

_PAIRS: dict[int, tuple[type[Request], type[Response]]] = {}
_VIEW = MappingProxyType(_PAIRS)


def registry() -> Mapping[int, tuple[type[Request], type[Response]]]:
    """API key → (request class, response class), of every declared API."""
    if len(_PAIRS) != len(APIS):
        _PAIRS.clear()
        _PAIRS.update({key: (APIS[key]["request"], APIS[key]["response"]) for key in sorted(APIS)})
    return _VIEW


def all_messages() -> Iterator[type[Message]]:
    """Every declared message class: requests, responses, headers and on-disk records."""
    import minibroker_protocol.coordinator_records  # noqa: F401  (declares them)

    return iter(DECLARED)
