"""The parts of a CI run. Each works in a clean clone, prints its budget, and ends as passed, failed or SKIPPED.

Standard library only, because it sets up everything else. `pipeline.py NAME...` runs only the parts named; `nightly` is
what is too long for every change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPILERS = ("cc", "gcc", "clang", "c++", "cargo", "rustc", "cl")
OTHER_PYTHONS = ("3.12", "3.13", "3.14")
LOST_SECONDS = 400  # a test of a tier that takes longer is ended
EXECUTABLE_EXTRAS = "demo,conformance,sasl,tls,metrics"
FUZZED_PAYLOADS = 100_000  # of records, damaged, through the compiled walk: ten seconds
RERUNS = 2  # of a test that failed, but for one that hung
TRIES = 3  # of an installation
INSTALL_SECONDS = 50  # an installation that takes longer hangs on a download: begun again, it mostly does not
TIERS = ("clients", "jvm", "go", "node", "spark", "container", "simulation", "matrix")
ELSEWHERE = (
    "tests/minibroker/cli",
    "tests/minibroker/testing",
    "tests/test_docs.py",
    "tests/test_readme.py",
)
SPARK_SECONDS = 150  # Spark is a download of 400 MB
DROPPED = ("VIRTUAL_ENV", "PYTHON", "PIP_", "PYTEST_")  # beginnings of variables' names
# What pip needs to reach an index from this machine, or to do without one.
KEPT = {
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE", "PIP_PROXY"),
    *("PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
}
CHECKERS = ("ruff", "mypy", "lint-imports")
ORDINARY_USER = 65534  # nobody
PACKAGES = ("minibroker", "minibroker_lab", "minibroker_pipeline", "minibroker_protocol", "minibroker_storage")
DEFAULT_INSTALL = {"cramjam", "crc32c", "structlog", "uvloop"}
ARM = (
    "manylinux_2_28_aarch64",
    "manylinux_2_17_aarch64",
    "manylinux2014_aarch64",
)  # the image of arm64 compiles nothing
METADATA = """
import email, sys, zipfile
from packaging.metadata import Metadata
wheel = zipfile.ZipFile(sys.argv[1])
(name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
found = Metadata.from_email(wheel.read(name), validate=True)
assert found.description and found.description_content_type == "text/markdown", "README is not in the metadata"
assert found.project_urls and found.author, "pyproject.toml has no addresses or authors"
"""


VALID_BILL = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
version = SchemaVersion.from_version(sys.argv[2])
wrong = JsonStrictValidator(version).validate_str(open(sys.argv[1], encoding="utf-8").read())
assert wrong is None, wrong
"""
"""The bill of materials is held against CycloneDX' schema, as it is published: its version was written in."""


class Skipped(Exception):
    """The part cannot run here; the text says why."""


class Failed(Exception):
    """The part ran and is not content."""


@dataclass
class Counts:
    """Tests of a run, or one for a part that has no tests of its own."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    again: int = 0  # of those that passed: only when tried again

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.again += other.again

    def __str__(self) -> str:
        return (
            f"{self.passed} passed ({self.again} only when tried again), {self.failed} failed, {self.skipped} skipped"
        )


@dataclass
class Workplace:
    """A scratch directory: the clone, an empty home, and where results go. `deadline` belongs to the running part."""

    directory: Path
    deadline: float = 0.0
    counts: Counts | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def clone(self) -> Path:
        return self.directory / "clone"

    @property
    def dist(self) -> Path:
        return self.directory / "dist"

    @property
    def wheel(self) -> Path:
        wheels = sorted(self.dist.glob("*-none-any.whl"))
        if not wheels:
            raise Failed("there is no wheel: the part `wheel` has not built one")
        return wheels[0]

    def environment(self, **changes: str) -> dict[str, str]:
        """This process's environment with an empty home, the Python that runs this in front of all others, and nothing
        that makes Python or pip behave in another way than on a fresh machine."""
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        path = os.pathsep.join([str(real_python().parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(DROPPED)}
        return kept | {"HOME": str(home), "PATH": path, "CI": "true"} | changes

    @property
    def results(self) -> Path:
        """For files of results, which every user may write."""
        directory = self.directory / "results"
        if not directory.exists():
            directory.mkdir()
            directory.chmod(0o777)
        return directory

    def run(
        self,
        *argv: str | Path,
        shell: str | None = None,
        seconds: float | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        **changes: str,
    ) -> None:
        """Run a command in the clone or in `cwd`, as `user`, within `seconds` and the part's deadline; Failed unless it
        exits with 0."""
        print(f"$ {shell or ' '.join(map(str, argv))}", flush=True)
        process = subprocess.Popen(
            shell or [str(word) for word in argv],
            shell=shell is not None,
            cwd=cwd or self.clone,
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            start_new_session=os.name == "posix",
            **as_user(user),
        )
        seconds_left = max(1.0, self.deadline - time.monotonic())
        try:
            code = process.wait(seconds_left if seconds is None else min(seconds_left, seconds))
        except subprocess.TimeoutExpired:
            end_group(process)
            raise Failed(
                "far over its budget" if seconds is None or seconds_left < seconds else f"took {seconds:.0f} s"
            ) from None
        if code:
            raise Failed(f"exit code {code}")

    def install(self, python: Path, *what: str, seconds: float = INSTALL_SECONDS, **changes: str) -> None:
        """pip install, begun again when a download hangs or breaks."""
        for tries_left in reversed(range(TRIES)):
            try:
                self.run(python, "-m", "pip", "install", "-q", *what, seconds=seconds, **changes)
                break
            except Failed:
                if not tries_left or time.monotonic() > self.deadline:
                    raise


def as_user(user: int | None) -> dict[str, Any]:
    """Arguments of Popen."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and whatever it started."""
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def real_python() -> Path:
    """The interpreter itself, not a shim that looks for its versions in a home directory."""
    return Path(sys.base_prefix) / ("python.exe" if os.name == "nt" else "bin/python3")


def scripts(venv: Path) -> Path:
    return venv / ("Scripts" if os.name == "nt" else "bin")


def clone(place: Workplace) -> None:
    """What is committed, and nothing else."""
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(place.clone)], check=True)
    else:
        shutil.copytree(ROOT, place.clone, ignore=shutil.ignore_patterns(".venv", "dist", "build", ".*_cache"))


