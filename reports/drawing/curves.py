"""Draws curves, each named where it ends: a key in another order would have to be searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import BboxTransformTo, ScaledTranslation, blended_transform_factory
from scipy.optimize import isotonic_regression

from profiling.results.record.pictures import Curves, Points
from reports.drawing.axes import number_axis
from reports.drawing.colours import INK, SERIES
from reports.drawing.look import WIDTH_IN

FRAME_IN, NAME_IN = 0.75, 0.165  # height of a plot's title and x axis, and of one name in the key beside it
ROW_IN = 2.7  # height of a plot among several below each other
SAMPLE_IN = (0.25, 0.4, 0.55)  # right of the plot: begin, marker and end of a sample of a curve
MARKERS = "osD^vPX"
Style = dict[str, Any]


def draw_curves(panels: Sequence[Curves]) -> Figure:
    """Panels as a figure: two side by side with names beside the last, more in two columns under a key."""
    styles = _styles(panels)
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(WIDTH_IN, _height_in(panels, rows)), layout="constrained")
    places = figure.subplots(rows, min(2, len(panels)), squeeze=False).flatten()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel, styles)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    if rows > 1:
        handles = [places[0].plot([], [], label=name, **style)[0] for name, style in styles.items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
        return figure
    last = _all(panels[-1])
    for axes, panel in zip(places[:-1], panels[:-1], strict=True):
        for name, points in _all(panel).items():
            if not last.get(name):
                corner = {"ha": "right", "va": "bottom", "textcoords": "offset points"}
                axes.annotate(name, points[-1][:2], (-6, 0), **corner)
    _name_at_the_end(figure, places[-1], {name: (points[-1], styles[name]) for name, points in last.items()})
    return figure


def _all(panel: Curves) -> dict[str, Points]:
    """Lines and bounds that have points."""
    return {name: points for name, points in {**panel.lines, **panel.bounds}.items() if points}


def _styles(panels: Sequence[Curves]) -> dict[str, Style]:
    """How each name looks, the same in every panel; only what is drawn."""
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    bounds = list(dict.fromkeys(name for panel in panels for name in panel.bounds))
    styles = {name: line_style(number) for number, name in enumerate(lines)}
    for number, name in enumerate(bounds):
        styles[name] = {"color": INK, "linestyle": ("--", ":")[number % 2], "linewidth": 1.4}
    drawn = {name for panel in panels for name in _all(panel)}
    return {name: style for name, style in styles.items() if name in drawn}


def _height_in(panels: Sequence[Curves], rows: int) -> float:
    if rows > 1:
        return ROW_IN * rows + 0.3
    return max(3.7, FRAME_IN + NAME_IN * len(_all(panels[-1])))


def _draw(axes: Axes, panel: Curves, styles: Mapping[str, Style]) -> None:
    for name, points in _all(panel).items():
        x, y = [point[0] for point in points], [point[1] for point in points]
        if all(len(point) == 4 for point in points):
            reach = [[p[1] - p[2] for p in points], [p[3] - p[1] for p in points]]
            axes.errorbar(x, y, yerr=reach, elinewidth=0.8, **styles[name])
        else:
            axes.plot(x, y, **styles[name])
    lines = [point for points in _all(panel).values() for point in points]
    number_axis(axes, "x", panel.log_x, [point[0] for point in lines])
    number_axis(axes, "y", panel.log_y, [value for point in lines for value in point[1:]])
    axes.set_xlabel(f"{panel.x} (log)" if panel.log_x else panel.x)
    axes.set_ylabel(f"{panel.y} (log)" if panel.log_y else panel.y)
    axes.set_title(panel.title, loc="left")


def _name_at_the_end(figure: Figure, axes: Axes, ends: Mapping[str, tuple[Sequence[float], Style]]) -> None:
    """A key beside the curves, in the order in which they end. `ends`: last point and look, by name."""
    to_axes = axes.transData - axes.transAxes
    height = {name: float(to_axes.transform(point[:2])[1]) for name, (point, _) in ends.items()}
    by_height = sorted(ends, key=height.__getitem__)
    places = spread([height[name] for name in by_height], NAME_IN / (figure.get_figheight() - FRAME_IN))
    inches_right_of_it = figure.dpi_scale_trans + ScaledTranslation(1, 0, BboxTransformTo(axes.bbox))
    beside = blended_transform_factory(inches_right_of_it, axes.transAxes)
    for name, place in zip(by_height, places, strict=True):
        point, style = ends[name]
        thin = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        start = (SAMPLE_IN[0], place)
        axes.annotate(
            "", (point[0], point[1]), start, textcoords=beside, arrowprops=thin, annotation_clip=False
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


def line_style(number: int) -> Style:
    """Colour, marker and dash: no two lines share all three, and colour is never the only difference."""
    colours = len(SERIES)
    return {
        "color": SERIES[number % colours],
        "marker": MARKERS[(number + number // colours) % len(MARKERS)],
        "linestyle": ("-", ":", "-.")[number // colours % 3],
        "markersize": 4.5,
        "linewidth": 1.3,
    }
