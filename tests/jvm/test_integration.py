"""The JUnit 5 extension: its example runs under Maven, as its page says, and the page shows it as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from broker import installed_command, project_program
from samples_of_pages import INTEGRATIONS, sample
from toolchain import Unavailable, last_line, tool

pytestmark = pytest.mark.jvm

PACKAGE = INTEGRATIONS / "java"
EXAMPLE = Path("src/test/java/LostReplyTest.java")
SECONDS = 600
_NOT_TO_BE_HAD = ("Could not resolve", "Could not transfer", "Could not find artifact", "could not be resolved")

FAILS = """
import minibroker.junit.MinibrokerExtension;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class FailsTest {
    @RegisterExtension
    final MinibrokerExtension broker = new MinibrokerExtension(%s);

    @Test
    void refused() {
        broker.control("clock.advance", "{\\"minuts\\": 2}");
    }
}
"""


def maven(
    directory: Path, *arguments: str, test: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`mvn test` in a copy of the package, with another test in the place of the example if given."""
    project = directory / "project"
    shutil.copytree(PACKAGE, project, ignore=shutil.ignore_patterns("target"))
    if test is not None:
        for example in (project / EXAMPLE).parent.iterdir():
            example.unlink()
        (project / EXAMPLE.parent / "FailsTest.java").write_text(test)
    try:
        argv = [tool("mvn"), "-B", *arguments, "test"]
    except Unavailable as missing:
        pytest.skip(str(missing))
    environment = {**installed_command(directory), "MAVEN_OPTS": os.environ.get("MAVEN_OPTS", ""), **variables}
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode and any(words in done.stdout for words in _NOT_TO_BE_HAD):
        pytest.skip(f"mvn could not fetch what the package needs: {last_line(done.stdout)}")
    return done


def passed(reports: Path) -> Counter[str]:
    """How many tests of each class passed; those of nested classes count for the outer one."""
    cases = [case for report in reports.glob("TEST-*.xml") for case in ElementTree.parse(report).iter("testcase")]
    bad = {"error", "failure", "skipped"}
    return Counter(
        case.attrib["classname"].partition("$")[0] for case in cases if bad.isdisjoint(part.tag for part in case)
    )


def test_the_examples_pass_and_say_nothing(tmp_path: Path) -> None:
    assert sample(PACKAGE / "README.md", "java") == (PACKAGE / EXAMPLE).read_text()
    done = maven(tmp_path, "-q")
    assert done.returncode == 0, done.stdout
    reports = tmp_path / "project" / "target" / "surefire-reports"
    assert passed(reports) == {
        "LostReplyTest": 1,
        "RebalanceTest": 4,
        "HandlesTest": 3,
        "NestedTest": 4,
        "ParallelTest": 2,
    }
    report = (reports / "TEST-LostReplyTest.xml").read_text()
    assert 'name="aCommitWhoseAnswerIsLostCommitsOnce"' in report
    assert "minibroker:" not in done.stdout
    assert "INFO" not in done.stdout  # neither the client's logs nor the broker's


BOTH = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>given</groupId>
  <artifactId>both</artifactId>
  <version>0</version>
  <packaging>pom</packaging>
  <modules>
    <module>project</module>
    <module>project/spring</module>
  </modules>
</project>
"""


def test_the_examples_of_spring_and_streams_pass_with_the_junit_that_spring_needs(tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text(BOTH)  # the extension comes from this folder, not from the local repository
    chosen = ("-Dtest=SpringTest,StreamsTest", "-Dsurefire.failIfNoSpecifiedTests=false")
    done = maven(tmp_path, "-q", "-f", str(tmp_path / "pom.xml"), *chosen)
    assert done.returncode == 0, done.stdout
    reports = tmp_path / "project" / "spring" / "target" / "surefire-reports"
    assert passed(reports) == {"SpringTest": 3, "StreamsTest": 1}


@pytest.mark.slow
def test_the_file_of_the_project_comes_before_the_path(tmp_path: Path) -> None:
    said = project_program(tmp_path)
    done = maven(tmp_path, test=FAILS % "", MINIBROKER="")
    assert done.returncode == 1
    assert said in done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ("", {}, "did you mean minutes?"),
        ('"--topic", "a/b"', {}, "did not start: "),
        ("", {"MINIBROKER": "no-such-program"}, "; install minibroker with pip and have it on PATH"),
    ],
)
def test_a_refusal_and_a_broker_that_does_not_start_fail_with_the_reason(
    tmp_path: Path, arguments: str, variables: dict[str, str], words: str
) -> None:
    done = maven(tmp_path, test=FAILS % arguments, **variables)
    assert done.returncode == 1
    assert words in done.stdout