def readme_command(place: Workplace, number: int) -> str:
    script = place.clone / "tests" / "support" / "pages" / "readme.py"
    return subprocess.run([sys.executable, script, str(number)], check=True, capture_output=True, text=True).stdout


def readme_demo(place: Workplace) -> None:
    """README's first command, with an empty home."""
    place.run(shell=readme_command(place, 1))


def readme_tests(place: Workplace) -> None:
    """README's second command, with an empty home: the default tests."""
    with_results(place, lambda options: place.run(shell=readme_command(place, 2), PYTEST_ADDOPTS=options))


def default_tests(place: Workplace) -> None:
    """The default tests where README's lines for a POSIX shell do not run."""
    python = programs(place) / "python"
    with_results(place, lambda options: place.run(python, "-m", "pytest", "-q", PYTEST_ADDOPTS=options))


def programs(place: Workplace) -> Path:
    """The programs of the clone's environment: as README's second command makes it, where that part does not run."""
    made = place.clone / ".venv"
    if shutil.which("pytest", path=str(scripts(made))) is None:  # the demo makes one with less
        place.run(real_python(), "-m", "venv", made)
        place.install(scripts(made) / "python", "-e", f"{place.clone}[test]")
    return scripts(made)


def check(*argv: str) -> Callable[[Workplace], None]:
    """A command of the clone's environment, run over the clone."""

    def part(place: Workplace) -> None:
        if argv[0] in CHECKERS:
            install_checkers(place)
        place.run(programs(place) / argv[0], *argv[1:])

    return part


def install_checkers(place: Workplace) -> None:
    """The extra `check`, once: README's command, which shall be quick, leaves it out."""
    if not all(shutil.which(name, path=str(programs(place))) for name in CHECKERS):
        place.install(programs(place) / "python", "-e", f"{place.clone}[check]")


