"""Every API, asked by users with every right: the answers are those that a live Kafka gave to the same."""

from __future__ import annotations

from typing import Any

import pytest
from jvm import TOOLS_RELEASE
from rights_cases import CASES, UNLIKE, run
from rights_in_memory import MemorySide
from rights_record import TABLES, flat, load
from rights_stories import STORIES
from rights_world import USERS, furnish

from minibroker.handlers.table import apis
from minibroker.releases.chain import RELEASES
from minibroker.releases.semantics import KAFKA as KAFKA_SEMANTICS
from minibroker.releases.semantics import Semantics

KAFKA, KAFKAS_STORIES = load()
Answers = tuple[dict[str, dict[str, Any]], dict[str, list[Any]]]
"""(case → user → answer, story → answers) of minibroker."""


def answers_as(semantics: Semantics) -> Answers:
    side = MemorySide(semantics)
    names = furnish(side)
    stories = {name: story(side, names) for name, story in STORIES.items()}
    told = flat(run(side, names))
    side.close()
    return told, stories


def test_every_user_is_answered_as_by_kafka() -> None:
    """One test, because all cases together ask one broker; the stories are of rights that change in a session."""
    cases, stories = answers_as(KAFKA_SEMANTICS)
    unlike = {}
    for case in CASES:
        ours, kafkas = cases[case.key], KAFKA[case.key]
        if case.key in UNLIKE:
            ours, kafkas = alike(ours), alike(kafkas)
        unlike |= {(case.key, user): (ours[user], kafkas[user]) for user in USERS if ours[user] != kafkas[user]}
    assert unlike == {}
    assert {name: stories[name] for name in STORIES} == {name: KAFKAS_STORIES[name] for name in STORIES}


@pytest.mark.matrix
def test_an_older_release_is_answered_as_by_it() -> None:
    cases, stories = answers_as(RELEASES["4.3"].semantics)
    before, stories_before = load(TOOLS_RELEASE)
    for key in UNLIKE:
        cases[key], before[key] = alike(cases[key]), alike(before[key])
    assert {key: cases[key] for key in cases if cases[key] != before[key]} == {}
    assert stories == stories_before


def test_every_api_is_in_the_matrix() -> None:
    asked = {case.name.partition(" ")[0] for case in CASES}
    assert {api.name for api in apis().values() if not api.request.__private__} - asked == set()


@pytest.mark.parametrize("release", TABLES)
def test_the_table_has_every_case_and_story(release: str) -> None:
    cases, stories = load(release)
    assert cases.keys() == {case.key for case in CASES}
    assert stories.keys() == STORIES.keys()
    assert set(UNLIKE) < KAFKA.keys()


def alike(answers: dict[str, Any]) -> dict[str, str]:
    """User → the first user who was answered the same."""
    return {user: next(u for u, other in answers.items() if other == answer) for user, answer in answers.items()}
