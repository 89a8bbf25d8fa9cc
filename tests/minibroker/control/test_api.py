"""The API that programs use: its names, its types, and that every command is within reach of Python."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from api_reference import api_classes
from control_methods import NAMES as NAMES_MODULE
from control_methods import STATE, names_module, state_module

import minibroker
from minibroker import Minibroker
from minibroker.control.client import Clock, Control, Faults
from minibroker.control.commands import all_commands
from minibroker.faults import FaultError
from minibroker.faults.rules import Match
from minibroker_protocol.errors import ApiError

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests" / "support" / "applications" / "typed_program.py"


@pytest.fixture(scope="module")
def broker() -> Any:
    with Minibroker(topics={"orders": 1}, ephemeral=True) as running:
        yield running


def mypy(file: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.matrix
def test_a_type_checker_knows_the_api_and_sees_each_mistake(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="the extra `check` is not installed")
    pytest.importorskip("confluent_kafka", reason="its types are not installed")
    known = mypy(SAMPLE)
    assert known.returncode == 0, known.stdout
    text = SAMPLE.read_text()
    expected = re.findall(r"# type: ignore\[([\w-]+)\]", text)
    unsaid = tmp_path / "unsaid.py"
    unsaid.write_text(re.sub(r"  # type: ignore.*", "", text))
    assert re.findall(r"error: .*\[([\w-]+)\]", mypy(unsaid).stdout) == expected
    assert len(expected) == 19


@pytest.mark.parametrize(("file", "module"), [(STATE, state_module), (NAMES_MODULE, names_module)])
def test_the_methods_of_state_and_the_names_are_the_tables(file: Path, module: Callable[[], str]) -> None:
    # Which statements: how they are formatted is what `ruff format --check` looks at.
    written, generated = (ast.dump(ast.parse(text)) for text in (file.read_text(encoding="utf-8"), module()))
    assert written == generated, "run: PYTHONPATH=tools python -m control_methods"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda b: b.state.kil_broker, "'State' object has no attribute 'kil_broker', did you mean kill_broker?"),
        (lambda b: b.faults.injekt, "'Faults' object has no attribute 'injekt', did you mean inject?"),
        (lambda b: b.clock.advanced, "did you mean advance?"),
        (
            lambda b: b.wait_for_record,
            "no attribute 'wait_for_record', did you mean wait_for_records?",
        ),
        (
            lambda b: minibroker.Minibrocker,
            "no attribute 'Minibrocker', did you mean Minibroker?",
        ),
        (
            lambda b: b.create_topic,
            "'Minibroker' object has no attribute 'create_topic', did you mean state.create_topic?",
        ),
        (lambda b: b.inject, "did you mean faults.inject?"),
        (lambda b: b.advance, "did you mean clock.advance?"),
        (lambda b: b.kill_broker, "did you mean state.kill_broker?"),
        (lambda b: b.messages, "did you mean records?"),
        (lambda b: b.port, "did you mean bootstrap_servers?"),
        (lambda b: b.faults.add, "'Faults' object has no attribute 'add', did you mean inject?"),
        (lambda b: b.clock.sleep, "did you mean advance?"),
        (
            lambda b: b.state.records,
            "'State' object has no attribute 'records', did you mean the broker's own records?",
        ),
        (lambda b: b.state.delete_topic, "did you mean the broker's own reset(topics=True)?"),
        (lambda b: b.delete_topic, "did you mean reset(topics=True)?"),
        (lambda b: b.state.xyzzy, "'State' object has no attribute 'xyzzy'"),
    ],
)
def test_a_mistyped_attribute_is_corrected(broker: Any, mistake: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(AttributeError) as raised:
        mistake(broker)
    assert words in str(raised.value)
    assert ("did you mean" in str(raised.value)) == ("did you mean" in words)
    assert not hasattr(broker.state, "_nothing")


def test_a_rule_takes_what_the_table_of_matches_has() -> None:
    given = inspect.signature(Faults.inject).parameters
    assert {field.name for field in fields(Match)} <= given.keys()
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in given.values())


def test_every_class_and_method_says_what_it_is() -> None:
    for kind in api_classes():
        assert kind.__doc__
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"
                checked = member.fget if isinstance(member, property) else member
                if inspect.isfunction(checked):
                    hints = inspect.signature(checked)
                    untyped = [
                        p.name for p in hints.parameters.values() if p.annotation is p.empty and p.name != "self"
                    ]
                    assert not untyped
                    assert hints.return_annotation is not hints.empty


class _Noted:
    """A caller that does nothing, to see which command a method gives."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def call(self, name: str, arguments: Any) -> Any:
        self.names.add(name)
        raise FaultError("noted")


def test_every_command_is_a_method() -> None:
    noted = _Noted()
    source = inspect.getsource(sys.modules[Control.__module__]) + STATE.read_text()
    source += inspect.getsource(sys.modules["minibroker.control.reading"])
    assert set(re.findall(r'_(?:ask|waited)\(\s*"([a-z_.]+)"', source)) == set(all_commands())
    with pytest.raises(FaultError, match="noted"):
        Clock(noted).sweep()
    assert noted.names == {"clock.sweep"}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda b: b.state.kill_broker(broker=7), ApiError, "broker 7 is not running"),
        (lambda b: b.cluster.kill_broker(7), ApiError, "broker 7 is not running"),
        (lambda b: b.faults.inject("EndTxx", "close"), FaultError, "did you mean EndTxn"),
        (
            lambda b: b.faults.inject("Produce", "error", code="NOT_LEADER_OR_FOLLOWER"),
            FaultError,
            'no field \'code\': it belongs into the action, as in {"name": "error", "code": …}',
        ),
        (lambda b: b.faults.inject("Produce", action="close", topik="t"), FaultError, "'topik', did you mean topic"),
        (lambda b: b.clock.advance(days=400), FaultError, "a year"),
        (lambda b: b.clock.advance(minutes=-1), FaultError, "never goes back"),
        (lambda b: b.clock.advance(float("inf")), FaultError, "a year"),
    ],
)
def test_an_error_shows_the_line_that_called(
    broker: Minibroker, call: Callable[[Minibroker], object], kind: type[Exception], words: str
) -> None:
    """No frame of the broker's thread; those of the methods are hidden from pytest."""
    with pytest.raises(kind, match=words) as raised:
        call(broker)
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert len([frame for frame in frames if "minibroker/" in frame.filename and "/tests/" not in frame.filename]) <= 3
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    shown = [Path(str(entry.path)).name for entry in raised.traceback.filter(raised)]
    assert set(shown) == {Path(__file__).name}


def test_one_broker_needs_no_id_and_several_do(broker: Minibroker) -> None:
    broker.state.pause_broker()
    assert broker.control.describe()["paused_brokers"] == [1]
    broker.cluster.resume_broker()
    broker.state.restart_broker()
    broker.state.fill_disk()
    assert broker.control.describe()["failed_disks"] == [1]
    broker.state.heal_disk()
    assert broker.control.describe()["failed_disks"] == []
    with Minibroker(brokers=2, ephemeral=True) as two:
        for call in (two.state.kill_broker, two.cluster.kill_broker, two.state.fail_disk):
            with pytest.raises(FaultError, match="broker is needed, one of 1, 2"):
                call()


def test_zero_is_a_value_of_a_rule(broker: Minibroker) -> None:
    wanted = {"partition": 0, "producer_id": 0, "producer_epoch": 0, "sequence": 0}
    broker.faults.inject("Produce", "close", expected=False, topic="t", **wanted)
    (shown,) = broker.faults.list()
    broker.faults.clear()
    assert shown["rule"].items() >= {**wanted, "sequence": [0, 0], "topic": "t"}.items()


def test_the_clock_takes_the_units_of_the_command_line(broker: Minibroker) -> None:
    broker.clock.freeze()
    before = broker.clock.now_ms
    assert broker.clock.advance(1, minutes=2, hours=1, ms=5) == before + 1000 + 120_000 + 3_600_000 + 5
    broker.clock.unfreeze()


def test_it_says_where_it_listens() -> None:
    broker = Minibroker()
    assert repr(broker) == "<Minibroker that is not running>"
    with broker:
        assert repr(broker) == f"<Minibroker at {broker.bootstrap_servers}>"


def test_the_names_of_the_api() -> None:
    """A name that is gone breaks programs: it stays for a release, and CHANGELOG.md says so."""
    names = {kind.__name__: sorted(n for n in vars(kind) if not n.startswith("_")) for kind in api_classes()}
    assert names == {kind: told.split() for kind, told in NAMES.items()}


NAMES = {
    "Minibroker": "cluster metrics_url refusals setup",
    "Proxy": "create_topic",
    "Embedded": "bootstrap_servers control page_url records_exchanges start stop",
    "Controlled": """
        clock committed committed_async control faults hang_transaction hang_transaction_async records records_async
        requests requests_async reset reset_async state transactions transactions_async wait_for_committed
        wait_for_committed_async wait_for_records wait_for_records_async wait_for_transaction wait_for_transaction_async
        waits waits_async
    """,
    "Faults": """
        clear expected inject list verify
    """,
    "Fault": """
        check fired held hits matched release remove wait wait_async
    """,
    "Clock": """
        advance freeze frozen now_ms sweep unfreeze
    """,
    "State": """
        append_aborted create_topic cut_link delete_records expire_transactional_id fail_disk fill_disk hang_transaction
        heal_disk held_markers hold_markers kill_broker lose_producer_state lose_producers mend_link move_coordinator
        move_leader pause_broker rebalance_group release_markers remove_member restart_broker restore resume_broker
        set_producer_epoch set_sequence start_broker start_controller stop_broker stop_controller truncate_tail
    """,
    "RunningCluster": """
        add_broker broker_ids coordinator cut_link elect isr kill_broker leader lose_producers mend_link
        move_coordinator move_leader pause_broker reassign refusals remove_broker resume_broker run start_broker
        start_controller stop_broker stop_controller
    """,
    "Control": """
        describe exchanges record refusals reset waits
    """,
}
