"""What an experiment shows: tables and a figure, as plain data that its run folder keeps.

Console and report are made from the same data, so that they cannot differ. Light: no drawing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Shown:
    """A table of text; the first `text_columns` stand left, the numbers behind them right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


@dataclass(frozen=True)
class Curves:
    """One figure: lines by name, and dashed horizontal `levels`. `x` and `y` name axis and unit."""

    caption: str
    x: str
    y: str
    lines: Mapping[str, Points]
    levels: Mapping[str, float] = field(default_factory=dict)
    log_x: bool = True
    log_y: bool = True


@dataclass(frozen=True)
class Bars:
    """One figure: horizontal bars by group and name, each with a length in `x` and a text at its end.

    Those in `ours` stand out.
    """

    caption: str
    x: str
    groups: Mapping[str, Mapping[str, tuple[float, str]]]
    ours: Sequence[str] = ()
