"""The look of every picture, and how it becomes a file or a part of a page.

800 px wide, so that a README shows it as it is.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

from reports.drawing.colours import INK, LINE, PAPER

WIDTH_IN, PNG_DPI = 8.0, 200  # an SVG's inch is 72 points, which a page shows as 100 px of 800
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "decode-floor",
}
NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}  # no metadata in the files
P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in this look, and lays out once: what is saved twice is the same picture."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            return figure

    return wrapped


def png(figure: Figure) -> bytes:
    """A picture for Markdown, on white."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata={"Software": None})
    return out.getvalue()


def svg(figure: Figure) -> str:
    """A picture as a file, on white; the same figure always gives the same text."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", dpi=PNG_DPI, facecolor=PAPER, metadata=NOTHING)
    return out.getvalue()


def for_page(picture: str, name: str) -> str:
    """An SVG file's text inside a page: its colours follow the page's, its ids are its own."""
    text = picture[picture.index("<svg") :]
    for attribute in ("width", "height"):  # the page decides, the viewBox keeps the shape
        text = re.sub(rf'(<svg[^>]*?) {attribute}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for colour, variable in ((INK, "ink"), (LINE, "line"), (PAPER, "paper")):
        text = re.sub(colour, f"var(--{variable})", text, flags=re.I)
    return text
