"""One executable file of minibroker, for machines without Python: `python tools/executable/build.py OUT`.

Needs PyInstaller, and minibroker with the extras `sasl`, `tls`, `metrics`, `conformance` and `demo` in the same
Python. It runs on the kernel and the C library it was built on, which are printed, and on newer ones. Not in it: the
audit and the pipeline, which need Arrow or Spark, and the museum, which installs its clients with pip.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

PACKAGES = ("minibroker", "minibroker_protocol", "minibroker_storage", "minibroker_lab")
LIBRARIES = (
    *("confluent_kafka", "aiokafka", "scramp", "trustme", "prometheus_client", "yaml"),
    *("structlog", "uvloop", "crc32c", "cramjam"),
)
NOT_OFFERED = ("minibroker_pipeline", "minibroker_lab.museum")
# Packages that the libraries can use and nothing here does.
WITHOUT = ("pyspark", "pyarrow", "numpy", "pandas", "tkinter", "pytest", "pip", "setuptools")


def modules() -> list[str]:
    """Every module of the packages but those of NOT_OFFERED: most are loaded by their names."""
    names = [
        *PACKAGES,
        *(
            module.name
            for package in PACKAGES
            for module in walk_packages(import_module(package).__path__, f"{package}.")
        ),
    ]
    return [name for name in names if not name.startswith(NOT_OFFERED) and not name.endswith("__main__")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("out", type=Path, help="the directory for the file `minibroker`")
    out: Path = parser.parse_args().out
    from PyInstaller.__main__ import run

    with tempfile.TemporaryDirectory() as work:
        options = ["--onefile", "--noconfirm", "--clean", "--log-level", "ERROR", "--name", "minibroker"]
        options += ["--distpath", str(out), "--workpath", work, "--specpath", work, "--copy-metadata", "minibroker"]
        for name in PACKAGES:
            options += ["--collect-data", name]
        for name in [*modules(), *LIBRARIES]:
            options += ["--hidden-import", name]
        for name in (*WITHOUT, *NOT_OFFERED):
            options += ["--exclude-module", name]
        run([*options, str(Path(__file__).with_name("program.py"))])
    (file,) = (path for path in out.iterdir() if path.stem == "minibroker")
    print(f"{file}: {file.stat().st_size / 1e6:.0f} MB, built on {' '.join(platform.libc_ver())} {platform.platform()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
