"""Every request of a classic group's member against every state of the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_client import GroupClient

from minibroker.coordinators.groups.classic.states import PREVIOUS, GroupState, legal
from minibroker_protocol.errors import ErrorCode

Setup = Callable[[GroupClient], str]

NONE = ErrorCode.NONE
UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
FENCED = ErrorCode.FENCED_INSTANCE_ID
PARKED = "parked"


def absent(_: GroupClient) -> str:
    return "nobody"


def empty(client: GroupClient) -> str:
    member_id = client.stable()
    assert client.leave((member_id, None)) == (NONE, [NONE])
    return member_id


def preparing(client: GroupClient) -> str:
    member_id = client.stable()
    assert not client.join_later().done
    return member_id


def completing(client: GroupClient) -> str:
    return client.join().member_id


def stable(client: GroupClient) -> str:
    return client.stable()


STATES: dict[str, tuple[Setup, GroupState | None]] = {
    "absent": (absent, None),
    "Empty": (empty, GroupState.EMPTY),
    "PreparingRebalance": (preparing, GroupState.PREPARING_REBALANCE),
    "CompletingRebalance": (completing, GroupState.COMPLETING_REBALANCE),
    "Stable": (stable, GroupState.STABLE),
}

# request: what is answered to the member in its generation (1), in each state
ANSWERS: dict[str, dict[str, ErrorCode | str]] = {
    "heartbeat": {
        "absent": UNKNOWN_MEMBER,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": REBALANCING,
        "CompletingRebalance": NONE,
        "Stable": NONE,
    },
    "sync": {
        "absent": UNKNOWN_MEMBER,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": REBALANCING,
        "CompletingRebalance": NONE,  # the only member leads
        "Stable": NONE,
    },
    "sync in generation 7": {
        "absent": UNKNOWN_MEMBER,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": ILLEGAL,
        "CompletingRebalance": ILLEGAL,
        "Stable": ILLEGAL,
    },
    "heartbeat in generation 7": {
        "absent": UNKNOWN_MEMBER,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": ILLEGAL,
        "CompletingRebalance": ILLEGAL,
        "Stable": ILLEGAL,
    },
    "heartbeat of a stranger": dict.fromkeys(STATES, UNKNOWN_MEMBER),
    "leave": {
        "absent": UNKNOWN_MEMBER,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": NONE,
        "CompletingRebalance": NONE,
        "Stable": NONE,
    },
    "leave of a stranger": dict.fromkeys(STATES, UNKNOWN_MEMBER),
    "join": {
        "absent": UNKNOWN_MEMBER,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": NONE,
        "CompletingRebalance": NONE,
        "Stable": NONE,  # the leader starts the next generation, alone
    },
    "join without id": {
        "absent": NONE,
        "Empty": NONE,
        "PreparingRebalance": PARKED,
        "CompletingRebalance": PARKED,
        "Stable": PARKED,
    },
    "join with another protocol": {
        "absent": NONE,
        "Empty": NONE,
        "PreparingRebalance": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        "CompletingRebalance": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        "Stable": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    },
    "join with another protocol type": {
        "absent": NONE,
        "Empty": NONE,
        "PreparingRebalance": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        "CompletingRebalance": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        "Stable": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    },
    "join without protocols": dict.fromkeys(STATES, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "commit": {
        "absent": ErrorCode.GROUP_ID_NOT_FOUND,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": NONE,
        "CompletingRebalance": REBALANCING,
        "Stable": NONE,
    },
    "commit in v8": {
        "absent": ILLEGAL,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": NONE,
        "CompletingRebalance": REBALANCING,
        "Stable": NONE,
    },
    "commit in generation 7": {
        "absent": ErrorCode.GROUP_ID_NOT_FOUND,
        "Empty": UNKNOWN_MEMBER,
        "PreparingRebalance": ILLEGAL,
        "CompletingRebalance": ILLEGAL,
        "Stable": ILLEGAL,
    },
    "commit of nobody": {
        "absent": NONE,
        "Empty": NONE,
        "PreparingRebalance": UNKNOWN_MEMBER,
        "CompletingRebalance": UNKNOWN_MEMBER,
        "Stable": UNKNOWN_MEMBER,
    },
    "commit of a stranger without generation": {
        "absent": NONE,
        "Empty": NONE,
        "PreparingRebalance": UNKNOWN_MEMBER,
        "CompletingRebalance": UNKNOWN_MEMBER,
        "Stable": UNKNOWN_MEMBER,
    },
}


def ask(client: GroupClient, request: str, member: str) -> ErrorCode | str:
    offsets = {("t", 0): 5}
    match request:
        case "heartbeat":
            return client.heartbeat(member, 1)
        case "heartbeat in generation 7":
            return client.heartbeat(member, 7)
        case "heartbeat of a stranger":
            return client.heartbeat("stranger", 1)
        case "sync" | "sync in generation 7":
            answer = client.sync_later(member, 1 if request == "sync" else 7, {member: b"x"})
            return ErrorCode(answer.result().error_code) if answer.done else PARKED
        case "leave" | "leave of a stranger":
            top, [code] = client.leave((member if request == "leave" else "stranger", None))
            assert top == NONE
            return code
        case "commit":
            return client.commit(offsets, member, 1)[0]
        case "commit in v8":
            return client.commit(offsets, member, 1, version=8)[0]
        case "commit in generation 7":
            return client.commit(offsets, member, 7)[0]
        case "commit of nobody":
            return client.commit(offsets)[0]
        case "commit of a stranger without generation":
            return client.commit(offsets, "stranger", -1)[0]
    more: dict[str, dict[str, Any]] = {
        "join": {"member_id": member},
        "join without id": {},
        "join with another protocol": {"protocols": [("sticky", b"m")]},
        "join with another protocol type": {"protocol_type": "connect"},
        "join without protocols": {"member_id": "" if member == "nobody" else member, "protocols": []},
    }
    joined = client.join_later(**more[request])
    return ErrorCode(joined.result().error_code) if joined.done else PARKED


@pytest.mark.parametrize(
    ("request_name", "state"), [(name, state) for name, row in ANSWERS.items() for state in row], ids=str
)
def test_answer(request_name: str, state: str) -> None:
    client = GroupClient()
    setup, expected = STATES[state]
    member = setup(client)
    assert expected is None or client.classic().state is expected
    if request_name == "join" and state == "PreparingRebalance":
        # The last one everybody waits for: it and the newcomer get the next generation.
        answer = client.join_later(member)
        assert answer.result().error_code == NONE
        assert answer.result().generation_id == 2
        return
    assert ask(client, request_name, member) == ANSWERS[request_name][state]


def test_every_row_names_every_state() -> None:
    assert all(row.keys() == STATES.keys() for row in ANSWERS.values())


@pytest.mark.parametrize("old", list(GroupState))
@pytest.mark.parametrize("new", list(GroupState))
def test_transitions(old: GroupState, new: GroupState) -> None:
    """As in Kafka's ClassicGroupState: a group goes through both phases of a rebalance, and dies from anywhere."""
    ways = {
        ("Empty", "PreparingRebalance"),
        ("PreparingRebalance", "CompletingRebalance"),
        ("PreparingRebalance", "Empty"),
        ("CompletingRebalance", "Stable"),
        ("CompletingRebalance", "PreparingRebalance"),
        ("Stable", "PreparingRebalance"),
    }
    assert legal(old, new) == ((old.value, new.value) in ways or new is GroupState.DEAD)
    assert set(PREVIOUS) == set(GroupState)


def test_the_picture_in_docs_is_the_table() -> None:
    from pathlib import Path

    from minibroker.coordinators.groups.classic.states import document

    page = Path(__file__).parents[4] / "docs" / "reference" / "group-states.md"
    assert page.read_text(encoding="utf-8") == document()
    # From Dead no way leads to Dead, though the table allows it.
    assert document().count(" --> ") == 1 + sum(len(sources) for sources in PREVIOUS.values()) - 1 + 1
