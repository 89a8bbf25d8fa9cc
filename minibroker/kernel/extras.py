"""The optional packages, and the hint that names the missing ones, for every feature."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

# Module → (package, the extra of pyproject.toml that installs it)
_MODULES = {
    "confluent_kafka": ("confluent-kafka", "demo"),
    "aiokafka": ("aiokafka", "demo"),
    "scramp": ("scramp", "sasl"),
    "trustme": ("trustme", "tls"),
    "testcontainers": ("testcontainers", "container"),
    "prometheus_client": ("prometheus-client", "metrics"),
    "yaml": ("PyYAML", "conformance"),
    "pyspark": ("pyspark", "spark"),
    "pandas": ("pandas", "spark"),
    "pyarrow": ("pyarrow", "audit"),
    "numpy": ("numpy", "audit"),
}


def is_executable_file() -> bool:
    """Whether this is the program without a Python beside it (`tools/executable`): nothing can be installed into it."""
    return getattr(sys, "frozen", False)


def hint(what: str, *modules: str) -> str:
    """One line that says that `what` needs the packages of these modules, all of one extra, and how to install them.

    The command is this Python's pip, which finds minibroker installed, from wherever it came, and adds the extra to it.
    """
    packages = [_MODULES[module][0] for module in modules]
    return f"{what} needs {' and '.join(packages)}: {install(_MODULES[modules[0]][1])}"


def install(extra: str) -> str:
    """The command that adds an extra, in quotes that every shell understands; without pip, as in the image, what is
    missing."""
    if is_executable_file():
        return f'install "minibroker[{extra}]" with pip: the executable file does not have it'
    if importlib.util.find_spec("pip") is None:
        return f'install "minibroker[{extra}]" for {sys.executable}, which has no pip'
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f'{python} -m pip install "minibroker[{extra}]"'


def hint_for(what: str, error: ImportError) -> str | None:
    """The hint for an import that failed; None when the module belongs to no extra."""
    module = (error.name or "").partition(".")[0]
    return hint(what, module) if module in _MODULES else None


def missing(modules: Iterable[str]) -> list[str]:
    """Those of these modules that are not installed."""
    return [module for module in modules if not _installed(module)]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
