"""A run's exchanges as strokes over a time axis, one lane a connection, for the HTML page."""

from __future__ import annotations

from html import escape
from typing import Final

from minibroker.trace.recorder import line_of
from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.run import JudgedRun

STYLE: Final = """
.time{position:relative;margin:2.6em 0 1em 12em}
.time s{position:absolute;z-index:0;top:-.4em;bottom:0;width:1px;background:var(--line);text-decoration:none}
.time s span{position:absolute;bottom:100%;left:-3em;width:6em;text-align:center;white-space:nowrap}
.time s span{color:var(--quiet);font-size:12px}
.time s.moved{background:var(--text);width:2px;top:-1.6em}
.lane{position:relative;height:1.6em;background:var(--card);margin:.2em 0}
.lane b{position:absolute;right:100%;width:12em;font-weight:400;overflow:hidden;white-space:nowrap}
.lane i{position:absolute;z-index:1;top:0;bottom:0;width:2px;background:var(--quiet)}
.lane i.fault{background:var(--prepare);width:3px}.lane i.first{background:var(--abort);width:5px}"""
_LANES_SHOWN: Final = 20
_TICKS: Final = 9
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_STEPS: Final = (
    *(digit * power for power in (1, 10, 100, _SECOND) for digit in (1, 2, 5)),
    *(10_000, 15_000, 30_000),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30, 60)),
)
"""Milliseconds from one tick to the next; whole fractions of the unit above."""


def lasted(ms: int, beside: int = 0) -> str:
    """``20 ms``, ``1.5 s``, ``2 min 30 s``, ``1 h``; ``0.5 s`` beside something of a second or more."""
    if max(ms, beside) < _SECOND:
        return f"{ms} ms"
    if ms < _MINUTE:
        return f"{ms / _SECOND:g} s"
    large, name, small, rest = (_HOUR, "h", _MINUTE, "min") if ms >= _HOUR else (_MINUTE, "min", _SECOND, "s")
    over = ms % large / small
    return f"{ms // large} {name}" + (f" {over:g} {rest}" if over else "")


def ticks(length: int) -> list[int]:
    """Milliseconds at which an axis of this length has a tick: nine at most."""
    step = next((step for step in _STEPS if length < step * _TICKS), -(-length // _TICKS // _HOUR) * _HOUR)
    return list(range(0, length + 1, step))


def timeline(run: JudgedRun, first: Exchange | None) -> str:
    """HTML of a time axis with every exchange.

    first: the first violating one, which is marked.
    """
    exchanges = run.exchanges
    if not exchanges:
        return ""
    began = min(e["time_ms"] for e in exchanges)
    length = max(1, max(e["time_ms"] for e in exchanges) - began)

    def at_left(time_ms: int) -> str:
        return f"left:{min(max(time_ms - began, 0), length) * 100 / length:.2f}%"

    lanes: dict[tuple[str, str], list[Exchange]] = {}
    for exchange in exchanges:
        lanes.setdefault((exchange["client_id"] or "-", exchange["client"].rpartition(":")[2]), []).append(exchange)
    drawn = list(lanes.items())
    wanted = [lane for lane in drawn if any(e is first or e["fault"] for e in lane[1])]
    shown = [lane for lane in drawn if lane in wanted[:_LANES_SHOWN]] if len(drawn) > _LANES_SHOWN else drawn
    parts = []
    for (client, port), own in shown:
        strokes = (
            f'<i class="{mark(e, first)}" style="{at_left(e["time_ms"])}" title="{escape(line_of(e))}"></i>'
            for e in own
        )
        parts.append(f'<div class="lane"><b>{escape(client)}@{escape(port)}</b>{"".join(strokes)}</div>')
    parts += [
        f'<s style="{at_left(began + ms)}"><span>{lasted(ms, length) if ms else "0"}</span></s>' for ms in ticks(length)
    ]
    parts += [
        f'<s class="moved" style="{at_left(time_ms)}"><span>clock +{lasted(ms)}</span></s>' for time_ms, ms in run.moved
    ]
    left_out = f"<p><small>{len(drawn) - len(shown)} connections without failures left out</small></p>"
    whole = f'<div class="time">{chr(10).join(parts)}</div>'
    return whole + (left_out if len(shown) < len(drawn) else "")


def mark(exchange: Exchange, first: Exchange | None) -> str:
    """Its class."""
    if exchange is first:
        return "first"
    return "fault" if exchange["fault"] else ""
