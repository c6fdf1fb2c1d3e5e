"""Draws what a figure shows, and computes nothing."""

from __future__ import annotations

from matplotlib.figure import Figure

from profiling.results.record.pictures import Bars, Curves, Picture, Steps
from reports.drawing.bars import draw_bars, draw_steps
from reports.drawing.curves import draw_curves
from reports.drawing.look import styled


@styled
def draw(picture: Picture) -> Figure:
    if isinstance(picture, Steps):
        return draw_steps(picture)
    curves = [panel for panel in picture if isinstance(panel, Curves)]
    return draw_curves(curves) if curves else draw_bars([p for p in picture if isinstance(p, Bars)])
