"""What a figure shows, in words, for who cannot see it."""

from __future__ import annotations

from profiling.results.record.page import Figure
from profiling.results.record.pictures import Bars, Curves, Points, Steps
from reports.numbers import number


def alt(figure: Figure) -> str:
    """What a figure shows, in words: its own, else those that its curves and bars make."""
    if figure.alt or isinstance(figure.picture, Steps):
        return figure.alt
    return "; ".join(
        _curves(panel) if isinstance(panel, Curves) else _bars(panel) for panel in figure.picture
    )


def _curves(panel: Curves) -> str:
    drawn = {name: points for name, points in {**panel.lines, **panel.bounds}.items() if points}
    title = f"{panel.title}: " if panel.title else ""
    return f"{title}{panel.y} over {panel.x}: " + ", ".join(
        f"{n} {_ends(points)}" for n, points in drawn.items()
    )


def _ends(points: Points) -> str:
    first, last = (number(point[1]) for point in (points[0], points[-1]))
    return first if first == last else f"from {first} to {last}"


def _bars(panel: Bars) -> str:
    return f"{panel.x}: {', '.join(f'{bar.name} {bar.text}' for bar in panel.rows)}"
