"""Small SVG charts, as text: nothing is fetched and nothing is run when the page is opened."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 210, 46, 22, 20
MOST_LABELS = 9
"""Up to this number of columns each has room for its label; with more, every other one."""
COLORS = {"COMMIT": "var(--commit)", "ABORT": "var(--abort)", "OPEN": "var(--ongoing)"}
PLAIN, BAD, SOFT = "var(--ongoing)", "var(--abort)", "var(--prepare)"


def _frame(body: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{body}</svg>'


def _nothing() -> str:
    return _frame(f'<text x="{WIDTH / 2}" y="30" text-anchor="middle">none</text>', 50)


def _axis(top: int) -> str:
    """The largest value, half of it where that is a whole number, and zero."""
    floor = HEIGHT - BOTTOM
    middle = (TOP + floor) / 2
    half = (
        f'<text x="{LEFT - 6}" y="{middle + 4}" text-anchor="end">{top // 2:,}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{middle}" y2="{middle}" stroke="currentColor" stroke-opacity=".1"/>'
    )
    return (half if top % 2 == 0 else "") + (
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{top:,}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{floor}" y2="{floor}" stroke="currentColor" stroke-opacity=".25"/>'
    )


def _ends(labels: Sequence[str]) -> str:
    """Labels too many to be written: the first and the last."""
    if not labels:
        return ""
    first = f'<text x="{LEFT}" y="{HEIGHT - 6}">{html.escape(labels[0])}</text>'
    last = f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{html.escape(labels[-1])}</text>'
    return first + (last if len(labels) > 1 else "")


def _column(x: float, width: float, low: float, value: int, top: int, color: str, title: str) -> tuple[str, float]:
    room = HEIGHT - BOTTOM - TOP
    size = max(value / top * room, 0.8 if value else 0)
    y = HEIGHT - BOTTOM - low - size
    shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{size:.1f}" fill="{color}">'
    return f"{shape}<title>{html.escape(title)}: {value:,}</title></rect>", size


def stacked(labels: Sequence[str], series: Mapping[str, Sequence[int]]) -> str:
    """Columns over time, one series upon the other."""
    if not labels or not series:
        return _nothing()
    top = max(sum(values) for values in zip(*series.values(), strict=True)) or 1
    width = (WIDTH - LEFT) / len(labels)
    out = [_axis(top), _ends(labels)]
    for number, label in enumerate(labels):
        low = 0.0
        for name, values in series.items():
            if values[number]:
                title = f"{label} {name}"
                shape, size = _column(
                    LEFT + number * width, width * 0.92, low, values[number], top, COLORS.get(name, PLAIN), title
                )
                out.append(shape)
                low += size
    x = LEFT + 8
    for name in series:
        out.append(f'<rect x="{x}" y="4" width="10" height="10" fill="{COLORS.get(name, PLAIN)}"/>')
        out.append(f'<text x="{x + 14}" y="13">{name}</text>')
        x += 80
    return _frame("".join(out))


def columns(labels: Sequence[str], values: Sequence[int], *, sparse: bool = False) -> str:
    """One column a label.

    sparse: too many labels, only the ends are written.
    """
    if not any(values):
        return _nothing()
    top = max(values)
    width = (WIDTH - LEFT) / len(values)
    out = [_axis(top)]
    crowded = sparse or len(labels) > 16
    every = 1 if len(labels) <= MOST_LABELS else 2
    if crowded:
        out.append(_ends(labels))
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        x = LEFT + number * width
        out.append(_column(x, width * 0.85, 0, value, top, PLAIN, label)[0])
        if not crowded and (number % every == 0 or number == len(labels) - 1):
            middle = x + width * 0.42
            out.append(
                f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle" '
                f'style="font-size:9px">{html.escape(label)}</text>'
            )
    return _frame("".join(out))


def bars(rows: Sequence[tuple[str, int, bool]]) -> str:
    """One line a row: label, value, whether it is bad."""
    if not rows:
        return _nothing()
    top = max(value for _, value, _ in rows)
    label_width, line = 200, 22
    out = []
    for number, (label, value, bad) in enumerate(rows):
        y = number * line + 4
        width = max(value / top * (WIDTH - label_width - 60), 1)
        out.append(f'<text x="{label_width - 6}" y="{y + 12}" text-anchor="end">{html.escape(label)}</text>')
        out.append(
            f'<rect x="{label_width}" y="{y}" width="{width:.1f}" height="15" fill="{BAD if bad else SOFT}"/>'
            f'<text x="{label_width + width + 6:.1f}" y="{y + 12}">{value:,}</text>'
        )
    return _frame("".join(out), len(rows) * line + 8)
