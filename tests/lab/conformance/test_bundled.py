"""The scenarios that come with minibroker, against minibroker itself."""

import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from broker import running_broker
from defect_matrix import ARGUMENTS, broker_like, results, running
from leftovers import left_on, said_to_stay
from restart import restart_command, restartable_minibroker
from seeds import SEEDS

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.results import Status
from minibroker_lab.conformance.scenario import KAFKA, KIP, RESTART, Scenario, bundled, every_step

pytestmark = pytest.mark.waits

SPECIAL = {"short-expiry", "draft-codes", "draft-check-at-level-0", RESTART}
"""What another broker has than the one that most scenarios are run against."""
PROMPT = (
    "-c",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
    "-c",
    "minibroker.not.yet.answers=true",
)
"""Transactions time out soon, and scenarios must not fail for the answers by which Kafka makes clients wait."""
MOSTLY_KAFKA = pytest.mark.parametrize(
    ("semantics", "expectation"), [("kafka", KAFKA), pytest.param("kip", KIP, marks=pytest.mark.slow)]
)
"""What `kip` answers otherwise, the default tests ask for in `test_what_kip_answers_otherwise`."""
HALF = "*[a-m]"
"""Names of the scenarios that the default tests take, by their last letter; the tier `matrix` takes all of them, with
three brokers."""
BOTH = pytest.mark.parametrize(("semantics", "expectation"), [("kafka", KAFKA), ("kip", KIP)])


@pytest.mark.parametrize(
    ("semantics", "expectation", "only"),
    [
        ("kafka", KAFKA, HALF),
        pytest.param("kafka", KAFKA, "*", marks=pytest.mark.slow),
        pytest.param("kip", KIP, "*", marks=pytest.mark.slow),
    ],
)
def test_minibroker_answers_as_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], semantics: str, expectation: str, only: str
) -> None:
    with running_broker(tmp_path / "broker.log", "--ephemeral", "--semantics", semantics, *PROMPT) as bootstrap:
        # Most of them wait for the clock.
        options = ["--expect", expectation, "--only", only, "--skip-tag", "slow", "--jobs", "16"]
        status = cli.main(["--bootstrap", bootstrap, *options])
        stay = left_on(bootstrap)
    chosen = [one for one in bundled() if expectation in one.only and "slow" not in one.tags]
    chosen = [one for one in chosen if fnmatch(one.name, only)]
    assert len(chosen) > 150
    special = [one for one in chosen if SPECIAL & set(one.needs)]
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line for line in lines if line.startswith(("FAIL", "n/a"))] == []
    assert len([line for line in lines if line.startswith("skip ")]) == len(special)
    assert lines[-1] == f"{len(chosen) - len(special)} passed, 0 failed, {len(special)} skipped"
    assert status == 0
    assert [one for one in stay if " Prepare" not in one] == [], "what the run made is gone again"
    assert len(stay) == said_to_stay(said.err)


def answers_differ(scenario: Scenario) -> bool:
    """Whether `kip` expects something else than Kafka."""
    steps = every_step(scenario.steps)
    return KAFKA not in scenario.only or any(step.expected(KIP) != step.expected(KAFKA) for step in steps)


def test_what_kip_answers_otherwise(tmp_path: Path) -> None:
    chosen = [one for one in bundled() if KIP in one.only and not SPECIAL & set(one.needs) and answers_differ(one)]
    assert len(chosen) > 15
    with running_broker(tmp_path / "broker.log", "--ephemeral", "--semantics", "kip", *PROMPT) as bootstrap:
        ran = results(bootstrap, chosen, expectation=KIP)
    assert [(one.scenario.name, one.why) for one in ran if one.outcome is not Status.PASSED] == []


@BOTH
def test_what_is_forgotten_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], semantics: str, expectation: str
) -> None:
    """Alone: other scenarios need what they know for longer than this broker keeps it on a busy machine."""
    chosen = [one for one in bundled() if expectation in one.only and "short-expiry" in one.needs]
    arguments = ["--ephemeral", "--semantics", semantics, *ARGUMENTS["short-expiry"]]
    with running_broker(tmp_path / "broker.log", *arguments) as bootstrap:
        options = ["--expect", expectation, "--have", "short-expiry", "--select", "expiry", "--jobs", "8"]
        status = cli.main(["--bootstrap", bootstrap, *options])
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(chosen)} passed, 0 failed"
    assert status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a process that is asked to end is killed there")
@MOSTLY_KAFKA
def test_what_is_known_after_a_restart(capsys: pytest.CaptureFixture[str], semantics: str, expectation: str) -> None:
    often = "transaction.abort.timed.out.transaction.cleanup.interval.ms=500"
    with restartable_minibroker(["--semantics", semantics, "-c", often]) as (bootstrap, state):
        status = cli.main(
            [
                *("--bootstrap", bootstrap, "--expect", expectation),
                *("--select", "restart", "--restart-command", restart_command(state)),
            ]
        )
    wanted = [one for one in bundled() if RESTART in one.needs]
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(wanted)} passed, 0 failed"
    assert status == 0


@pytest.mark.parametrize("have", ["draft-codes", "draft-check-at-level-0"])
def test_what_another_broker_has(have: str) -> None:
    chosen = [one for one in bundled() if have in one.needs]
    assert chosen
    with running(have, broker_like(KIP)) as (bootstrap, _):
        ran = results(bootstrap, chosen, expectation=KIP, have=have)
    assert [(one.scenario.name, one.why) for one in ran if one.outcome is not Status.PASSED] == []


def test_every_seed_is_proved_by_a_scenario() -> None:
    assert sorted(SEEDS.keys() - {proof for one in bundled() for proof in one.proves}) == []


@pytest.mark.matrix
def test_three_brokers_answer_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replicated, over sockets, and asked at one that does not lead everything."""
    settings = {
        "default.replication.factor": "3",
        "replica.fetch.backoff.ms": "100",
        "minibroker.inter.broker.sockets": "true",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        # A machine that does other things must not move a leader.
        "broker.session.timeout.ms": "120000",
        "replica.lag.time.max.ms": "120000",
    }
    configs = [argument for key, value in settings.items() for argument in ("-c", f"{key}={value}")]
    with running_broker(tmp_path / "broker.log", "--brokers", "3", "--ephemeral", *configs) as bootstrap:
        at_third = ["--bootstrap", bootstrap.split(",")[2]]
        # Brokers that cannot talk to each other would let every scenario wait for as long as it may.
        assert cli.main([*at_third, "--only", "idem-lower-epoch"]) == 0, capsys.readouterr().out
        status = cli.main([*at_third, "--skip-tag", "slow"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("FAIL")] == []
    assert int(lines[-1].split()[0]) > 350
    assert "skip create-topics-bad-shape (asks one broker for what this cluster spreads over several)" in lines
    assert status == 0
