"""Every cell of benchmarks/results/faults.md that says what is refused when a rule is set, and the page itself."""

from __future__ import annotations

from typing import Any

import pytest
from fault_table import FIELDS, PAGE, actions_by_name, carried, page, unbearable

from minibroker import faults
from minibroker.faults import Action, FaultError
from minibroker.faults.action_fields import kinds_of
from minibroker.faults.actions import ACTIONS
from minibroker.faults.rules import rule_from
from minibroker.handlers.table import apis, apis_of_brokers

APIS = sorted(api.name for api in apis().values())
SOME: dict[str, Any] = {
    "topic": "t",
    "partition": 0,
    "group": "g",
    "transactional_id": "x",
    "producer_id": 1,
    "producer_epoch": 0,
    "sequence": [0, 1],
}


def check(rule: dict[str, Any]) -> None:
    rule_from(rule).checked(apis(), apis_of_brokers())


@pytest.mark.parametrize("api", APIS)
def test_a_field_that_requests_do_not_have_is_refused(api: str) -> None:
    known = carried()[api]
    for name in FIELDS:
        rule = {"api": api, "action": "close", name: SOME[name]}
        if name == "partition" and "topic" in known:
            rule["topic"] = "t"
        if name in known:
            check(rule)
        else:
            with pytest.raises(FaultError, match=r"has no|needs a topic"):
                check(rule)


@pytest.mark.parametrize("api", APIS)
def test_an_action_that_answers_have_no_place_for_is_refused(api: str) -> None:
    refused = unbearable().get(api, [])
    for name, action in actions_by_name().items():
        rule = {"api": api, "action": action}
        if name in refused:
            with pytest.raises(FaultError, match="an answer of"):
                check(rule)
        else:
            check(rule)


def test_what_is_known_to_be_refused_is() -> None:
    assert "throttle" in unbearable()["SaslHandshake"]
    assert carried()["EndTxn"] == ["transactional_id", "producer_id", "producer_epoch"]
    assert carried()["ListGroups"] == carried()["DescribeUserScramCredentials"] == []


def test_the_page_in_the_docs_is_this_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python tests/support fault_table"


def test_every_action_is_exported_and_has_a_row() -> None:
    classes = set(ACTIONS.values())
    assert {getattr(faults, name) for name in faults.__all__} >= classes
    assert {type(action) for action in actions_by_name().values()} == classes


@pytest.mark.parametrize("kind", ACTIONS.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("wrong", [object(), 3.5, [], -(1 << 40), "\ud800"], ids=lambda wrong: type(wrong).__name__)
def test_a_field_of_another_kind_is_refused_wherever_it_is_set(kind: type[Action], wrong: object) -> None:
    """By the class, and by the JSON of a rule; an answer that cannot be encoded would end the connection later."""
    good = vars_of(actions_by_name()[kind.name])
    for field in kinds_of(kind):
        if field == "at" and isinstance(wrong, int):
            continue  # bytes are counted from the end too
        values = {**good, field: wrong}
        with pytest.raises(FaultError):
            kind(**values)
        with pytest.raises(FaultError):
            rule_from({"action": {"name": kind.name, **values}})


def vars_of(action: Action) -> dict[str, Any]:
    return {field: getattr(action, field) for field in kinds_of(type(action))}
