"""Draws bars: horizontal ones, of what each is made, its text at its end, and a bound on the same axis; and
steps op by op on one time axis, the innermost op on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiling.results.record.pictures import Bar, Bars, Steps
from reports.drawing.axes import PLAIN
from reports.drawing.colours import INK, PAPER, colour
from reports.drawing.look import WIDTH_IN

THICK = 0.64  # of a row
CUT = 2.5  # a bar this many times as long as most of them is drawn broken, so that the others can be read
USUAL_SHARE = 0.75
MAX_LETTERS = 24  # of a row's name
TEXT_IN = 0.066  # width of a character of a bar's text


def draw_bars(panels: Sequence[Bars]) -> Figure:
    """A figure of panels of the same rows beside each other."""
    rows = _rows(panels[0].rows)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + 0.27 * len(rows)), layout="constrained")
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False).flatten()
    parts: dict[str, None] = {}
    for axes, panel in zip(places, panels, strict=True):
        _draw(axes, panel, len(panels))
        parts |= dict.fromkeys(part for bar in panel.rows for part, length in bar.parts.items() if length)
    places[0].set_yticks(range(len(rows)), [row.name if isinstance(row, Bar) else row for row in rows])
    for label, row in zip(places[0].get_yticklabels(), rows, strict=True):
        label.set_fontweight("normal" if isinstance(row, Bar) else "bold")
    places[0].set_ylim(len(rows) - 0.4, -0.6)
    if len(parts) > 1 and any(len(bar.parts) > 1 for panel in panels for bar in panel.rows):
        handles = [Patch(color=colour(part), label=part.replace("_", " ")) for part in parts]
        figure.legend(handles=handles, loc="outside upper center", ncols=5)
    return figure


def _rows(bars: Sequence[Bar]) -> list[Bar | str]:
    """Bars, and above the first of each group its name."""
    rows: list[Bar | str] = []
    group = ""
    for bar in bars:
        if bar.group != group:
            rows.append(group := bar.group)
        rows.append(bar)
    return rows


def _draw(axes: Axes, panel: Bars, abreast: int) -> None:
    lengths = [sum(bar.parts.values()) for bar in panel.rows]
    ends = [
        max(length, bar.mark or 0, *(bar.interval or ()))
        for length, bar in zip(lengths, panel.rows, strict=True)
    ]
    cut = _cut(ends) if not panel.log_x else max(ends)
    if panel.log_x:
        axes.set_xscale("log")
    for row, bar in enumerate(_rows(panel.rows)):
        if isinstance(bar, Bar):
            end = _draw_bar(axes, row, bar, cut)
            axes.text(end, row, f" {bar.text}", va="center", fontsize=8.5)
    room = max(len(bar.text) for bar in panel.rows) * TEXT_IN / (WIDTH_IN / abreast - 1.4)
    if panel.log_x:
        axes.margins(x=0.05 + room)
    else:
        axes.set_xlim(0, cut / max(0.3, 1 - room))
    axes.xaxis.set_major_formatter(PLAIN)
    axes.set_xlabel(f"{panel.x} (log)" if panel.log_x else panel.x)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _cut(ends: Iterable[float]) -> float:
    """The length at which the axis ends."""
    limit = CUT * float(np.quantile(list(ends), USUAL_SHARE))
    inside = [end for end in ends if end <= limit]
    return max(ends) if len(inside) == len(list(ends)) else 1.3 * max(inside)


def _draw_bar(axes: Axes, row: int, bar: Bar, cut: float) -> float:
    """The parts one after the other; returns where the bar ends on the picture."""
    left = 0.0
    for part, length in bar.parts.items():
        visible = min(length, cut - left)
        if visible > 0:
            axes.barh(row, visible, THICK, left=left, color=colour(part), edgecolor=PAPER, linewidth=0.4)
            left += visible
    if sum(bar.parts.values()) > cut:  # two strokes through it: the text says how long it is
        for at in (0.955, 0.97):
            axes.plot([cut * at, cut * (at + 0.008)], [row + 0.45, row - 0.45], color=PAPER, linewidth=2)
    if bar.mark is not None:
        axes.plot([bar.mark, bar.mark], [row - 0.42, row + 0.42], color=INK, linewidth=1.6)
    if bar.interval is not None:
        low, high = (min(end, cut) for end in bar.interval)
        axes.plot([low, high], [row, row], color=INK, linewidth=1.2)
        axes.plot(low, row, color=INK, marker="|", markersize=7)
        beyond = bar.interval[1] > cut  # an arrow: it goes on
        axes.plot(high, row, color=INK, marker=">" if beyond else "|", markersize=4 if beyond else 7)
        return max(left, 1.005 * high if beyond else high, bar.mark or 0.0)
    return max(left, bar.mark or 0.0)


def draw_steps(picture: Steps) -> Figure:
    lines = sum(1 + len(step.rows) for step in picture.steps)
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.42 * lines), layout="constrained")
    axes = figure.subplots()
    height, labels, used = 0, [], dict[str, None]()
    for step in picture.steps:
        # beside a device what no op covers is no part
        outside = [] if step.rows else [(0.0, step.length_us, None, None)]
        host = [bar for depth in [outside, *step.host] for bar in depth]
        for label, bars in [(step.variant, host), *((r.label, r.bars) for r in step.rows)]:
            kinds = ["python" if bar[2] is None else picture.kinds[bar[2]] for bar in bars]
            spans = [(bar[0] / 1e3, bar[1] / 1e3) for bar in bars]
            shades = [colour(kind) for kind in kinds]
            axes.broken_barh(spans, (height - 0.38, 0.76), facecolors=shades, linewidth=0, rasterized=True)
            used |= dict.fromkeys(kinds)
            labels.append(label if len(label) <= MAX_LETTERS else f"{label[: MAX_LETTERS - 3]}...")
            height += 1
    axes.set_yticks(range(height), labels)
    axes.set_ylim(height - 0.4, -0.6)
    axes.set_xlim(0, max(step.length_us for step in picture.steps) / 1e3 * 1.01)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ms from the step's start")
    handles = [Patch(color=colour(kind), label=kind.replace("_", " ")) for kind in used]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure
