"""No scenario is judged by what ran before it."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import peers
import pytest
import verdict_order
from toolchain import Unavailable
from verdict_order import SUBJECTS, chosen, differing

from minibroker_lab.conformance.patience import Patience
from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.scenario import Scenario
from minibroker_lab.conformance.weight import RECOVERY


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_scenario_alone_and_in_two_orders(name: str) -> None:
    try:
        assert differing(name, chosen(), seed=1) == {}
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_a_verdict_that_depends_on_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = chosen()[:2]

    def run(scenarios: Sequence[Scenario], jobs: int) -> Iterator[Result]:
        for one in scenarios:
            breach = RECOVERY if one is first else None
            failed = one is first and len(scenarios) > 1
            yield Result(one, Status.FAILED if failed else Status.PASSED, breach=breach if failed else None)

    monkeypatch.setattr(verdict_order, "_runner", lambda name: nullcontext(run))
    told = differing("minibroker", [first, second], seed=1)
    assert told == {first.name: ["ok: ", "FAIL recovery: ", "FAIL recovery: "]}


def test_a_scenario_that_asks_nothing_has_not_killed_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tansu, which answered late after another scenario: n/a alone, and failed in a shuffled run."""
    first, second = chosen()[:2]

    class Dead(peers.Peer):
        cluster = start = end = lambda self: None  # type: ignore[assignment]
        alive = lambda self, cluster: False  # type: ignore[assignment]  # noqa: E731

    outcomes = {first.name: Status.ABSENT, second.name: Status.PASSED}
    monkeypatch.setattr(peers, "_alone", lambda cluster, one, *rest: Result(one, outcomes[one.name]))
    results = peers.in_turn(Dead([], ""), [first, second], Patience())
    assert [one.outcome for one in results] == [Status.ABSENT, Status.FAILED]
