"""The rules by name: what each promises, its source, and the severity of a breach."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from minibroker.kernel.package_data import package_text
from minibroker.rules.rows import NONE, Finding, Log

ERROR = "error"
NOTICE = "notice"
"""A legal state worth knowing: it does not make an audit fail."""


class Rule(NamedTuple):
    """A promise.

    source: the KIP or the part of Kafka that makes it.
    evidence: what a finding points at.
    notice: when the severity is notice instead.
    remedies: commands for an operator, each with what it risks, where {names} stand for what a finding has.
    """

    id: str
    title: str
    source: str
    promise: str
    evidence: str
    notice: str = ""
    severity: str = ERROR
    remedies: tuple[tuple[str, str], ...] = ()


def _read() -> dict[str, Rule]:
    """`catalogue.json`: the rules. Evidence is a text or the name of one that several share; remedies are names."""
    table = json.loads(package_text(__name__, "catalogue.json"))
    shared, remedies = table["evidence"], table["remedies"]
    rules = {}
    for row in table["rules"]:
        evidence = shared.get(row["evidence"], row["evidence"])
        commands = tuple((remedies[name]["command"], remedies[name]["risk"]) for name in row.get("remedies", ()))
        rules[row["id"]] = Rule(**{**row, "evidence": evidence, "remedies": commands})
    return rules


RULES = _read()


def finding(
    rule: str,
    log: Log,
    message: str,
    *,
    producer_id: int = NONE,
    producer_epoch: int = NONE,
    first_offset: int = NONE,
    last_offset: int | None = None,
    file: str = "",
    position: int = NONE,
    transactional_id: str = "",
    severity: str | None = None,
) -> Finding:
    """A finding of a rule of this catalogue; KeyError for another one."""
    return Finding(
        rule,
        severity or RULES[rule].severity,
        log,
        producer_id,
        producer_epoch,
        first_offset,
        first_offset if last_offset is None else last_offset,
        file,
        position,
        transactional_id,
        message,
    )


_PLACE = ("producer_id", "producer_epoch", "first_offset", "last_offset", "file", "position")


def finding_at(rule: str, row: Any, message: str, **otherwise: Any) -> Finding:
    """A finding about a row, at the row's place unless `place` overrides it."""
    place = {name: getattr(row, name) for name in _PLACE if name in row._fields}
    if "offset" in row._fields:
        place["first_offset"] = row.offset
    return finding(rule, row.log, message, **{**place, **otherwise})
