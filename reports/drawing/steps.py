"""Draws steps op by op on one time axis, the innermost op on top."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiling.results.record.pictures import Steps
from reports.drawing.colours import colour
from reports.drawing.look import WIDTH_IN


def draw_steps(shown: Steps) -> Figure:
    lines = sum(1 + len(step.rows) for step in shown.steps)
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.42 * lines), layout="constrained")
    axes = figure.subplots()
    height, labels, used = 0, [], dict[str, None]()
    for step in shown.steps:
        # beside a device what no op covers is no part
        outside = [] if step.rows else [(0.0, step.length_us, None, None)]
        host = [bar for depth in [outside, *step.host] for bar in depth]
        for label, bars in [(step.variant, host), *((r.label, r.bars) for r in step.rows)]:
            kinds = ["python" if bar[2] is None else shown.kinds[bar[2]] for bar in bars]
            spans = [(bar[0] / 1e3, bar[1] / 1e3) for bar in bars]
            shades = [colour(kind) for kind in kinds]
            axes.broken_barh(spans, (height - 0.38, 0.76), facecolors=shades, linewidth=0, rasterized=True)
            used |= dict.fromkeys(kinds)
            labels.append(label)
            height += 1
    axes.set_yticks(range(height), labels)
    axes.set_ylim(height - 0.4, -0.6)
    axes.set_xlim(0, max(step.length_us for step in shown.steps) / 1e3 * 1.01)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ms from the step's start")
    handles = [Patch(color=colour(kind), label=kind.replace("_", " ")) for kind in used]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure
