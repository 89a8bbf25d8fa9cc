"""Every cell of the tables of docs/fault-table.md that says what is refused when a rule is set, and the page itself."""

from __future__ import annotations

from typing import Any

import pytest
from fault_table import FIELDS, PAGE, actions_by_name, carried, page, unbearable

from minibroker.faults import FaultError
from minibroker.faults.rules import rule_from
from minibroker.handlers.table import apis, between_brokers

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
    rule_from(rule).checked(apis(), between_brokers())


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
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python tests/support/fault_table.py"
