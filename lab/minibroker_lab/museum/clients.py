"""Client libraries by version: each in a folder of its own in the user's cache, installed once, and programs on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

from minibroker.kernel.words import reason
from minibroker.program import uninterrupted
from minibroker_lab.judge.run import end
from minibroker_storage.private_files import user_cache

_OWN = "own"
"""The kind of a package that a program needs in the environment of this process, beside minibroker."""
_INSTALL_SECONDS = 300
_COMPILE_SECONDS = 1200
_NAME = re.compile(r"(@?[A-Za-z0-9._/-]+)==([A-Za-z0-9.!+_-]+(?:@(?:[0-9.]+|kip))?)")
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ClientError(ValueError):
    """A version that cannot be installed here; the text is one line that says why."""


class Library(NamedTuple):
    """package: its name in the registry of its kind.
    programs: files of museum/programs that do a plan's steps with it, the one to start first.
    beside: further packages that a program needs, each with its version; ``{platform}`` is what follows ``-`` in the
        library's version.
    built: packages that it needs and that have no wheel: pip builds them.
    """

    kind: str
    package: str
    programs: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    built: tuple[str, ...] = ()


_GO = ("steps.go", "told.go")
LIBRARIES = {
    "confluent-kafka": Library("pip", "confluent-kafka", ("steps_confluent_kafka.py", "steps.py")),
    "aiokafka": Library("pip", "aiokafka", ("steps_aiokafka.py", "steps.py")),
    "kafka-python": Library("pip", "kafka-python", ("steps_kafka_python.py", "steps.py")),
    "kafka-clients": Library("maven", "org.apache.kafka:kafka-clients", ("Steps.java", "Producers.java")),
    "franz-go": Library("go", "github.com/twmb/franz-go", ("steps_franz.go", "open_franz.go", *_GO)),
    "sarama": Library("go", "github.com/IBM/sarama", ("steps_sarama.go", "open_sarama.go", "told_sarama.go", *_GO)),
    # Before 2.0: with these versions came librdkafka's, and no wheel of Python has them.
    "confluent-kafka-go": Library(
        "go",
        "github.com/confluentinc/confluent-kafka-go",
        ("steps_confluent.go", "open_confluent.go", "read_confluent.go", *_GO),
    ),
    "segmentio-kafka-go": Library("go", "github.com/segmentio/kafka-go"),
    "krafka": Library("cargo", "krafka"),
    "rskafka": Library("cargo", "rskafka"),
    "kafkajs": Library("npm", "kafkajs", ("steps_kafkajs.mjs", "steps.mjs")),
    "faust-streaming": Library("pip", "faust-streaming", built=("opentracing",)),
    "faststream": Library("pip", "faststream[confluent]"),
    "kafka-streams": Library("maven", "org.apache.kafka:kafka-streams"),
    "spring-kafka": Library("maven", "org.springframework.kafka:spring-kafka"),
    "reactor-kafka": Library("maven", "io.projectreactor.kafka:reactor-kafka"),
    "pekko-connectors-kafka": Library("maven", "org.apache.pekko:pekko-connectors-kafka_2.13"),
    "connect-mirror": Library("maven", "org.apache.kafka:connect-mirror"),
    "flink-connector-kafka": Library(
        "maven",
        "org.apache.flink:flink-connector-kafka",
        beside=tuple((f"org.apache.flink:flink-{part}", "{platform}.0") for part in ("clients", "connector-base")),
    ),
    # With the sink and the source of this project, which are not in a registry.
    "pyspark": Library(_OWN, "pyspark"),
    "@platformatic/kafka": Library("npm", "@platformatic/kafka", ("steps_platformatic.mjs", "steps.mjs")),
}


_OWN_NODE = {"@platformatic/kafka": "22.22.0"}
"""npm package → the Node it needs, newer than that of many systems: npm has Node's programs as packages."""
_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win"}
_MACHINES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def library(name: str) -> Library:
    """A client by its name; one that is not known is a Python package."""
    return LIBRARIES.get(name, Library("pip", name))