def wheel(place: Workplace) -> None:
    """sdist, a wheel from it, a bill of materials, and the demo from the wheel where there is no compiler."""
    tools = place.directory / "tools"
    place.run(real_python(), "-m", "venv", tools)
    place.install(scripts(tools) / "python", "build", "cyclonedx-bom")
    place.run(scripts(tools) / "python", "-m", "build", "--outdir", place.dist, place.clone)
    names = zipfile.ZipFile(place.wheel).namelist()
    missing = [name for name in PACKAGES if f"{name}/py.typed" not in names]
    if missing:
        raise Failed(f"the wheel lacks {', '.join(missing)}")
    place.run(scripts(tools) / "python", "-c", METADATA, place.wheel, cwd=place.directory)
    arm = [word for platform in ARM for word in ("--platform", platform)]
    nothing = str(place.directory / "nothing")  # pip asks for it, and leaves it alone
    only = ["--dry-run", "--target", nothing, "--only-binary=:all:", "--python-version", "3.13", *arm]
    place.install(scripts(tools) / "python", *only, str(place.wheel))
    bill_of_materials(place, tools)
    demo_from_wheel(place, real_python(), "bare")
    audit_from_wheel(place, "bare")


def compiled(place: Workplace) -> None:
    """The wheel with the compiled walk of records: built, installed, its module under the tests of records, and a
    sample of the payloads with sanitizers."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise Skipped("there is no C compiler")
    tools, venv, built = (place.directory / name for name in ("tools", "compiled", "compiled wheel"))
    place.run(real_python(), "-m", "venv", tools)
    place.install(scripts(tools) / "python", "build")
    place.run(
        scripts(tools) / "python", "-m", "build", "--wheel", "--outdir", built, place.clone, MINIBROKER_COMPILE="1"
    )
    (wheel,) = built.glob("*-cp311-abi3-*.whl")
    place.run(real_python(), "-m", "venv", venv)
    place.install(scripts(venv) / "python", str(wheel))
    place.run(scripts(venv) / "minibroker", "--version")
    place.run(scripts(venv) / "python", "-c", "import minibroker_protocol._native", cwd=place.directory)
    protocol = place.clone / "protocol"
    name = next(name for name in zipfile.ZipFile(wheel).namelist() if "/_native." in name)
    python = programs(place) / "python"
    zipfile.ZipFile(wheel).extract(name, protocol)  # the tests run on the tree, with the module of the wheel
    try:
        place.run(python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/protocol/records")
    finally:
        (protocol / name).unlink()
    if shutil.which("gcc"):
        fuzz = ("tools/fuzz_walk.py", "--payloads", str(FUZZED_PAYLOADS))
        place.run(python, *fuzz, PYTHONPATH=str(place.clone / "tests" / "support" / "on_the_wire"))


def executable(place: Workplace) -> None:
    """The file for machines without Python: built, and used in an empty environment."""
    tools, out = place.directory / "executable tools", place.directory / "executable"
    place.run(real_python(), "-m", "venv", tools)
    compiler = "1" if any(map(shutil.which, ("cc", "gcc", "clang"))) else ""
    needs = ("pyinstaller>=6.10,<7", f"{place.clone}[{EXECUTABLE_EXTRAS}]")
    place.install(scripts(tools) / "python", *needs, seconds=90, MINIBROKER_COMPILE=compiler)
    place.run(scripts(tools) / "python", place.clone / "tools" / "executable" / "build.py", out)
    argv: list[str | Path] = [programs(place) / "python", "-m", "pytest", "-n", "0", "tests/test_executable.py"]
    (file,) = out.iterdir()
    with_results(place, lambda options: place.run(*argv, PYTEST_ADDOPTS=options, MINIBROKER_EXECUTABLE=str(file)))
    shutil.copytree(out, place.dist, dirs_exist_ok=True)


def bill_of_materials(place: Workplace, tools: Path) -> None:
    """CycloneDX JSON of what the wheel installs without extras."""
    bare, bill = place.directory / "default", place.dist / "minibroker.cdx.json"
    place.run(real_python(), "-m", "venv", "--without-pip", bare)
    place.run(scripts(tools) / "python", "-m", "pip", "--python", bare, "install", "-q", place.wheel)
    pyproject = place.clone / "pyproject.toml"
    options = ["--pyproject", pyproject, "--mc-type", "library", "--output-reproducible", "-o", bill]
    place.run(scripts(tools) / "cyclonedx-py", "environment", bare, *options)
    content = json.loads(bill.read_text(encoding="utf-8"))
    content["metadata"]["component"]["version"] = place.wheel.name.split("-")[1]  # dynamic in pyproject.toml
    bill.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    place.run(scripts(tools) / "python", "-c", VALID_BILL, bill, content["specVersion"], cwd=place.directory)
    named = {component["name"].lower() for component in content["components"]}
    if named != DEFAULT_INSTALL:
        raise Failed(f"the default install brings {sorted(named)}, expected {sorted(DEFAULT_INSTALL)}")


def demo_from_wheel(place: Workplace, python: Path, name: str) -> None:
    venv = place.directory / name
    place.run(python, "-m", "venv", venv)
    path = str(scripts(venv))
    compilers = [compiler for compiler in COMPILERS if shutil.which(compiler, path=path)]
    if compilers:
        raise Failed(f"the environment is not bare, it has {compilers}")
    place.install(scripts(venv) / "python", "--only-binary=:all:", str(place.wheel), PATH=path)
    # What `minibroker demo` asks for where it is missing: pip adds the extra to the minibroker that is installed.
    place.install(scripts(venv) / "python", "--only-binary=:all:", "minibroker[demo]", PATH=path)
    place.run(scripts(venv) / "minibroker", "demo", PATH=path)
    place.run(scripts(venv) / "minibroker", "museum", PATH=path, cwd=place.directory)  # its cases are in the wheel


def audit_from_wheel(place: Workplace, name: str) -> None:
    """The audit of what a real Kafka wrote, in the environment of the demo with what its hint names: without Spark."""
    venv, data = place.directory / name, place.directory / "audited"
    path = str(scripts(venv))
    with tarfile.open(sorted((place.clone / "tests" / "golden" / "releases").glob("*.tar.xz"))[-1]) as archive:
        archive.extractall(data, filter="data")
    place.install(scripts(venv) / "python", "--only-binary=:all:", "minibroker[audit]", PATH=path)
    place.run(scripts(venv) / "minibroker", "audit", data / "clean", PATH=path)


def other_python(version: str) -> Callable[[Workplace], None]:
    def part(place: Workplace) -> None:
        demo_from_wheel(place, find_python(version), f"python{version}")

    return part


def find_python(version: str) -> Path:
    """An interpreter of this version, on PATH or among those that pyenv keeps."""
    name = f"python{version}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in [shutil.which(name), *sorted(root.glob(f"versions/{version}.*/bin/{name}"))]:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return Path(candidate)
    raise Skipped(f"{name} is not installed")


def elsewhere(place: Workplace) -> None:
    """The command line, the fixture and the pages where other people have them: LANG=C, another time zone, spaces in
    all paths, a home that is read-only, and a user who is not root. The table of how commands end is among it."""
    root = place.directory / "a place with spaces"
    temporary, home, tree = root / "temporary files", root / "home", root / "a tree"
    for directory in (root, temporary, home):
        directory.mkdir()
    temporary.chmod(0o777)
    home.chmod(0o555)
    for directory in (place.directory, place.directory.parent):
        if not directory.stat().st_mode & 0o001 and directory.stat().st_uid == os.geteuid():
            directory.chmod(directory.stat().st_mode | 0o011)
    shutil.copytree(place.clone, tree, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__"))
    user = ORDINARY_USER if os.name == "posix" and os.geteuid() == 0 else None
    changes = {
        "LANG": "C",
        "TZ": "Asia/Kolkata",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "USER": "",
        "LOGNAME": "",
    }
    changes |= {name: "" for name in os.environ if name.startswith("LC_")}
    base = readable_python(place.directory / "python", user)
    if base != real_python():
        changes["LD_LIBRARY_PATH"] = str(base.parent.parent / "lib")
    writable = {**changes, "HOME": str(place.directory / "home")}
    place.run(base, "-m", "venv", root / "an environment", **writable)
    python = scripts(root / "an environment") / "python"
    # What the clone's own environment has, which the README's commands made, need not be fetched again.
    installed = [str(path) for path in programs(place).parent.glob("[Ll]ib/**/site-packages")]
    own = next((root / "an environment").glob("[Ll]ib/**/site-packages"))
    (own / "clone.pth").write_text("\n".join(installed) + "\n")
    place.install(python, "--no-deps", "-e", str(tree), **writable)
    argv: list[str | Path] = [python, "-m", "pytest", "-n", "2", "-m", f"not ({' or '.join(TIERS)})", *ELSEWHERE]
    cache = f"-o cache_dir='{temporary / 'cache'}'"
    with_results(
        place, lambda options: place.run(*argv, cwd=tree, user=user, PYTEST_ADDOPTS=f"{options} {cache}", **changes)
    )


def readable_python(copy: Path, user: int | None) -> Path:
    """An interpreter that `user` can run: this one, else a copy of it. SKIPPED when there is neither."""
    python, call = real_python(), ["-c", "import ssl, sqlite3, ctypes"]
    environment: dict[str, str] = {}
    for _ in range(2):
        try:
            if not subprocess.run([python, *call], env=environment, capture_output=True, **as_user(user)).returncode:
                return python
        except OSError:
            pass
        if copy.exists():
            break
        # In root's home, for example. Without what it has installed, and its own tests.
        ignored = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "share", "idlelib")
        shutil.copytree(sys.base_prefix, copy, symlinks=True, ignore=ignored)
        python, environment = copy / "bin" / real_python().name, {"LD_LIBRARY_PATH": str(copy / "lib")}
    raise Skipped(f"user {user} cannot run {real_python()}, nor a copy of it")


def tier(marker: str, *options: str) -> Callable[[Workplace], None]:
    """Tests of one marker but the slow ones, with the real home, whose caches spare downloads. Of a marker by its name
    only the files that set it are read: each worker would spend as long on the others as on thirty tests."""

    def part(place: Workplace) -> None:
        files = [str(file) for file in files_with(marker, place.clone)]
        marked(f"{marker} and not slow", *in_a_worker(LOST_SECONDS), *options, *files)(place)

    return part


def files_with(marker: str, tree: Path) -> list[Path]:
    """The files of tests that set a marker; none, which means all, for an expression, or if another file sets it."""
    files = [file for file in (tree / "tests").rglob("*.py") if f"mark.{marker}" in file.read_text("utf-8")]
    return sorted(files) if all(file.name.startswith("test_") for file in files) else []


def in_a_worker(seconds: int) -> list[str]:
    """Options of pytest: a test that takes longer ends its process, because a client may hang where nothing else ends
    it, and counts as one failure; the others go on in the next process."""
    return ["-n", "1", f"--timeout={seconds}", "--timeout-method=thread"]


BOTH_CORES = ("-n", "2", "--dist", "worksteal")
"""For a tier whose tests wait more than they compute. A worker takes neighbours, so that few share a module's broker
with the other worker."""


def marked(expression: str, *options: str) -> Callable[[Workplace], None]:
    """The tests that `pytest -m` finds, with more of pytest's options."""

    def part(place: Workplace) -> None:
        python = programs(place) / "python"
        home = os.environ.get("HOME", "")
        argv: list[str | Path] = [python, "-m", "pytest", "-m", expression, *options]
        with_results(place, lambda options: place.run(*argv, HOME=home, PYTEST_ADDOPTS=options), may_skip=True)

    return part


