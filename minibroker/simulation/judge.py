"""What the exactly-once rules say of a world that has come to rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.audit.rows import Finding
from minibroker.audit.rules import ERROR, judge_history, judge_logs, judge_marks
from minibroker.audit.scan import scan_directory
from minibroker.simulation.holes import explained

if TYPE_CHECKING:
    from minibroker.simulation.world import World


def judge(world: World) -> list[Finding]:
    """Every broken promise that no known hole of Kafka's protocol explains; those are counted in the history."""
    found = []
    for one in judge_all(world):
        hole = explained(one, world)
        if hole is None:
            found.append(one)
        else:
            world.history.tell(f"hole: {hole.name}", f"known hole, {hole.name}: {one}")
    return found


def judge_all(world: World) -> list[Finding]:
    """Every broken promise."""
    history = world.history
    found = list(history.findings)
    found += judge_history(
        history.sent(),
        world.final.seen,
        outcomes=history.outcomes,
        reads=[seen for client in world.clients for seen in getattr(client, "seen", ())],
    )
    found += judge_marks(history.marks)
    scans = [scan_directory(disk, root=str(node)) for node, disk in world.disks.items()]
    found += judge_logs(
        [log for scan in scans for log in scan.logs],
        [state for scan in scans for state in scan.states],
        [commit for scan in scans for commit in scan.commits],
        as_of_ms=world.schedule.now_ms(),
        max_timeout_ms=world.plan.transaction_timeout_ms,
    )
    return [one for one in found if one.severity == ERROR]
