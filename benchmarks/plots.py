"""Plots as SVG text, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, LEGEND = 720, 380, 50, 160
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
_FONT = 'font-family="sans-serif" font-size="12"'


def line_plot(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Named lines of (x, y); x on a logarithmic scale of powers of ten, y from 0 on."""
    points = [point for line in lines.values() for point in line]
    right = max(1.0, max((log10(x) for x, _ in points), default=1.0))
    top = 1.1 * max((y for _, y in points), default=1.0)
    inner_width, inner_height = WIDTH - 2 * MARGIN - LEGEND, HEIGHT - 2 * MARGIN

    def at(x: float, y: float) -> tuple[float, float]:
        return MARGIN + inner_width * log10(x) / right, HEIGHT - MARGIN - inner_height * y / top

    parts = [_text(MARGIN, MARGIN / 2, title)]
    for power in range(int(right) + 1):
        x, y = at(10**power, 0)
        parts.append(_line(x, y, x, MARGIN))
        parts.append(_text(x, y + 16, f"{10**power:,}", "middle"))
    for tick in range(5):
        x, y = at(1, top * tick / 4)
        parts.append(_line(x, y, x + inner_width, y))
        parts.append(_text(x - 6, y + 4, f"{top * tick / 4:.2f}", "end"))
    for number, (name, line) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(_text(WIDTH - LEGEND - MARGIN / 2, MARGIN + 18 * number, name, color=color))
    return _document(parts, HEIGHT)


def bar_plot(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Groups of named bars, each group on a scale of its own, which its largest value fills."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    height = MARGIN + sum(24 + 16 * len(group) for group in groups.values()) + 10
    parts, y = [_text(10, MARGIN / 2, title)], float(MARGIN)
    for label, group in groups.items():
        parts.append(_text(10, y + 12, label))
        y += 18
        largest = max(group.values(), default=0.0) or 1.0
        for name, value in group.items():
            length = max(1.0, (WIDTH - 300) * value / largest)
            color = _COLORS[names.index(name) % len(_COLORS)]
            parts.append(f'<rect x="140" y="{y:.0f}" width="{length:.1f}" height="12" fill="{color}"/>')
            parts.append(_text(134, y + 10, name, "end"))
            parts.append(_text(146 + length, y + 10, f"{value:.4g}"))
            y += 16
        y += 6
    return _document(parts, height)


def _document(parts: Sequence[str], height: float) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{background}\n' + "\n".join(parts) + "\n</svg>\n"


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" {_FONT}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'