def matrices(place: Workplace) -> None:
    """What the default tests take a sample of, whole; generated inputs come from another seed each time, which the
    command shows."""
    install_checkers(place)  # some hold the types of a small program against mypy
    options = ("-n", "2", "--hypothesis-profile=whole", f"--hypothesis-seed={time.time_ns() // 1_000_000_000}")
    tier("(matrix or hypothesis)", *options)(place)


def other_seeds(place: Workplace) -> None:
    """A thousand seeds of the simulation that no run before had: they begin at the day's number, times a thousand."""
    first = time.time_ns() // 86_400_000_000_000 * 1000
    check("minibroker", "simulate", "--first", str(first), "--seeds", "1000", "--jobs", "2")(place)


def shuffled(place: Workplace) -> None:
    """The default tests, each file in a process of its own and in an order that no run before had: it is that of the
    day's number. Every test is the first of its file on one of the days, and then passes alone."""
    day = time.time_ns() // 86_400_000_000_000
    failed = []
    for file in sorted((place.clone / "tests").rglob("test_*.py")):
        name = file.relative_to(place.clone).as_posix()
        try:
            check("python", "-m", "pytest", "-q", "-n", "0", f"--shuffle={day}", name)(place)
        except Failed:
            failed.append(name)
    if failed:
        raise Failed(f"in the order of --shuffle={day}: {', '.join(failed)}")


