"""What a newcomer reads when something is missing or given wrongly: one line that says what, and what helps."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from minibroker.cli import main
from minibroker.client.security import LoginFailed, scram
from minibroker.config.types import ConfigError
from minibroker.kernel.extras import _MODULES, hint, install
from minibroker.kernel.words import counted, reason
from minibroker.server.options import parse_topic
from minibroker_lab.conformance.scenario import bundled
from minibroker_protocol.records import Record, build_batch

ROOT = Path(__file__).resolve().parents[3]
PYTHON = f'"{sys.executable}"' if " " in sys.executable else sys.executable
PIP = f"{PYTHON} -m pip install"
LOG = "00000000000000000000.log"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "orders-0").mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n")
    (root / "orders-0" / LOG).write_bytes(build_batch([Record(value=b"v")], base_timestamp=0))
    return root


def said(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def blocked(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if these were not installed."""
    for module in modules:
        for loaded in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, module, None)


# Missing extras


def test_the_demo_without_its_clients(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocked(monkeypatch, "aiokafka")
    assert main(["demo"]) == 2
    assert said(capsys) == f'minibroker: the demo needs aiokafka: {PIP} "minibroker[demo]"'


@pytest.mark.parametrize(
    ("modules", "options", "wanted"),
    [
        (["numpy"], [], 'the audit needs numpy: {} "minibroker[audit]"'),
        (["pyarrow"], [], 'the audit needs pyarrow: {} "minibroker[audit]"'),
        (["numpy", "pyarrow", "pyspark"], [], 'the audit needs numpy and pyarrow: {} "minibroker[audit]"'),
        (["pyspark"], ["--engine", "spark"], 'an audit on Spark needs pyspark: {} "minibroker[spark]"'),
        (
            ["pyspark", "pandas"],
            ["--master", "local"],
            'an audit on Spark needs pyspark and pandas: {} "minibroker[spark]"',
        ),
    ],
    ids=["numpy", "pyarrow", "both", "pyspark", "pyspark and pandas"],
)
def test_the_audit_without_its_libraries(
    modules: list[str],
    options: list[str],
    wanted: str,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in modules else object())
    if "numpy" not in modules and "pyarrow" not in modules:
        pytest.importorskip("pyarrow")
    assert main(["audit", str(data), *options]) == 2
    assert said(capsys) == f"minibroker audit: {wanted.format(PIP)}"


def test_the_audit_of_a_place_that_needs_one_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked(monkeypatch, "fsspec")
    assert main(["audit", "memory://data"]) == 2
    assert said(capsys) == "minibroker audit: memory://data: a place of this kind needs the package fsspec"


def test_the_conformance_suite_without_yaml(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundled.cache_clear()  # an earlier test may have read them
    blocked(monkeypatch, "yaml")
    assert main(["conformance", "--bootstrap", "127.0.0.1:1"]) == 2
    wanted = f'minibroker conformance: the conformance suite needs PyYAML: {PIP} "minibroker[conformance]"'
    assert said(capsys) == wanted


@pytest.mark.parametrize(
    ("module", "settings", "wanted"),
    [
        (
            "scramp",
            ["sasl.enabled.mechanisms=SCRAM-SHA-256", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT"],
            f'SCRAM-SHA-256 needs scramp: {PIP} "minibroker[sasl]"',
        ),
        (
            "trustme",
            ["minibroker.ssl.ca.location=ca.pem", "listener.security.protocol.map=PLAINTEXT:SSL"],
            f'minibroker.ssl.ca.location needs trustme: {PIP} "minibroker[tls]"',
        ),
    ],
)
def test_a_broker_without_the_libraries_of_its_settings(
    module: str, settings: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked(monkeypatch, module)
    more = [word for setting in ["listeners=PLAINTEXT://127.0.0.1:0", *settings] for word in ("-c", setting)]
    assert main(["serve", "--ephemeral", *more]) == 2
    assert wanted in capsys.readouterr().err


def test_a_client_without_scramp(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked(monkeypatch, "scramp")
    with pytest.raises(LoginFailed, match=r"SCRAM-SHA-512 needs scramp: .*pip install"):
        scram("u", "p", "SCRAM-SHA-512", lambda message: message)


def test_several_packages_are_one_hint() -> None:
    assert hint("it", "confluent_kafka", "aiokafka") == (
        f'it needs confluent-kafka and aiokafka: {PIP} "minibroker[demo]"'
    )


def test_each_hint_names_an_extra_that_installs_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for package, extra in _MODULES.values():
        assert any(requirement.startswith(f"{package}>=") for requirement in extras[extra]), (package, extra)


def test_a_hint_can_be_pasted_where_the_path_has_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/home/a b/.venv/bin/python")
    assert install("tls") == '"/home/a b/.venv/bin/python" -m pip install "minibroker[tls]"'


# Things given wrongly


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x:0", "'x:0': partitions are a number from 1 on, not '0'"),
        ("x:", "'x:': partitions are a number from 1 on, not ''"),
        (":3", "':3', which has no name"),
    ],
)
def test_a_topic_says_what_is_wrong_with_it(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_topic(text)
    assert str(refused.value) == f"expected NAME:PARTITIONS, got {wanted}"


def test_counts_agree_with_their_noun() -> None:
    assert [counted(n, "failure") for n in (0, 1, 2)] == ["0 failures", "1 failure", "2 failures"]


def test_reasons_have_no_numbers() -> None:
    assert reason(FileNotFoundError(2, "No such file or directory", "a.toml")) == "a.toml: No such file or directory"
    assert reason(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert reason(ValueError("odd")) == "odd"


@pytest.mark.parametrize(
    "arguments",
    [
        ["judge", "--script", "no.toml", "--", "true"],
        ["judge", "--", "no-such-command-anywhere"],
        ["replay", "no.jsonl", "--bootstrap", "127.0.0.1:1"],
        ["conformance", "--bootstrap", "127.0.0.1:1"],
        ["conformance", "--bootstrap", "127.0.0.1:1", "no.yaml"],
        ["transactions", "list", "--bootstrap", "127.0.0.1:1"],
        ["transactions", "list", "--bootstrap", "127.0.0.1:1", "--command-config", "no.properties"],
        ["trace", "--control", "127.0.0.1:1"],
        ["control", "--control", "127.0.0.1:1", "clock.now"],
        ["dump", "no.log"],
        ["check", "nowhere"],
        ["audit", "nowhere"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIBROKER_CONTROL_TOKEN", "s3cret")
    assert main(arguments) in (1, 2)
    line = said(capsys)
    assert line.startswith("minibroker")
    assert "errno" not in line.lower()


def test_control_without_a_token_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MINIBROKER_CONTROL_TOKEN", raising=False)
    assert main(["control", "clock.get"]) == 2
    assert "`minibroker serve --control 127.0.0.1:9094` says one" in said(capsys)


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
def test_no_seeds_are_nothing_to_simulate(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", option, "0"])
    assert ended.value.code == 2
    assert "expected a number from 1 on, got '0'" in said(capsys)


def test_check_and_serve_refuse_the_same_version(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--quiet", str(data)]) == 0
    meta = data / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=7"))
    capsys.readouterr()
    assert main(["check", "--quiet", str(data)]) == 1
    assert "expected version=1, got version=7" in capsys.readouterr().out
    assert main(["serve", "--port", "0", "--data-dir", str(data)]) == 1
    assert "expected version=1, got version=7" in capsys.readouterr().err


def test_one_partition_can_be_checked_and_audited(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--quiet", str(data / "orders-0")]) == 0
    assert main(["audit", str(data / "orders-0")]) == 0
    (data / ".kafka_cleanshutdown").write_text("{}")
    (data / "orders-0" / LOG).write_bytes(b"no batch at all" * 10)
    capsys.readouterr()
    assert main(["check", "--quiet", str(data / "orders-0")]) == 1
    assert f"orders-0/{LOG}" in capsys.readouterr().out


def test_a_directory_is_nothing_to_dump(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(data)]) == 1
    assert said(capsys) == f"minibroker dump: {data} is a directory: name files in it, or `minibroker check` all"
