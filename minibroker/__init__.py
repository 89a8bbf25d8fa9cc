"""A Kafka-protocol broker for testing what Kafka promises about exactly-once.

with Minibroker(topics={"orders": 3}) as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
"""

from __future__ import annotations

from minibroker.version import __version__

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than all else that `minibroker --version` does
if TYPE_CHECKING:
    from minibroker.config.types import ConfigError
    from minibroker.server.service import StartError
    from minibroker.testing.embedded import Minibroker
    from minibroker.testing.proxy import Proxy

__all__ = ["ConfigError", "Minibroker", "Proxy", "StartError", "__version__"]

# Loaded when first asked for: the command line and type checkers need none of it.
_LAZY = {
    "ConfigError": "minibroker.config.types",
    "Minibroker": "minibroker.testing.embedded",
    "Proxy": "minibroker.testing.proxy",
    "StartError": "minibroker.server.service",
}


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        from minibroker.kernel.words import near

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near(name, _LAZY)}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
