"""What a figure shows, as plain data: curves, bars, or steps op by op. Drawn by `reports.drawing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from profiling.results.record.part import Part, Us

Point = Annotated[Sequence[float], Meta(min_length=2, max_length=4)]
"""(x, y), or (x, y, low, high) where it has an interval."""
Points = Sequence[Point]
OpBar = tuple[Us, Us, int, int]
"""Start and length, us, and the numbers of its kind and its name; -1 for no name."""


class Curves(Part, frozen=True, tag_field="kind", tag="curves"):
    """Lines by name over one axis, and `bounds` that they are held against. `x` and `y` name axis and unit.

    A line without points is not drawn and keeps its place: a name looks the same in figures that list the
    same names.
    """

    x: str
    y: str
    lines: Mapping[str, Points]
    bounds: Mapping[str, Points] = {}
    log_x: bool = True
    log_y: bool = True
    title: str = ""


class Bar(Part, frozen=True):
    """`parts`: length by what it is made of; `text` stands at its end, `mark` is a bound on the same axis,
    `interval` the length's.
    """

    name: str
    parts: Mapping[str, float]
    text: str = ""
    mark: float | None = None
    group: str = ""
    interval: tuple[float, float] | None = None


class Bars(Part, frozen=True, tag_field="kind", tag="bars"):
    """Horizontal bars, first on top; bars of one `group` stand below its name."""

    x: str
    rows: Annotated[Sequence[Bar], Meta(min_length=1)]
    log_x: bool = False


class OpRow(Part, frozen=True):
    """Launch calls, or what one stream of a device did, or its waits."""

    label: str
    bars: Sequence[OpBar]


class DrawnStep(Part, frozen=True):
    """One step. `host`: the ops of its thread by how deeply they are nested; `rows`: the device's, if any.

    An instant belongs to the innermost op that covers it, and what none covers was spent outside ops.
    """

    variant: str
    length_us: Us
    host: Sequence[Sequence[OpBar]]
    rows: Sequence[OpRow]


class Steps(Part, frozen=True, tag_field="kind", tag="steps"):
    """Steps on one time axis; a page lets them be zoomed into.

    `kinds` and `names` are what the bars' numbers stand for: most are many times in a step.
    """

    kinds: Sequence[str]
    names: Sequence[str]
    steps: Annotated[Sequence[DrawnStep], Meta(min_length=1)]

    def __post_init__(self) -> None:
        lines = [bars for step in self.steps for bars in (*step.host, *(row.bars for row in step.rows))]
        kinds, names = range(len(self.kinds)), range(-1, len(self.names))
        if any(bar[2] not in kinds or bar[3] not in names for bars in lines for bar in bars):
            raise ValueError("a bar's kind or name is not in the lists")


Picture = Annotated[Sequence[Curves | Bars], Meta(min_length=1)] | Steps
"""Curves or bars side by side; more than two curves below each other too."""


def level(xs: Sequence[float], height: float) -> Points:
    """A bound that is the same everywhere."""
    return [(min(xs), height), (max(xs), height)] if xs else []