def parse_client(text: str) -> tuple[str, str]:
    """``NAME==VERSION``, or ``NAME==VERSION@RELEASE`` against a broker of this release, or of the
    semantics ``kip``. Raises ValueError."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"expected NAME==VERSION, such as confluent-kafka==2.3.0, got {text!r}")
    return match[1], match[2]


def installed(name: str, version: str) -> Path:
    """The folder with this version of a client, installed into ``minibroker/clients`` of the user's cache when it is
    asked for first. Raises ClientError."""
    own = library(name)
    kind = own.kind
    if kind == _OWN:
        _require(own, version)
    tag = sys.implementation.cache_tag if kind == "pip" else kind
    try:
        kept = user_cache("clients") / f"{tag}-{name.replace('/', '+')}=={version}"
    except OSError as error:
        raise ClientError(f"the cache of clients cannot be used: {reason(error)}") from None
    if not kept.exists():
        try:
            with tempfile.TemporaryDirectory(prefix=".new-", dir=kept.parent) as place:
                new = Path(place, "env")
                _INSTALL[kind](new, own, version)
                if not kept.exists():  # another process may have been quicker
                    new.rename(kept)
        except OSError as error:
            raise ClientError(f"{name} {version} cannot be installed: {error.strerror or error}") from None
    return kept


Programs: TypeAlias = Callable[[str, str, Sequence[Path]], AbstractContextManager[list[str]]]
"""`program`, or what stands for it."""


@contextmanager
def program(name: str, version: str, sources: Sequence[Path]) -> Iterator[list[str]]:
    """The command that runs a program on this version of a client.

    sources: the file to start first.

    Raises ClientError.
    """
    kind = library(name).kind
    folder = installed(name, version)
    with tempfile.TemporaryDirectory(prefix=".program-", dir=folder) as place:
        for source in sources:
            shutil.copy(source, place)
        yield _START[kind](folder, Path(place), sources[0].name)


# Installing. Each makes the folder `new`.


def _require(library: Library, version: str) -> None:
    """That this environment has the version. Raises ClientError."""
    try:
        present = metadata.version(library.package)
    except metadata.PackageNotFoundError:
        present = "none"
    if present != version:
        raise ClientError(f"{library.package} {version} has to be installed beside minibroker: there is {present}")


def _empty(new: Path, library: Library, version: str) -> None:
    """Only for programs."""
    new.mkdir()


def _pip(new: Path, library: Library, version: str) -> None:
    what = f"{library.package}=={version}"
    _run([sys.executable, "-m", "venv", str(new)], new.parent, what)
    pip = [str(new / _PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wheels = ["--only-binary", ":all:", *(word for name in library.built for word in ("--no-binary", name))]
    _run([*pip, "--retries", "1", *wheels, what], new.parent, what)


def _maven(new: Path, library: Library, version: str) -> None:
    new.mkdir()
    platform = version.partition("-")[2]
    wanted = ""
    for package, number in ((library.package, version), *library.beside):
        group, _, artifact = package.partition(":")
        wanted += f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        wanted += f"<version>{number.format(platform=platform)}</version></dependency>"
    pom = new / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>minibroker</groupId><artifactId>museum</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    command = [_tool("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    _run([*command, f"-DoutputDirectory={new / 'libs'}"], new, f"{library.package} {version}")


def _go(new: Path, library: Library, version: str) -> None:
    new.mkdir()
    package = library.package
    go = _tool("go")
    _run([go, "mod", "init", "museum"], new, package)
    _run([go, "get", f"{package}@v{version}"], new, f"{package} {version}")


def _npm(new: Path, library: Library, version: str) -> None:
    new.mkdir()
    package = library.package
    (new / "package.json").write_text("{}")
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    wanted = [f"{package}@{version}"]
    if package in _OWN_NODE:
        wanted.append(f"{_node_package()}@{_OWN_NODE[package]}")
    _run([_tool("npm"), "install", *quiet, *wanted], new, f"{package} {version}")


def _cargo(new: Path, library: Library, version: str) -> None:
    """The library is compiled here, once."""
    package = library.package
    (new / _MAIN).parent.mkdir(parents=True)
    (new / _MAIN).write_text("fn main() {}\n")
    (new / "Cargo.toml").write_text(
        '[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n'
        f'[dependencies]\n{package} = "={version}"\n'
        'tokio = { version = "1", features = ["rt-multi-thread", "macros", "time"] }\n'
    )
    command = [_tool("cargo"), "build", "--quiet", "--manifest-path", str(new / "Cargo.toml")]
    _run([*command, "--target-dir", str(new / _TARGET)], new, f"{package} {version}", _COMPILE_SECONDS)


def _node_package() -> str:
    return f"node-{_SYSTEMS.get(sys.platform, sys.platform)}-{_MACHINES.get(platform.machine(), platform.machine())}"


# Starting. Each gives the command; `place`, below the folder, has the sources.


def _own_python(folder: Path, place: Path, first: str) -> list[str]:
    return [sys.executable, str(place / first)]


def _python(folder: Path, place: Path, first: str) -> list[str]:
    return [str(folder / _PYTHON), str(place / first)]


def _java(folder: Path, place: Path, first: str) -> list[str]:
    path = os.pathsep.join([str(place), str(folder / "libs" / "*")])
    sources = sorted(str(source) for source in place.glob("*.java"))
    _run([_tool("javac"), "-cp", path, "-d", str(place), *sources], place, first)
    # A program that is killed leaves the native libraries of its codecs and stores behind.
    return [_tool("java"), *_QUICK_START, f"-Djava.io.tmpdir={place}", "-cp", path, Path(first).stem]


def _go_program(folder: Path, place: Path, first: str) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(folder / name, place)
    _run([_tool("go"), "build", "-mod=mod", "-o", "program", "."], place, first)
    return [str(place / "program")]


def _rust(folder: Path, place: Path, first: str) -> list[str]:
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy(folder / name, place)
    (place / _MAIN).parent.mkdir()
    (place / first).rename(place / _MAIN)
    command = [_tool("cargo"), "build", "--quiet", "--offline", "--target-dir", str(folder / _TARGET)]
    _run(command, place, first, _COMPILE_SECONDS)
    shutil.copy(folder / _TARGET / "debug" / _RUST_PROGRAM, place)
    return [str(place / _RUST_PROGRAM)]


def _node(folder: Path, place: Path, first: str) -> list[str]:
    own = folder / "node_modules" / _node_package() / "bin" / _NODE
    return [str(own) if own.exists() else _tool("node"), str(place / first)]


_MAIN, _TARGET = Path("src", "main.rs"), "target"
_RUST_PROGRAM = "program.exe" if os.name == "nt" else "program"
_NODE = "node.exe" if os.name == "nt" else "node"
_PYTHON = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
_INSTALL: dict[str, Callable[[Path, Library, str], None]] = {
    _OWN: _empty,
    "pip": _pip,
    "maven": _maven,
    "go": _go,
    "npm": _npm,
    "cargo": _cargo,
}
_START: dict[str, Callable[[Path, Path, str], list[str]]] = {
    _OWN: _own_python,
    "pip": _python,
    "maven": _java,
    "go": _go_program,
    "npm": _node,
    "cargo": _rust,
}


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ClientError(f"{name} is not installed")
    return path


def _run(command: Sequence[str], place: Path, what: str, seconds: float = _INSTALL_SECONDS) -> None:
    """what: for the error that is raised when it fails."""
    said = place / "said"
    child = None
    try:
        with open(said, "wb") as output:
            with uninterrupted():
                child = subprocess.Popen(
                    command, cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        raise ClientError(f"{what} was not installed within {seconds:g} s") from None
    finally:
        if child is not None:
            end(child)
    if status:
        lines = [_COLOUR.sub("", line).rstrip() for line in said.read_text("utf-8", "replace").splitlines()]
        raise ClientError(f"{what} cannot be installed: {_reason(lines) or f'exit status {status}'}")


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MARKED = ("ERROR: ", "[ERROR] ", "npm error ", "npm ERR! ", "error: ")


def _reason(lines: Sequence[str]) -> str:
    """What a tool says is wrong: pip's last such line, the first one of Maven and npm, the last line of Go."""
    wrong = [(mark, line.removeprefix(mark).strip()) for line in lines for mark in _MARKED if line.startswith(mark)]
    wrong = [problem for problem in wrong if problem[1] and not problem[1].startswith("code ")]
    if not wrong:
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return next((text for mark, text in wrong if mark != _MARKED[0]), wrong[-1][1])
