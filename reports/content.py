"""What a report is made of: sections of blocks, which the Markdown and the HTML template both render.

Text knows two marks only, `code` and **bold**. Numbers become text here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure as Drawing

from profiling.metrics import Measured
from profiling.stats import Interval
from profiling.verdict import Verdict

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Text:
    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Bullets:
    kind: ClassVar[str] = "bullets"
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Table:
    """`rows` of text; the first `text_columns` stand left, the numbers behind them right."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


@dataclass(frozen=True)
class Figure:
    """A picture: `draw` makes it, `alt` says what it shows to who cannot see it."""

    kind: ClassVar[str] = "figure"
    name: str
    alt: str
    caption: str
    draw: Callable[[], Drawing]


@dataclass(frozen=True)
class Timeline:
    """Steps to zoom into; where nothing can be zoomed, the picture of the same data stands."""

    kind: ClassVar[str] = "timeline"
    data: dict[str, Any]
    colours: dict[str, str]
    picture: Figure


Block = Text | Bullets | Code | Table | Figure | Timeline


@dataclass(frozen=True)
class Section:
    """One question of the report and its answer."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Study:
    """What sections are made from: the tables of one record, its verdict, and what the folder holds."""

    measured: Measured
    judged: Verdict
    folder: str
    traces: Sequence[str] = ()
    timeline: dict[str, Any] | None = None

    @property
    def record(self) -> dict[str, Any]:
        return self.measured.record

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.record.get("variants", {})
        return found

    @property
    def timed(self) -> list[str]:
        """Variants with times, in ladder order."""
        return [name for name in self.variants if self.measured.has_times(name)]

    @property
    def short(self) -> int:
        """The smallest context: what is compared is compared there."""
        return self.measured.contexts[0]


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, never an exponent: '43.7', '0.0321', '1336'."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else _leading_zeros(abs(value))
    return f"{value:,.{max(0, digits - magnitude)}f}".replace(",", "")


def _leading_zeros(value: float) -> int:
    """0.5 -> 0, 0.05 -> -1; beyond a millionth nobody wants the digits."""
    return max(-5, int(f"{value:e}".split("e")[1]) + 1)


def interval(value: Interval | None, digits: int = 3) -> str:
    """'1.02 [0.99, 1.05]': mean and 95 % confidence interval, all with the decimals of the widest."""
    if value is None:
        return UNKNOWN
    largest = max(abs(x) for x in value)
    decimals = len(number(largest, digits).partition(".")[2])
    low, mid, high = (f"{x:.{decimals}f}" for x in value)
    return f"{mid} [{low}, {high}]"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def megabytes(value: float | None) -> str:
    """Bytes -> MB of 10^6."""
    return UNKNOWN if value is None else number(value / 1e6)


def code(name: str) -> str:
    return f"`{name}`"


def joined(names: Sequence[str]) -> str:
    """'`a`, `b` and `c`'."""
    quoted = [code(name) for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
