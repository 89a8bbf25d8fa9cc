"""The preset `kip890`: whether a request of one transaction that comes late acts on the next one (KIP-890).

A client that waits too long for an answer sends the request again, and goes on. Before transaction version 2 producer
id and epoch stay the same, so the broker cannot tell the late one from one of the next transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from minibroker_lab.judge.application import producer
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.scripts import Script, step

YES, NO, UNTOLD = "yes", "no", "not told"
_AFTER_MS = 1000
"""How much later the request behind the late one comes."""


class Answer(NamedTuple):
    """said: YES, NO or UNTOLD.
    why: what the exchanges show.
    exchange: the number of the late request, 0 for none.
    """

    said: str
    why: str
    exchange: int = 0


def late_scripts(exchanges: Sequence[Exchange]) -> list[Script]:
    """The scripts for a client with these exchanges without failures: a late commit, a late abort, a late Produce. One
    that has no transaction after it is left out."""
    done = [exchange for exchange in exchanges if not exchange["errors"] and exchange["outcome"] == "answered"]
    chosen = [
        ("late commit", _first(done, "EndTxn", committed=True)),
        ("late abort", _first(done, "EndTxn", committed=False)),
        ("late Produce", _first(done, "Produce")),
    ]
    scripts = []
    for name, late in chosen:
        behind = None if late is None else _next(done, late, "AddPartitionsToTxn") or _next(done, late, "Produce")
        if late is None or behind is None:
            continue
        begun = f"the next transaction has sent {behind['api']}"
        # The records of a transaction come in a varying number of Produce requests, so nothing may depend on that
        # number.
        meanwhile = {"until": behind["api"], "since_held": True}
        if late["api"] == behind["api"]:
            begun = "its own transaction has ended"
            meanwhile["until"] = "EndTxn"
        elif late["api"] == "Produce":  # its own transaction may yet add partitions
            meanwhile["times"] = _between(done, late, behind)
        about = f"The {name.removeprefix('late ')} comes late: when {begun}."
        steps = [step({"api": late["api"], "action": "hold", "nth": _nth(done, late), "meanwhile": meanwhile})]
        after = _next(done, late, "Produce")
        delay = {"action": {"name": "delay", "ms": _AFTER_MS}, "after_hold": True}
        if behind["api"] == "Produce":
            # That of the next transaction; a late one is sent again before it.
            steps.append(step({**delay, "api": "EndTxn", "nth": 2}))
        elif after is not None:
            # A late Produce may be sent again before it, and have others behind it in its own transaction.
            again = 1 if late["api"] == "Produce" else 0
            steps.append(step({**delay, "api": "Produce", "times": _between(done, late, after) + again}))
        scripts.append(Script(name, about, tuple(steps)))
    return scripts


def _first(exchanges: Sequence[Exchange], api: str, **request: Any) -> Exchange | None:
    """The first request of a transaction with these fields."""
    for exchange in exchanges:
        fields = exchange["request"] or {}
        if exchange["api"] == api and fields.get("transactional_id") and request.items() <= fields.items():
            return exchange
    return None


def _next(exchanges: Sequence[Exchange], late: Exchange, api: str) -> Exchange | None:
    """The first request of this API in the transaction after that of `late`."""
    ends = [
        exchange["number"]
        for exchange in exchanges
        if exchange["api"] == "EndTxn" and exchange["number"] >= late["number"]
    ]
    later = (exchange for exchange in exchanges if exchange["api"] == api and ends and exchange["number"] > ends[0])
    return next((exchange for exchange in later if _transactional(exchange)), None)


def _transactional(exchange: Exchange) -> bool:
    fields = exchange["request"] or {}
    named = fields.get("transactional_id") or fields.get("v3_and_below_transactional_id") or fields.get("transactions")
    return bool(named)


def _nth(exchanges: Sequence[Exchange], chosen: Exchange) -> int:
    return sum(exchange["api"] == chosen["api"] and exchange["number"] <= chosen["number"] for exchange in exchanges)


def _between(exchanges: Sequence[Exchange], late: Exchange, chosen: Exchange) -> int:
    """How many requests of the API of `chosen` came behind `late`, up to that one."""
    return sum(
        exchange["api"] == chosen["api"] and late["number"] < exchange["number"] <= chosen["number"]
        for exchange in exchanges
    )


def answer(judged: Judged) -> Answer:
    """What a run under one of these scripts shows."""
    run = judged.run
    late = next((exchange for exchange in run.exchanges if exchange["fault"] == 1), None)
    if late is None or late["response"] is None:
        return Answer(UNTOLD, "the client did not go on to another transaction while the request was late")
    number, end_ms = late["number"], late["time_ms"] + late["took_ms"]
    if late["errors"]:
        return Answer(NO, f"{_name(late)} was refused with {late['errors'][0].partition(' ')[0]}", number)
    who = _who(late, run.produced)
    during = [
        exchange for exchange in run.exchanges if exchange["time_ms"] >= late["time_ms"] and exchange["number"] < number
    ]
    ended = next(
        (
            exchange
            for exchange in during
            if exchange["api"] == "EndTxn" and not exchange["errors"] and exchange is not late
        ),
        None,
    )
    if ended is None:
        return Answer(UNTOLD, "the client sent no other EndTxn while the request was late", number)
    begun = next(_writes(run.produced, ended, end_ms), None)
    if begun is None:
        return Answer(UNTOLD, "the client wrote no other transaction while the request was late", number)
    if begun.batch[:2] != who:
        return Answer(NO, f"{_name(late)} has not the epoch of the next transaction", number)
    if late["api"] == "Produce" and _sent_again(late, run.produced):
        why = (
            "was sent again in its own transaction, the late one is a copy: of one that is given up this tells nothing"
        )
        return Answer(UNTOLD, f"{_name(late)} {why}", number)
    did = "entered" if late["api"] == "Produce" else "ended"
    return Answer(YES, f"{_name(late)} {did} the transaction of exchange {begun.exchange['number']}", number)


def _who(late: Exchange, produced: Sequence[Produced]) -> tuple[int, int]:
    if late["api"] != "Produce":
        return producer(late)
    return next((sent.batch[:2] for sent in produced if sent.exchange is late), (-1, -1))


def _writes(produced: Sequence[Produced], ended: Exchange, end_ms: float) -> Iterator[Produced]:
    """The batches of transactions after this EndTxn that came before `end_ms`."""
    after = ended["time_ms"] + ended["took_ms"]
    return (
        sent for sent in produced if sent.transactional and after <= sent.exchange["time_ms"] + 1 <= end_ms + _AFTER_MS
    )


def _sent_again(late: Exchange, produced: Sequence[Produced]) -> bool:
    own = {(sent.topic, sent.partition, sent.batch) for sent in produced if sent.exchange is late}
    others = (sent for sent in produced if sent.exchange is not late and sent.base_offset >= 0)
    return any((sent.topic, sent.partition, sent.batch) in own for sent in others)


def _name(late: Exchange) -> str:
    return f"{late['api']} v{late['version']} (exchange {late['number']})"


def table(answers: Sequence[tuple[str, Answer]]) -> list[str]:
    """A line for each script: how often each was said, and what the first run that said so shows."""
    lines = ["can a late request act on the next transaction?"]
    for name in dict.fromkeys(name for name, _ in answers):
        own = [answer_ for script, answer_ in answers if script == name]
        for said in dict.fromkeys(answer_.said for answer_ in own):
            same = [answer_ for answer_ in own if answer_.said == said]
            lines.append(f"  {name:<12}  {said:<8}  {len(same)} of {len(own)}: {same[0].why}")
    return lines
