"""What everything that a person sees is made of. Console, Markdown and HTML are three printers of it.

Text knows two marks only, `code` and **bold**; whatever else stands in it is printed as it is. A record keeps
the page of its experiment.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling.results.record.part import Part
from profiling.results.record.pictures import Curves, Picture, Steps

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


class Sentence(Part, frozen=True, tag_field="kind", tag="sentence"):
    """One or a few sentences: a paragraph."""

    text: str


class Bullets(Part, frozen=True, tag_field="kind", tag="bullets"):
    """A list of short statements."""

    items: Sequence[str]


class Code(Part, frozen=True, tag_field="kind", tag="code"):
    """A command or a path, to be copied as it stands: nothing is marked in it, and no line is broken."""

    text: str


class Table(Part, frozen=True, tag_field="kind", tag="table"):
    """`rows` of text; the first `text_columns` stand left, the numbers behind them right.

    A cell's further lines say less important things than its first.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    title: str = ""

    def __post_init__(self) -> None:
        if not self.columns or any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("a row has not as many cells as the table has columns")


class Figure(Part, frozen=True, tag_field="kind", tag="figure"):
    """A picture, which the console leaves out; `alt` says what it shows to who cannot see it:
    empty where curves or bars say it by their numbers.

    `name` is that of its file: small letters, digits, `-` and `_`.
    """

    name: str
    caption: str
    picture: Picture
    alt: str = ""

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= NAME_CHARACTERS:
            raise ValueError(f"a figure cannot be named {self.name!r}")
        if not isinstance(self.picture, Steps):
            curves = [isinstance(panel, Curves) for panel in self.picture]
            if any(curves) and not all(curves):
                raise ValueError("curves and bars in one figure")


Block = Sentence | Bullets | Code | Table | Figure


class Section(Part, frozen=True):
    """One question and its answer. `detail`: the console leaves it to the report; `folded`: the report too
    shows it on request only.
    """

    title: str
    blocks: Sequence[Block]
    detail: bool = False
    folded: bool = False


class Page(Part, frozen=True):
    """The first section is the answer: a report begins with it, a console ends with it
    unless the title says it already.
    """

    title: str
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        """Every figure of every section, in order."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [block for block in blocks if isinstance(block, Figure)]
