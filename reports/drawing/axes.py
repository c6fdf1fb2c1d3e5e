"""Axes that always have numbers: where the points lie if there is room, else round ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from reports.drawing.colours import INK

MIN, MAX = 4, 8  # numbers on an axis
APART = 1.2  # ratio of neighbours on a logarithmic axis whose labels stand beside each other
APART_LINEAR = 1 / 12  # of the axis
ROUND = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))  # of a decade, coarse to fine
PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")


def number_axis(axes: Axes, name: Literal["x", "y"], log: bool, values: Sequence[float]) -> None:
    """Scale, limits and numbers of one axis of the `values` that are drawn."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    if log:
        axes.set_xscale("log") if name == "x" else axes.set_yscale("log")
    elif min(values, default=0) >= 0:
        axes.set_xlim(left=0) if name == "x" else axes.set_ylim(bottom=0)
    elif name == "y":
        axes.axhline(0, color=INK, linewidth=0.8)
    low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
    ticks = _at_points(values, log, high - low) if name == "x" else []
    if log or ticks:
        axis.set_major_locator(FixedLocator(ticks or round_numbers(low, high)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(PLAIN)


def _at_points(values: Sequence[float], log: bool, length: float) -> list[float]:
    """The values themselves, thinned out; none where two labels would touch."""
    every = sorted(set(values))
    ticks = every[:: -(-len(every) // MAX) or 1]
    pairs = itertools.pairwise(ticks)
    apart = (
        all(b / a > APART for a, b in pairs) if log else all(b - a > APART_LINEAR * length for a, b in pairs)
    )
    return ticks if apart else []


def round_numbers(low: float, high: float) -> list[float]:
    """Numbers for a logarithmic axis from `low` to `high`, whether it spans decades or a part of one."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ROUND:
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= MIN:
            return inside[:: -(-len(inside) // MAX)]
    return [float(tick) for tick in MaxNLocator(MIN + 1).tick_values(low, high) if low <= tick <= high]
