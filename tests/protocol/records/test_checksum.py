"""CRC-32C: the compiled module by itself, or the library around it, and what it costs to have it."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from crc32c import crc32c

from minibroker_protocol.records import batch

ROOT = Path(__file__).resolve().parents[3]
CHECK = 0xE3069283  # of "123456789", from the catalogue of parametrised CRC algorithms
FIRST_USE = """
import sys
from importlib.machinery import ExtensionFileLoader
from minibroker_protocol.records import batch
from minibroker_protocol.records.batch import crc32c as taken_before
loads = []
load = ExtensionFileLoader.exec_module
ExtensionFileLoader.exec_module = lambda loader, module: loads.append(module.__name__) or load(loader, module)
assert batch.crc32c(b"123456789") == taken_before(b"123456789") == taken_before(b"123456789") == 0xE3069283
assert sum("crc32c" in name for name in loads) == 1, loads
assert batch.crc32c is not taken_before
assert "importlib.metadata" not in sys.modules
"""


def test_both_ways_to_it_agree() -> None:
    data = bytes(range(256)) * 9
    assert batch.crc32c(b"123456789") == crc32c(b"123456789") == CHECK
    assert batch.crc32c is not crc32c
    for start in range(9):
        assert batch.crc32c(memoryview(data)[start:]) == crc32c(memoryview(data)[start:])


def test_the_first_use_loads_it_once_and_nothing_around_it() -> None:
    path = [str(ROOT / "protocol")]
    program = f"import sys; sys.path[:0] = {path!r}\n{FIRST_USE}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_library_of_that_name_serves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crc32c  # it is loaded, and there is no such extension module in it
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    spec = spec_from_file_location("minibroker_protocol.records.batch_again", batch.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, again)
    spec.loader.exec_module(again)
    assert again.crc32c(b"123456789") == CHECK
    assert again.crc32c is crc32c
