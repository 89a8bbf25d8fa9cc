"""Every API, asked by users with every right: the answers are those that a live Kafka 4.3.1 gave to the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rights_cases import CASES, UNLIKE, Case, run
from rights_in_memory import MemorySide
from rights_record import flat, load
from rights_stories import STORIES
from rights_world import USERS, furnish

from minibroker.handlers.table import apis

KAFKA, KAFKAS_STORIES = load()


@pytest.fixture(scope="module")
def answers() -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, list[Any]]]]:
    """(case → user → answer, story → answers) of minibroker."""
    side = MemorySide()
    names = furnish(side)
    stories = {name: story(side, names) for name, story in STORIES.items()}
    yield flat(run(side, names)), stories
    side.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_every_user_is_answered_as_by_kafka(answers: Any, case: Case) -> None:
    ours, kafkas = answers[0][case.key], KAFKA[case.key]
    if case.key in UNLIKE:
        ours, kafkas = alike(ours), alike(kafkas)
    assert {u: (ours[u], kafkas[u]) for u in USERS if ours[u] != kafkas[u]} == {}


@pytest.mark.parametrize("story", STORIES)
def test_a_right_that_changes_while_a_session_is_open(answers: Any, story: str) -> None:
    assert answers[1][story] == KAFKAS_STORIES[story]


def test_every_api_is_in_the_matrix() -> None:
    asked = {case.name.partition(" ")[0] for case in CASES}
    # Which Kafka does not have; test_authorization asks for it.
    assert {api.name for api in apis().values()} - asked == {"DescribeTransactionState"}


def test_the_table_has_every_case_and_story() -> None:
    assert KAFKA.keys() == {case.key for case in CASES}
    assert KAFKAS_STORIES.keys() == STORIES.keys()
    assert set(UNLIKE) < KAFKA.keys()


def alike(answers: dict[str, Any]) -> dict[str, str]:
    """User → the first user who was answered the same."""
    return {user: next(u for u, other in answers.items() if other == answer) for user, answer in answers.items()}
