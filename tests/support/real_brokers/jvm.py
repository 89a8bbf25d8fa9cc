"""Java, Maven and Kafka's own jars for the JVM tier; everything missing becomes a reason to skip, never an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from toolchain import Unavailable, last_line, tool

JVM_TIER = Path(__file__).resolve().parents[2] / "jvm"
TOOLS_RELEASE = "4.3.1"
"""The release whose jars have the console tools: Maven has no kafka-tools of a later one."""
POMS = {TOOLS_RELEASE: JVM_TIER / "pom.xml", "4.4.0": JVM_TIER / "kafka-4.4" / "pom.xml"}
"""Kafka's releases in this tier, the newest last: each with a client and a whole broker."""
NEWEST = list(POMS)[-1]
ANY_RELEASE = JVM_TIER / "releases" / "pom.xml"
"""A whole broker of any other release."""
DOWNLOAD_SECONDS = 600
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For programs that live for seconds; what is measured runs without them."""
_STAMP = ".complete"


@cache
def kafka_libs(release: str = TOOLS_RELEASE) -> Path:
    """Directory with the jars of a release; downloaded once. `MINIBROKER_KAFKA_LIBS` names one that has the tools'."""
    named = os.environ.get("MINIBROKER_KAFKA_LIBS")
    if named and release == TOOLS_RELEASE:
        return Path(named)
    if release in POMS:
        return fetched_jars(POMS[release], f"the jars of Kafka {release}")
    return fetched_jars(ANY_RELEASE, f"the jars of Kafka {release}", version=release)


def fetched_jars(pom: Path, what: str, seconds: float = DOWNLOAD_SECONDS, version: str = "") -> Path:
    """Directory with the jars that a pom lists, of its Kafka's `version` where one is given; downloaded when they, or
    the pom, are new. Two processes may ask at the same time: what one of them reads is whole.

    Raises Unavailable, also when that takes longer than `seconds`.
    """
    libs, listed = pom.parent / "target" / (version or "libs"), pom.read_text()
    if _complete(libs, listed):
        return libs
    mvn = tool("mvn")
    libs.parent.mkdir(exist_ok=True)
    with _alone(), tempfile.TemporaryDirectory(prefix=".new-", dir=libs.parent) as place:
        if _complete(libs, listed):  # by the process that was alone before
            return libs
        new = Path(place, "libs")
        argv = [mvn, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={new}"]
        argv += [f"-Dkafka.version={version}"] if version else []
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"mvn could not fetch {what} in {seconds:g} s") from None
        if done.returncode:
            raise Unavailable(f"mvn could not fetch {what}: {last_line(done.stdout + done.stderr)}")
        (new / _STAMP).write_text(listed)
        try:
            if libs.exists():
                shutil.rmtree(libs)
            new.rename(libs)
        except OSError as error:
            raise Unavailable(f"{what} cannot be put in the place of older ones: {error}") from None
    return libs


@contextmanager
def _alone() -> Iterator[None]:
    """One of all processes at a time: Maven does not lock its repository against others."""
    with open(__file__, "rb") as lock:
        with suppress(ImportError):
            import fcntl  # not on Windows

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _complete(libs: Path, listed: str) -> bool:
    """Whether the directory has the jars of this text of a pom."""
    stamp = libs / _STAMP
    return stamp.exists() and stamp.read_text() == listed


def classpath(*extra: Path, release: str = TOOLS_RELEASE) -> str:
    return os.pathsep.join([*(str(path) for path in extra), str(kafka_libs(release) / "*")])


def java_command(
    main_class: str,
    *arguments: str,
    extra: tuple[Path, ...] = (),
    heap: str = "256m",
    options: tuple[str, ...] = FAST_START,
    release: str = TOOLS_RELEASE,
) -> list[str]:
    """Command line of one JVM. `extra` goes on the class path, before the jars of Kafka's `release`."""
    return [
        tool("java"), f"-Xmx{heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *options,
        "-cp", classpath(*extra, release=release), main_class, *arguments,
    ]  # fmt: skip


def run_java(
    main_class: str,
    *arguments: str,
    extra: tuple[Path, ...] = (),
    options: tuple[str, ...] = (),
    stdin: str = "",
    seconds: float = 120,
    release: str = TOOLS_RELEASE,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a main class to its end and return what it printed. `variables` are added to the environment."""
    argv = java_command(main_class, *arguments, extra=extra, options=(*FAST_START, *options), release=release)
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=seconds, env=environment)


def compile_java(sources: list[Path], out: Path, *extra: Path) -> Path:
    """Compile the tier's own programs against Kafka's jars; a program that does not compile is an error, not a skip."""
    argv = [tool("javac"), "-nowarn", "-cp", classpath(*extra), "-d", str(out), *map(str, sources)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return out
