"""Java, Maven and Kafka's own jars for the JVM tier; everything missing becomes a reason to skip, never an error."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from toolchain import Unavailable, last_line, tool

JVM_TIER = Path(__file__).resolve().parents[1] / "jvm"
DOWNLOAD_SECONDS = 600
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For programs that live for seconds; what is measured runs without them."""


@cache
def kafka_libs() -> Path:
    """Directory with the jars of tests/jvm/pom.xml; downloaded once. `MINIBROKER_KAFKA_LIBS` names one that exists."""
    named = os.environ.get("MINIBROKER_KAFKA_LIBS")
    if named:
        return Path(named)
    return fetched_jars(JVM_TIER / "pom.xml", "Kafka's jars")


def fetched_jars(pom: Path, what: str, seconds: float = DOWNLOAD_SECONDS) -> Path:
    """Directory with the jars that a pom lists, downloaded when they, or the pom, are new.

    Raises Unavailable, also when that takes longer than `seconds`.
    """
    libs = pom.parent / "target" / "libs"
    stamp = libs / ".complete"
    if stamp.exists() and stamp.read_text() == pom.read_text():
        return libs
    mvn = tool("mvn")
    argv = [mvn, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"mvn could not fetch {what} in {seconds:g} s") from None
    if done.returncode:
        raise Unavailable(f"mvn could not fetch {what}: {last_line(done.stdout + done.stderr)}")
    stamp.write_text(pom.read_text())
    return libs


def classpath(*extra: Path) -> str:
    return os.pathsep.join([*(str(path) for path in extra), str(kafka_libs() / "*")])


def java_command(
    main_class: str,
    *arguments: str,
    extra: tuple[Path, ...] = (),
    heap: str = "256m",
    options: tuple[str, ...] = FAST_START,
) -> list[str]:
    """Command line of one JVM. `extra` goes on the class path, before Kafka's jars."""
    return [
        tool("java"), f"-Xmx{heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *options,
        "-cp", classpath(*extra), main_class, *arguments,
    ]  # fmt: skip


def run_java(
    main_class: str,
    *arguments: str,
    extra: tuple[Path, ...] = (),
    options: tuple[str, ...] = (),
    stdin: str = "",
    seconds: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a main class to its end and return what it printed."""
    argv = java_command(main_class, *arguments, extra=extra, options=(*FAST_START, *options))
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=seconds)


def compile_java(sources: list[Path], out: Path) -> Path:
    """Compile the tier's own programs against Kafka's jars; a program that does not compile is an error, not a skip."""
    argv = [tool("javac"), "-nowarn", "-cp", classpath(), "-d", str(out), *map(str, sources)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return out
