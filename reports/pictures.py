"""What a figure shows, as plain data: curves, bars, or steps op by op. Drawn by `reports.drawing`. Light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Points = Sequence[Sequence[float]]
"""Each (x, y), or (x, y, low, high) where it has an interval."""


@dataclass(frozen=True)
class Curves:
    """Lines by name over one axis, and `bounds` that they are held against. `x` and `y` name axis and unit.

    A line without points is not drawn and keeps its place: a name looks the same in figures that list the
    same names.
    """

    kind: str = field(default="curves", init=False)
    x: str
    y: str
    lines: Mapping[str, Points]
    bounds: Mapping[str, Points] = field(default_factory=dict)
    log_x: bool = True
    log_y: bool = True
    title: str = ""


@dataclass(frozen=True)
class Bar:
    """`parts`: length by what it is made of; `text` stands at its end, `mark` is a bound on the same axis."""

    name: str
    parts: Mapping[str, float]
    text: str = ""
    mark: float | None = None
    group: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, first on top; bars of one `group` stand below its name."""

    kind: str = field(default="bars", init=False)
    x: str
    rows: Sequence[Bar]
    log_x: bool = False


@dataclass(frozen=True)
class Steps:
    """Steps on one time axis, op by op; a page lets them be zoomed into.

    `kinds` and `names` are what the bars' numbers stand for; see `profiling.analysis.timeline`.
    """

    kind: str = field(default="steps", init=False)
    kinds: Sequence[str]
    names: Sequence[str]
    steps: Sequence[Mapping[str, Any]]


Picture = Sequence[Curves] | Sequence[Bars] | Steps
"""Curves or bars side by side; more than two curves below each other too."""


def level(xs: Sequence[float], height: float) -> Points:
    """A bound that is the same everywhere."""
    return [(min(xs), height), (max(xs), height)] if xs else []
