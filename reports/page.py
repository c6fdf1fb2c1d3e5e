"""What everything that a person sees is made of. Console, Markdown and HTML are three printers of it.

Text knows two marks only, `code` and **bold**; whatever else stands in it is printed as it is. A page is
plain data: a record keeps the page of its experiment, and `restored` brings it back. Light: nothing is
drawn here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.pictures import Bar, Bars, Curves, Picture, Steps


@dataclass(frozen=True)
class Sentence:
    """One or a few sentences: a paragraph."""

    kind: str = field(default="sentence", init=False)
    text: str


@dataclass(frozen=True)
class Bullets:
    kind: str = field(default="bullets", init=False)
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A command or a path, to be copied as it stands: nothing is marked in it, and no line is broken."""

    kind: str = field(default="code", init=False)
    text: str


@dataclass(frozen=True)
class Table:
    """`rows` of text; the first `text_columns` stand left, the numbers behind them right.

    A cell's further lines say less important things than its first.
    """

    kind: str = field(default="table", init=False)
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, which the console leaves out; `alt` says what it shows to who cannot see it.

    `name` is that of its file: small letters, digits, `-` and `_`.
    """

    kind: str = field(default="figure", init=False)
    name: str
    alt: str
    caption: str
    picture: Picture

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_"):
            raise ValueError(f"a figure cannot be named {self.name!r}")


Block = Sentence | Bullets | Code | Table | Figure


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
        blocks = [block for section in self.sections for block in section.blocks]
        return [block for block in blocks if isinstance(block, Figure)]

    @staticmethod
    def restored(data: Mapping[str, Any]) -> Page:
        """A page that a record keeps. Raises KeyError, TypeError or ValueError where it is none."""
        sections = [
            Section(section["title"], [_block(block) for block in section["blocks"]], section["detail"])
            for section in data["sections"]
        ]
        return Page(data["title"], sections)


def _block(data: Mapping[str, Any]) -> Block:
    kind, fields = _divided(data)
    match kind:
        case "sentence":
            return Sentence(**fields)
        case "bullets":
            return Bullets(**fields)
        case "code":
            return Code(**fields)
        case "table":
            return Table(**fields)
        case "figure":
            return Figure(**{**fields, "picture": _picture(fields["picture"])})
    raise ValueError(f"no part of a page is a {kind!r}")


def _picture(data: Any) -> Picture:
    if isinstance(data, dict):
        return Steps(**_divided(data)[1])
    panels = [_divided(panel) for panel in data]
    if all(kind == "curves" for kind, _ in panels):
        return [Curves(**fields) for _, fields in panels]
    return [Bars(**{**fields, "rows": [Bar(**row) for row in fields["rows"]]}) for _, fields in panels]


def _divided(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return data["kind"], {name: value for name, value in data.items() if name != "kind"}
