"""What a report is made of: sections of blocks, which the Markdown and the HTML template both render.

Text knows two marks only, `code` and **bold**.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure as Drawing

from profiling.results.metrics import Measured
from profiling.results.verdict import Verdict


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
        found: dict[str, dict[str, Any]] = self.record["variants"]
        return found

    @property
    def timed(self) -> list[str]:
        """Variants with times, in ladder order."""
        return [name for name in self.variants if self.measured.has_times(name)]

    @property
    def short(self) -> int:
        """The smallest context: what is compared is compared there."""
        return self.measured.contexts[0]
