"""The Go package; the test on its page must work as it stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from broker import installed_command, project_program
from samples_of_pages import INTEGRATIONS, sample
from toolchain import Unavailable, go_with_libraries, tool

pytestmark = pytest.mark.go

HERE = Path(__file__).parent
PACKAGE = INTEGRATIONS / "go"


def run(directory: Path, test: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`go test` of a program with the package beside it, as its page says."""
    app = directory / "app"
    app.mkdir()
    shutil.copytree(PACKAGE, app / "minibroker")
    for file in ("go.mod", "go.sum"):
        shutil.copy(HERE / file, app)
    page = (PACKAGE / "README.md").read_text(encoding="utf-8")
    with (app / "go.mod").open("a") as file:
        file.write("".join(f"\n{line}\n" for line in page.splitlines() if line.startswith(("require ", "replace "))))
    (app / "app_test.go").write_text(test)
    try:
        go = go_with_libraries(app)
    except Unavailable as missing:
        pytest.skip(str(missing))
    environment = {**installed_command(directory), **variables}
    argv = [go, "test", "-count=1", "-v", "."]
    return subprocess.run(argv, cwd=app, env=environment, capture_output=True, text=True, timeout=400)


def test_the_test_on_the_page(tmp_path: Path) -> None:
    done = run(tmp_path, sample(PACKAGE / "README.md", "go"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS: TestALostCommitReplyCommitsOnce" in done.stdout
    assert "minibroker:" not in done.stdout + done.stderr


def test_it_needs_no_newer_go_than_its_module_says() -> None:
    try:
        go = tool("go")
    except Unavailable as missing:
        pytest.skip(str(missing))
    vetted = subprocess.run([go, "vet", "."], cwd=PACKAGE, capture_output=True, text=True, timeout=400)
    assert vetted.returncode == 0, vetted.stderr


FAILS = """package app

import (
	"io"
	"net"
	"testing"

	"minibroker.example/minibroker"
)

func TestRefused(t *testing.T) {
	minibroker.Start(t).Control("clock.advance", `{"minuts": 2}`, nil)
}

func TestNeverActed(t *testing.T) {
	minibroker.Start(t).Fault(`{"api": "EndTxn", "action": "close"}`)
}

func TestTried(t *testing.T) {
	broker := minibroker.Start(t, "--page", "--metrics", "127.0.0.1:0", "--topic", "t")
	if err := broker.Try("clock.advance", `{"hour": 2}`, nil); err == nil {
		t.Fatal("not refused")
	}
	proxy := minibroker.StartProxy(t, broker.BootstrapServers)
	proxy.Fault(`{"api": "ApiVersions", "action": "close"}`)
	connection, err := net.Dial("tcp", proxy.BootstrapServers)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	connection.Write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255}) // ApiVersions
	if count, err := connection.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(count, err)
	}
	if err := proxy.Try("clock.advance", `{"hours": 2}`, nil); err == nil {
		t.Fatal("not refused")
	}
	if broker.Page == "" || broker.Metrics == "" || len(broker.Records("t")) != 0 {
		t.Fatal(broker)
	}
}

func TestNoBroker(t *testing.T) {
	minibroker.Start(t, "--topic", "a/b")
}
"""


def test_a_refusal_and_a_broker_that_does_not_start_fail_the_test_with_the_reason(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS)
    assert done.returncode == 1
    assert "did you mean minutes?" in done.stdout
    assert "--- PASS: TestTried" in done.stdout
    assert '"action": "close"} never acted' in done.stdout
    assert "minibroker did not start" in done.stdout
    assert "a/b" in done.stdout


def test_without_minibroker_the_test_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS, MINIBROKER="no-such-program")
    assert done.returncode == 1
    assert 'exec: "no-such-program": executable file not found in $PATH; install minibroker with pip' in done.stdout


def test_the_file_of_the_project_comes_before_the_path(tmp_path: Path) -> None:
    said = project_program(tmp_path)
    done = run(tmp_path, FAILS, MINIBROKER="")
    assert done.returncode == 1
    assert said in done.stdout