def with_results(place: Workplace, run: Callable[[str], None], *, may_skip: bool = False) -> None:
    """Run pytest with a file of results, and count them; a tier that skipped every test is skipped itself.

    What failed is run again (pytest-rerunfailures): a test that passes then is counted as passed and named in the last
    lines, so that a test which depends on the machine's mood shows without turning everything red.
    """
    results = place.results / f"{time.monotonic_ns()}.xml"
    try:
        run(f"--junitxml={results} --reruns={RERUNS} --rerun-except='Timeout [(]>'")
    finally:
        tests = tests_of(results)
        place.counts = count(tests)
        place.notes += [f"passed only when tried again: {name}" for name in moody(tests)]
    reasons = [skip.get("message", "") for runs in tests.values() for skip in runs[-1].iter("skipped")]
    if may_skip and reasons and len(reasons) == len(tests):
        raise Skipped(reasons[0])
    place.notes += sorted({f"{reasons.count(reason)} tests skipped: {reason}" for reason in reasons})


def tests_of(results: Path) -> dict[str, list[ElementTree.Element]]:
    """By its name every run of a test."""
    cases: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.parse(results).iter("testcase") if results.exists() else ():
        if case.get("name"):  # none: how a worker's end is noted, beside the test that it ended in
            cases.setdefault(f"{case.get('classname')}.{case.get('name')}", []).append(case)
    return cases


def has_failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def moody(tests: dict[str, list[ElementTree.Element]]) -> list[str]:
    """Names of the tests that passed, but not at once."""
    return [name for name, runs in tests.items() if len(runs) > 1 and not has_failed(runs[-1])]


def count(tests: dict[str, list[ElementTree.Element]]) -> Counts:
    last = [runs[-1] for runs in tests.values()]
    failed = sum(map(has_failed, last))
    skipped = sum(case.find("skipped") is not None for case in last)
    return Counts(len(last) - failed - skipped, failed, skipped, len(moody(tests)))


def spark(place: Workplace) -> None:
    """The tests that start Spark, after installing it."""
    python = programs(place) / "python"
    try:
        place.install(
            python, "-e", f"{place.clone}[test,notebook]", seconds=SPARK_SECONDS, HOME=os.environ.get("HOME", "")
        )
    except Failed as wrong:
        raise Skipped(f"the extra `notebook` could not be installed: {wrong}") from None
    tier("spark")(place)


def slow(place: Workplace) -> None:
    """What is too slow for every change; breaches are planted in what import-linter keeps."""
    install_checkers(place)
    python, home = programs(place) / "python", os.environ.get("HOME", "")
    # The tests of S3 and those of Spark say why they are skipped without their extra; neither needs that of the others.
    with contextlib.suppress(Failed):
        place.install(python, "-e", f"{place.clone}[test,s3]", HOME=home)
    with contextlib.suppress(Failed):
        place.install(python, "-e", f"{place.clone}[test,spark]", seconds=SPARK_SECONDS, HOME=home)
    marked("slow")(place)


def node(place: Workplace) -> None:
    """Node.js' clients and the page of a trace; the browser's tests say why they are skipped without their extra."""
    python = programs(place) / "python"
    with contextlib.suppress(Failed):
        place.install(python, "-e", f"{place.clone}[test,browser]", HOME=os.environ.get("HOME", ""))
    tier("node")(place)


