"""What is published: addresses in one place, commands of pages that work today, workflows that name what there is."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from reference import urls, with_repository

from minibroker.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
# The three users of an index's token or of an identity that others trust.
WRITERS = {"publish", "image"}
INSTALL = re.compile(r"pip install ([^`#\n]+)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    return content


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def pipeline_of_ci() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline_of_ci", ROOT / ".ci" / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pipeline_of_ci"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parts_of_ci() -> set[str]:
    return {part[0] for part in pipeline_of_ci().PARTS}


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [1, 2])
def test_a_test_of_a_tier_that_hangs_is_one_failure(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_it.py").write_text(
        "import time\ndef test_1(): pass\ndef test_2(): time.sleep(60)\ndef test_3(): pass\n"
    )
    ci = pipeline_of_ci()
    argv = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "--junitxml=it.xml"]
    argv += [*ci.in_a_worker(1), *(ci.BOTH_CORES if workers == 2 else ())]
    subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=100)
    tests = ci.tests_of(tmp_path / "it.xml")
    assert [name for name, runs in tests.items() if ci.has_failed(runs[-1])] == ["test_it.test_2"]
    assert tests.keys() == {"test_it.test_1", "test_it.test_2", "test_it.test_3"}


def test_a_tier_reads_the_files_that_set_its_marker(tmp_path: Path) -> None:
    """All of them once a helper sets it: tests that import it do not name the marker."""
    tests = tmp_path / "tests" / "folder"
    tests.mkdir(parents=True)
    for name, text in (("test_a.py", "@pytest.mark.go"), ("test_b.py", "pytest.mark.jvm"), ("helper.py", "")):
        (tests / name).write_text(text)
    ci = pipeline_of_ci()
    assert ci.files_with("go", tmp_path) == [tests / "test_a.py"]
    assert ci.files_with("(go or jvm)", tmp_path) == []
    (tests / "helper.py").write_text("NEEDS_GO = pytest.mark.go")
    assert ci.files_with("go", tmp_path) == []


def test_what_passes_only_when_run_again_is_counted_and_named(tmp_path: Path) -> None:
    """As pytest-rerunfailures writes it: every run of a test is a case of its own, the last one counts."""
    bad, case = '<failure message="no"/>', '<testcase classname="a" name="{}">{}</testcase>'
    runs = [("good", ""), ("moody", ""), ("moody", ""), ("bad", ""), ("bad", ""), ("bad", bad), ("out", "<skipped/>")]
    cases = "".join(case.format(*run) for run in runs)
    (tmp_path / "it.xml").write_text(f"<testsuites>{cases}<testcase/></testsuites>")
    ci = pipeline_of_ci()
    tests = ci.tests_of(tmp_path / "it.xml")
    assert ci.moody(tests) == ["a.moody"]
    assert str(ci.count(tests)) == "2 passed (1 only when tried again), 1 failed, 1 skipped"


def test_an_extra_that_cannot_be_installed_takes_no_other_from_the_slow_tests(tmp_path: Path) -> None:
    ci, installed = pipeline_of_ci(), []

    def install(python: Path, *what: str, **_: object) -> None:
        if "spark" in what[-1]:
            raise ci.Failed("no Spark today")
        installed.append(what[-1])

    ci.install_checkers, ci.programs = lambda _: None, lambda _: tmp_path
    ci.marked = lambda marker: lambda _: installed.append(marker)
    ci.slow(SimpleNamespace(clone="here", install=install))
    assert installed == ["here[test,s3]", "slow"]


# Pages


def requirements(page: Path) -> list[str]:
    """What a page tells pip to install."""
    found = []
    for match in INSTALL.finditer(page.read_text(encoding="utf-8")):
        words = shlex.split(match[1].partition("&&")[0].partition(" (")[0].rstrip(".,;)"))
        found += [word for word in words if not word.startswith("-")]
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_install_what_there_is(page: Path) -> None:
    """A path or the repository, because no index has minibroker; by its name only where it is installed already."""
    for requirement in requirements(page):
        match = re.fullmatch(r"(\.|\./minibroker|minibroker)(?:\[([a-z,]+)\])?( @ git\+\S+)?", requirement)
        if match is None:
            assert "minibroker" not in requirement, requirement
            continue
        place, extras, source = match.groups()
        assert set((extras or "").split(",")) - {""} <= set(PROJECT["optional-dependencies"])
        by_name = place == "minibroker" and source is None
        assert not by_name or (extras and name_of(page) == "docs/reference/support.md"), requirement


def test_requirements_of_pages_are_found() -> None:
    assert requirements(ROOT / "README.md")[:2] == [".[demo]", ".[test]"]
    assert "./minibroker" in requirements(ROOT / "docs" / "reference" / "support.md")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_repository_is_the_one_of_the_project(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_repository(text) == text, f"run: PYTHONPATH=tools python -m reference {name_of(page)}"


def test_every_address_is_below_the_repository() -> None:
    assert set(urls()) == {"Repository", "Documentation", "Issues", "Security", "Changelog"}
    assert all(url.startswith(urls()["Repository"]) for url in urls().values())
    for name in ("Documentation", "Changelog"):
        path = re.sub(r".*/main/", "", urls()[name])
        assert (ROOT / path).exists(), path


def test_minibroker_alone_brings_four_packages() -> None:
    """With all that they need themselves, on this machine."""
    found, left = set(), [Requirement(one) for one in PROJECT["dependencies"]]
    while left:
        one = left.pop()
        if (one.marker is None or one.marker.evaluate({"extra": ""})) and one.name not in found:
            found.add(one.name)
            left += [Requirement(text) for text in distribution(one.name).requires or ()]
    assert found == {"crc32c", "cramjam", "structlog", "uvloop"}


def test_every_extra_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "support.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z0-9]+)` \|", page, re.MULTILINE)) == set(PROJECT["optional-dependencies"])


def test_the_supported_pythons_are_the_declared_ones() -> None:
    versions = [found[1] for c in PROJECT["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", c))]
    page = (ROOT / "docs" / "reference" / "support.md").read_text(encoding="utf-8")
    assert f"| Python | {versions[0]} to {versions[-1]} |" in page
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


# Workflows


def test_there_are_two() -> None:
    assert set(WORKFLOWS) == {"ci", "release"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_no_more_rights_than_it_needs(name: str) -> None:
    content = workflow(name)
    assert content["permissions"] == {"contents": "read"}
    for job, what in content["jobs"].items():
        rights = {right for right, value in what.get("permissions", {}).items() if value == "write"}
        assert not rights or job in WRITERS, (job, rights)
        assert ("id-token" in rights) == (job in WRITERS), job
    assert "secrets." not in WORKFLOWS[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_steps_use_released_actions_and_run_what_there_is(name: str) -> None:
    parts = parts_of_ci()
    for step in steps(name):
        assert ("uses" in step) != ("run" in step), step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]), step
        words = shlex.split(step.get("run", ""))
        if words[:1] == [".ci/run"]:
            assert (ROOT / words[0]).is_file()
            assert words[1:3] == ["--out", "dist"]
            assert set(words[3:]) <= parts or words[3:] == ["${{", "matrix.parts", "}}"]
        if "file" in step.get("with", {}):
            assert (ROOT / step["with"]["file"]).is_file()


def test_what_is_released_is_what_ci_has_built_and_checked() -> None:
    runs = [step["run"] for step in steps("release") if "run" in step]
    assert ".ci/run --out dist wheel" in runs
    uses = [step["uses"].partition("@")[0] for step in steps("release") if "uses" in step]
    for wanted in ("pypa/gh-action-pypi-publish", "actions/attest-build-provenance", "actions/attest-sbom"):
        assert wanted in uses
    (image,) = (step for step in steps("release") if step.get("uses", "").startswith("docker/build-push-action"))
    assert image["with"]["platforms"] == "linux/amd64,linux/arm64"
    jobs = workflow("release")["jobs"]
    assert jobs["publish"]["needs"] == ["build", "wheels", "executables"]
    named = [step["run"] for step in jobs["executables"]["steps"] if "run" in step]
    assert any(f"[{pipeline_of_ci().EXECUTABLE_EXTRAS}]" in run for run in named)
    assert any("tools/executable/build.py" in run for run in named)
    assert jobs["image"]["needs"] == "build"


def test_ci_runs_each_part_once_and_has_time_for_it() -> None:
    job, ci = workflow("ci")["jobs"]["parts"], pipeline_of_ci()
    jobs = [(row.get("os", ""), row["parts"].split()) for row in job["strategy"]["matrix"]["include"]]
    named = [part for system, parts in jobs for part in parts if not system]
    assert sorted(named) == sorted(part[0] for part in ci.PARTS)
    others = {system: parts for system, parts in jobs if system}
    elsewhere = [part[0] for part in ci.OTHER_SYSTEMS]
    assert others == {"macos-latest": elsewhere, "windows-latest": elsewhere}
    budgets = {part[0]: part[1] for part in [*ci.PARTS, *ci.OTHER_SYSTEMS]}
    most = max(sum(budgets[part] for part in parts) for _, parts in jobs)
    assert job["timeout-minutes"] * 60 > most * ci.SLOW_MACHINE
    needed = next(parts for _, parts in jobs if "compiled" in parts)
    assert needed[0] == "wheel", "what is built from the wheel is in its job"
    assert {f"python{version}" for version in ci.OTHER_PYTHONS} <= set(needed)


# The image


def test_the_image_is_built_from_all_that_the_wheel_needs() -> None:
    lines = (ROOT / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    needed = {package.partition("/")[0] for package in build["wheel"]["packages"]}
    assert (
        needed | {"pyproject.toml", "hatch_build.py", PROJECT["readme"], *PROJECT["license-files"], "docker/shims"}
        <= let_in
    )
