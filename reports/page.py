"""What everything that a person sees is made of. Console, Markdown and HTML are three printers of it.

Text knows two marks only, `code` and **bold**; whatever else stands in it is printed as it is. Light:
nothing is drawn or printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Sentence:
    """One or a few sentences: a paragraph."""

    kind: ClassVar[str] = "sentence"
    text: str


@dataclass(frozen=True)
class Bullets:
    kind: ClassVar[str] = "bullets"
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A command or a path, to be copied as it stands: nothing is marked in it, and no line is broken."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Table:
    """`rows` of text; the first `text_columns` stand left, the numbers behind them right.

    A cell's further lines say less important things than its first.
    """

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, which the console leaves out; `alt` says what it shows to who cannot see it."""

    kind: ClassVar[str] = "figure"
    name: str
    alt: str
    caption: str
    draw: Callable[[], Drawing]


@dataclass(frozen=True)
class Timeline:
    """Steps to zoom into; where nothing can be zoomed, the picture of the same data stands."""

    kind: ClassVar[str] = "timeline"
    data: Mapping[str, Any]
    colours: Mapping[str, str]
    picture: Figure


Block = Sentence | Bullets | Code | Table | Figure | Timeline


@dataclass(frozen=True)
class Section:
    """One question and its answer. `detail`: the console leaves it to the report."""

    title: str
    blocks: Sequence[Block]
    detail: bool = False


@dataclass(frozen=True)
class Page:
    """The first section is the answer: a report begins with it, a console ends with it."""

    title: str
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        """Every picture, those of timelines too."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [
            block.picture if isinstance(block, Timeline) else block
            for block in blocks
            if isinstance(block, Figure | Timeline)
        ]
