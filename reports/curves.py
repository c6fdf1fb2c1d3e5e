"""The report's curves, each named where it ends: a key in another order would have to be searched.

They draw what they are given and compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from matplotlib.transforms import BboxTransformTo, ScaledTranslation, blended_transform_factory
from scipy.optimize import isotonic_regression

from profiling.results.stats import Interval
from reports.drawing import INK, MARKERS, SERIES, WIDTH_IN, styled
from reports.figures import PLAIN

FRAME_IN, NAME_IN = 0.75, 0.165  # height of a plot's title and x axis, and of one name in the key beside it
SAMPLE_IN = (0.25, 0.4, 0.55)  # right of the plot: begin, marker and end of a sample of a curve
Curves = Mapping[str, Sequence[tuple[int, float]]]


@styled
def context(curves: Curves, cached: Sequence[str], floors: Sequence[tuple[int, float]]) -> Figure:
    """Per variant (tokens in the cache, ms), `floors` likewise; the `cached` ones once more, enlarged."""
    figure = _with_names(len(curves) + 1)
    left, right = figure.subplots(1, 2)
    ends = {}
    for index, (name, points) in enumerate(curves.items()):
        style = line_style(index)
        left.plot(*zip(*points, strict=True), **style)
        if name in cached:
            right.plot(*zip(*points, strict=True), **style)
            ends[name] = (points[-1], style)
        else:
            left.annotate(name, points[-1], (-6, 0), textcoords="offset points", ha="right", va="bottom")
    if floors:
        style = {"color": INK, "linestyle": "--", "linewidth": 1.4}
        for axes in (left, right):
            axes.plot(*zip(*floors, strict=True), **style)
        ends["memory floor"] = (floors[-1], style)
    for axes in (left, right):
        axes.set_xlabel("context: tokens in the cache")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xticks(sorted({n for points in curves.values() for n, _ in points}))
    left.xaxis.set_minor_locator(NullLocator())
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter(PLAIN)
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_ylabel("median step, ms")
    left.set_title("all, both axes logarithmic", loc="left")
    right.set_ylim(bottom=0)
    right.set_title("with a cache", loc="left")
    _name_at_the_end(figure, right, ends)
    return figure


@styled
def excess(curves: Mapping[str, Sequence[tuple[int, Interval]]], names: Sequence[str]) -> Figure:
    """Per variant (width, excess in ms with its interval); by its place in `names` a variant looks the same
    as in `context`.
    """
    figure = _with_names(len(curves))
    axes = figure.subplots()
    ends = {}
    for name, points in curves.items():
        style = line_style(names.index(name))
        widths, values = [w for w, _ in points], [e.mid for _, e in points]
        reach = [[e.mid - e.low for _, e in points], [e.high - e.mid for _, e in points]]
        axes.errorbar(widths, values, yerr=reach, elinewidth=0.8, **style)
        ends[name] = ((widths[-1], values[-1]), style)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(sorted({w for points in curves.values() for w, _ in points}))
    axes.set_xlim(left=0)
    axes.set_xlabel("width of the model (same layers, same ops)")
    axes.set_ylabel("step less its own read, ms (95 % interval)")
    _name_at_the_end(figure, axes, ends)
    return figure


def _with_names(entries: int) -> Figure:
    """A figure of curves with room beside them for so many names."""
    return Figure(figsize=(WIDTH_IN, max(3.7, FRAME_IN + NAME_IN * entries)), layout="constrained")


def _name_at_the_end(figure: Figure, axes: Axes, ends: Mapping[str, tuple[Any, dict[str, Any]]]) -> None:
    """A key beside the curves, in the order in which they end. `ends`: last point and look, by name."""
    low, high = axes.get_ylim()
    by_height = sorted(ends, key=lambda name: float(ends[name][0][1]))
    heights = [(ends[name][0][1] - low) / (high - low) for name in by_height]
    places = spread(heights, NAME_IN / (figure.get_figheight() - FRAME_IN))
    inches_right_of_it = figure.dpi_scale_trans + ScaledTranslation(1, 0, BboxTransformTo(axes.bbox))
    beside = blended_transform_factory(inches_right_of_it, axes.transAxes)
    for name, place in zip(by_height, places, strict=True):
        point, style = ends[name]
        thin = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            "", point, (SAMPLE_IN[0], place), textcoords=beside, arrowprops=thin, annotation_clip=False
        )
        axes.plot(SAMPLE_IN, [place] * 3, markevery=[1], transform=beside, clip_on=False, **style)
        axes.text(SAMPLE_IN[2] + 0.08, place, name, transform=beside, va="center", fontsize=8.5)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Places within 0 and 1 for rising `heights`, at least `gap` apart and otherwise as near as can be."""
    if not heights:
        return []
    shifts = gap * np.arange(len(heights))
    nearest = isotonic_regression(np.asarray(heights) - shifts).x
    return list(np.clip(nearest, 0, 1 - shifts[-1]) + shifts)


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and dash: no two lines share all three, and colour is never the only difference."""
    colours = len(SERIES)
    return {
        "color": SERIES[number % colours],
        "marker": MARKERS[(number + number // colours) % len(MARKERS)],
        "linestyle": ("-", ":", "-.")[number // colours % 3],
        "markersize": 4.5,
        "linewidth": 1.3,
    }
