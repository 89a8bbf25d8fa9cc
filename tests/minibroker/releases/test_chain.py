"""Releases as files: each is what the tables before the files said, and no file says more than it must."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from reference import difference_rows

from minibroker.config.groups import GROUP_KEYS
from minibroker.config.keys import BROKER_KEYS, TOPIC_KEYS
from minibroker.config.unused import UNUSED_KEYS
from minibroker.controller.features import SUPPORTED_FEATURES
from minibroker.handlers.table import apis
from minibroker.releases.chain import CHAIN, NEWEST, RELEASES
from minibroker.releases.features import Feature
from minibroker.releases.release import ABSENT, Release, assemble
from minibroker.releases.semantics import FIELDS, KAFKA, Semantics
from minibroker_storage.producer_rules import ProducerRules

# What brokers of each release list of the APIs that are served here, and how they answer.
RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("releases.json").read_text())
by_name = pytest.mark.parametrize("release", CHAIN, ids=lambda release: release.name)


def _fields(value: Any, *without: str) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.name not in without}


@pytest.mark.parametrize("name", RECORDED)
def test_a_release_is_what_was_recorded_of_it(name: str) -> None:
    release = RELEASES[name]
    semantics = release.semantics
    assert semantics.advertised is not None
    found = {
        "apis": dict(semantics.advertised.max_versions),
        "features": dict(semantics.advertised.features),
        "semantics": _fields(semantics, "advertised", "producer"),
        "producer": semantics.producer._asdict(),
        "settings": dict(release.settings),
    }
    # A field that is younger than the record has its default in every release of then.
    default = {"semantics": _fields(Semantics(), "advertised", "producer"), "producer": ProducerRules()._asdict()}
    recorded = {part: default.get(part, {}) | said for part, said in RECORDED[name].items()}
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(recorded))


def test_the_chain_goes_from_the_oldest_to_the_newest() -> None:
    assert list(RELEASES) == list(RECORDED)
    assert [release.next for release in CHAIN] == [*CHAIN[1:], None]
    assert NEWEST is RELEASES[CHAIN[-1].name]


@by_name
def test_a_file_says_only_what_differs(release: Release) -> None:
    if release.next is None:
        assert assemble(release).apis == release.apis
        return
    newer = assemble(release.next)
    assert {name for name, highest in release.apis.items() if newer.apis.get(name, ABSENT) == highest} == set()
    assert {name for name, levels in release.features.items() if newer.features.get(name, ABSENT) == levels} == set()
    assert release.settings.items() & newer.settings.items() == set()
    same = {spec.name for spec in FIELDS if release.behaviours.get(spec.name) == spec.of(newer.semantics)}
    assert same == set()


@by_name
def test_a_file_names_what_there_is(release: Release) -> None:
    assert release.apis.keys() <= {api.name for api in apis().values()}
    assert release.features.keys() <= NEWEST.features.keys()
    assert release.behaviours.keys() <= {spec.name for spec in FIELDS}
    known = {**BROKER_KEYS, **UNUSED_KEYS, **TOPIC_KEYS, **GROUP_KEYS}
    assert release.settings.keys() <= known.keys()


def test_the_newest_release_is_what_is_served() -> None:
    """Versions that a broker lists only on request are no release's."""
    served = {
        api.name: api.max_version if api.unstable_from is None else api.unstable_from - 1
        for api in apis().values()
        if api.advertised
    }
    assert served == NEWEST.apis
    assert NEWEST.features == SUPPORTED_FEATURES
    assert NEWEST.semantics.transaction_version == KAFKA.transaction_version


def test_differences_add_up_and_can_take_away() -> None:
    third = Release(name="3", apis={"A": 5, "B": 2}, features={"f": Feature(0, 2, 2)}, settings={"s": "x"})
    second = Release(name="2", next=third, apis={"A": 4, "B": ABSENT}, behaviours={"forget_with_records": True})
    first = Release(name="1", next=second, apis={"A": 3}, features={"f": ABSENT}, settings={"s": "y"})
    whole = assemble(first)
    assert (whole.name, whole.apis, whole.features, whole.settings) == ("1", {"A": 3}, {}, {"s": "y"})
    assert whole.semantics.producer.forget_with_records
    assert whole.semantics.transaction_version == 0
    assert assemble(third).apis == {"A": 5, "B": 2}
    assert not assemble(third).semantics.producer.forget_with_records


def test_the_page_has_a_row_for_each_release() -> None:
    rows = {row[0]: row[1:] for row in difference_rows()}
    assert list(rows) == list(reversed(RELEASES))
    assert rows[NEWEST.name][0] == ""
    assert rows["3.9"][0] == ""
    assert rows["2.8"][0].startswith("DescribeQuorum, ")
    assert "transaction.version 0" in rows["3.9"][1]
