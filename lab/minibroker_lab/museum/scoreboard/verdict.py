"""What a run says of a framework: the input against what a read_committed consumer gets of the output, by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.verdict import NO_PROGRESS, BrokenPromise, since, waited_for
from minibroker_lab.museum.scoreboard.feed import ENDED, Feed

HELD, DOUBLED, LOST, TORN, ERROR, NO_VERDICT = "held", "doubled", "lost", "torn", "ended with an error", "no verdict"
_GAVE_UP: Final = "the client gave up: "
"""What the judge says before the reason of `give up`."""
_RULES: Final = {"lineage-duplicate": DOUBLED, "lineage-lost": LOST, "torn-transaction": TORN}


class Verdict(NamedTuple):
    """said: one of the six.
    why: in a line; empty where it held.
    """

    said: str
    why: str = ""


def verdict(judged: Judged, topics: Collection[str], committed: Mapping[int, int]) -> Verdict:
    """topics: the input topic and the output topic.
    committed: the group's offset for each partition of the input.

    Of the promises that were broken the first one counts. An input record without output is lost once the offset is
    behind it; before that the program had not come to it.
    """
    own = [promise for promise in judged.broken if promise.finding.log.topic in topics]
    for promise in own:
        said = _RULES.get(promise.finding.rule)
        if said is not None and (said != LOST or _passed(promise, committed)):
            return Verdict(said, _line(promise))
    if judged.run.status is None:
        return Verdict(NO_VERDICT, "the run did not return")
    if judged.run.status:
        return Verdict(NO_VERDICT, f"the feed ended with {judged.run.status}")
    given_up = [promise for promise in judged.broken if promise.finding.rule == NO_PROGRESS]
    unmet = bool(judged.run.script.steps) and not judged.run.fired
    if given_up:
        reason = given_up[0].finding.message.removeprefix(_GAVE_UP)
        if not reason.startswith(ENDED):
            return Verdict(NO_VERDICT, f"{reason}{_standing(judged.run)}")
        # An error before the failure is not about it.
        return Verdict(NO_VERDICT if unmet else ERROR, reason)
    if any(promise.finding.rule == "lineage-lost" for promise in own):
        return Verdict(NO_VERDICT, "input is left that was not processed")
    if unmet:
        return Verdict(NO_VERDICT, "the failure met no request")
    return Verdict(HELD)


def _passed(promise: BrokenPromise, committed: Mapping[int, int]) -> bool:
    return promise.finding.first_offset < committed.get(promise.finding.log.partition, 0)


def _standing(run: JudgedRun) -> str:
    """Where a program stands that makes no progress: its last step, and what it has done since."""
    own = [exchange for exchange in run.exchanges if exchange["client_id"] != Feed.client_id]
    last = waited_for(own)
    if last is None:
        return "; it has sent nothing"
    errors = f": {last['errors'][0]}" if last["errors"] else "" if last["outcome"] == "answered" else ", unanswered"
    step = f"exchange {last['number']}, {last['api']} of {last['client_id']}{errors}"
    return f"; its last step: {step}{since(own, run.topic_names)}"


def _line(promise: BrokenPromise) -> str:
    exchange = promise.exchange
    at = "" if exchange is None else f" (exchange {exchange['number']}, {exchange['api']} of {exchange['client_id']})"
    return f"{promise.finding.message}{at}"
