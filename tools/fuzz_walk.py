"""The compiled walk of records under sanitizers, against the walk in Python, on many small payloads, mostly damaged.

``PYTHONPATH=tests/support/on_the_wire python tools/fuzz_walk.py --payloads 10000000`` compiles `_native.c` with the
address and the undefined behaviour sanitizer (gcc on Linux) and starts itself again with them. Behind every payload
lies a page that must not be read. The first payload of which the two walks say different things is printed: exit
status 1.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import mmap
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from broken_records import Payload, Verdict, broken_payload, shortest_runs, verdict, walked_in_python

from minibroker_protocol.records import native

SOURCE = Path(__file__).resolve().parents[1] / "protocol" / "minibroker_protocol" / "_native.c"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
AT_ONCE = 1000


def compiled(directory: Path) -> tuple[Path, str]:
    """The module with sanitizers, and the library that a process needs from its start to load it."""
    module = directory / "_native.abi3.so"
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(
        ["gcc", "-O1", "-g", "-shared", "-fPIC", *SANITIZERS, include, str(SOURCE), "-o", str(module)], check=True
    )
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    return module, runtime.stdout.strip()


class Guarded:
    """`run` of the compiled module over a copy of the bytes whose end is the end of the last page that may be read."""

    def __init__(self, module: Path) -> None:
        spec = importlib.util.spec_from_file_location("_native", module)
        assert spec
        assert spec.loader
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        self._run: Callable[..., tuple[int, int, int, int, bool]] = loaded.run
        self._end = 16 * mmap.PAGESIZE
        self._pages = mmap.mmap(-1, self._end + mmap.PAGESIZE)
        beyond = ctypes.addressof(ctypes.c_char.from_buffer(self._pages)) + self._end
        assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(beyond), mmap.PAGESIZE, 0) == 0
        self._view = memoryview(self._pages)
        self.records = 0

    def run(self, data: bytes, *place: int) -> tuple[int, int, int, int, bool]:
        with self._view[self._end - len(data) : self._end] as copy:
            copy[:] = data
            taken = self._run(copy, *place)
        self.records += taken[0]
        return taken


def difference(payloads: list[Payload]) -> tuple[Payload, Verdict, Verdict] | None:
    """The first payload of which the two walks say different things, and what."""
    by_code = [verdict(payload) for payload in payloads]
    with walked_in_python():
        for payload, compiled_verdict in zip(payloads, by_code, strict=True):
            if (python_verdict := verdict(payload)) != compiled_verdict:
                return payload, compiled_verdict, python_verdict
    return None


def fuzz(guarded: Guarded, payloads: int, seed: int) -> int:
    native._native = guarded  # type: ignore[assignment]
    rng = random.Random(seed)
    begin = time.process_time()
    with shortest_runs():
        for done in range(0, payloads, AT_ONCE):
            if done and done % (100 * AT_ONCE) == 0:
                cpu = time.process_time() - begin
                print(
                    f"{done:,} payloads, {guarded.records:,} records by compiled code, {cpu:.0f} s of CPU", flush=True
                )
            if differs := difference([broken_payload(rng) for _ in range(min(AT_ONCE, payloads - done))]):
                print(*differs, sep="\n")
                return 1
    print(f"{payloads:,} payloads agree (seed {seed}): {guarded.records:,} records by compiled code")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payloads", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.module:
        return fuzz(Guarded(args.module), args.payloads, args.seed)
    with tempfile.TemporaryDirectory() as directory:
        module, runtime = compiled(Path(directory))
        environment = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
        return subprocess.run([sys.executable, *sys.argv, "--module", str(module)], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
