"""States of a classic group and the transitions between them (Kafka's ClassicGroupState).

Run as a module, it prints the state picture that docs/reference/group-states.md holds.
"""

from __future__ import annotations

from enum import Enum

from minibroker.coordinators.state_diagram import page
from minibroker.output import write_out


class GroupState(Enum):
    """`value` is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""For each state those it may be entered from."""


def legal(old: GroupState, new: GroupState) -> bool:
    return old in PREVIOUS[new]


def document() -> str:
    """Contents of docs/reference/group-states.md."""
    ways = [("[*]", GroupState.EMPTY.value, "first member or offset")]
    ways += [
        (old.value, new.value, _CAUSES[new])
        for new, sources in PREVIOUS.items()
        for old in GroupState
        if old in sources and old is not GroupState.DEAD
    ]
    ways.append((GroupState.DEAD.value, "[*]", ""))
    return page("States of a classic group", "minibroker.coordinators.groups.classic.states", ways)


_CAUSES = {
    GroupState.EMPTY: "no member joined",
    GroupState.PREPARING_REBALANCE: "a member joins, changes or goes",
    GroupState.COMPLETING_REBALANCE: "all have joined",
    GroupState.STABLE: "the leader has assigned",
    GroupState.DEAD: "deleted, or nothing is left",
}


if __name__ == "__main__":
    write_out(document())