def container(place: Workplace) -> None:
    """The image, built and used; needs an engine that speaks Docker's API."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        raise Skipped("there is no container engine")
    python = programs(place) / "python"
    place.install(python, "-e", f"{place.clone}[test,container]", HOME=os.environ.get("HOME", ""))
    tier("container")(place)


SLOW_MACHINE = 2  # times its budget, and a part fails; what takes longer than its budget is said to
# Name, budget in seconds, what runs. Together the budgets stay under an hour.
PARTS: list[tuple[str, int, Callable[[Workplace], None]]] = [
    ("readme-demo", 80, readme_demo),
    ("readme-tests", 210, readme_tests),
    ("style", 30, check("ruff", "check", ".")),
    ("format", 30, check("ruff", "format", "--check", ".")),
    ("types", 60, check("mypy")),
    ("imports", 30, check("lint-imports")),
    ("wheel", 120, wheel),
    ("compiled", 120, compiled),
    ("executable", 100, executable),
    *((f"python{version}", 100, other_python(version)) for version in OTHER_PYTHONS),
    ("matrices", 200, matrices),
    ("simulation", 110, check("minibroker", "simulate", "--seeds", "600", "--jobs", "2")),
    ("elsewhere", 150, elsewhere),
    ("clients", 550, tier("clients", *BOTH_CORES)),
    ("jvm", 550, tier("jvm", *BOTH_CORES)),
    ("go", 100, tier("go")),
    ("node", 150, node),
    ("container", 200, container),
    ("spark", 420, spark),
]
NIGHTLY: list[tuple[str, int, Callable[[Workplace], None]]] = [
    ("other-seeds", 300, other_seeds),
    ("planted", 3600, tier("simulation", "-n", "2")),
    ("slow", 7200, slow),
    ("shuffled", 3600, shuffled),
]
"""Not for every change; docs/how-to/developers/development.md has more. The first part of a night sets up, as README
does."""

OTHER_SYSTEMS: list[tuple[str, int, Callable[[Workplace], None]]] = [("tests", 600, default_tests)]
"""On macOS and Windows, in the place of all others."""


def run_part(place: Workplace, name: str, budget: int, part: Callable[[Workplace], None]) -> tuple[str, Counts]:
    """Run one part and return its line of the summary."""
    print(f"\n=== {name} (budget {budget} s)", flush=True)
    start = time.monotonic()
    place.deadline, place.counts, place.notes = start + budget * SLOW_MACHINE, None, []
    try:
        part(place)
        outcome, counts = "passed", place.counts or Counts(passed=1)
    except Skipped as reason:
        outcome, counts = f"SKIPPED: {reason}", place.counts or Counts(skipped=1)
    except (Failed, OSError, subprocess.SubprocessError) as wrong:
        outcome, counts = f"FAILED: {wrong}", place.counts or Counts()
        counts.failed = max(1, counts.failed)
    seconds = time.monotonic() - start
    if seconds > budget and outcome == "passed":
        outcome = "passed, over its budget"
    lines = [f"{name:<14}{seconds:6.0f} s of {budget:4} s  {outcome}"]
    return "\n".join([*lines, *(f"{'':14}{note}" for note in place.notes)]), counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [name for name, _, _ in PARTS]
    nightly, others = ([name for name, _, _ in parts] for parts in (NIGHTLY, OTHER_SYSTEMS))
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(names)} (default: all of these), {', '.join(others)}; {', '.join(nightly)}; nightly: "
        "readme-tests, and the last ones",
    )
    parser.add_argument("--out", type=Path, help="a directory for what the part `wheel` builds")
    options = parser.parse_args()
    chosen = options.parts or names
    if unknown := set(chosen) - {*names, *nightly, *others, "nightly"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if "nightly" in chosen:
        chosen += ["readme-tests", *nightly]
    total, lines = Counts(), []
    with tempfile.TemporaryDirectory(prefix="ci-", ignore_cleanup_errors=True) as directory:
        place = Workplace(Path(directory).resolve())
        clone(place)
        for name, budget, part in [*PARTS, *NIGHTLY, *OTHER_SYSTEMS]:
            if name in chosen:
                line, counts = run_part(place, name, budget, part)
                print(line, flush=True)
                lines.append(line)
                total.add(counts)
        if options.out and place.dist.exists():
            shutil.copytree(place.dist, options.out, dirs_exist_ok=True)
    print("\n" + "\n".join(lines))
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
