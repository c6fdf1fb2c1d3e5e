"""Prints a page as Markdown: report.md, with its pictures in figures/."""

from __future__ import annotations

import re
from typing import assert_never

from profiling.results.record.page import Block, Bullets, Code, Figure, Page, Section, Sentence, Table
from reports.alt import alt
from reports.printers.marks import marked, printable

TAG = re.compile(r"<(?=[A-Za-z/!?])")  # only this begins HTML, and `](` only a link
FENCE = "```"


def markdown(page: Page) -> str:
    lines = [line for section in page.sections for line in _section(section)]
    return "\n".join([f"# {_text(page.title)}", "", *lines]) + "\n"


def _section(section: Section) -> list[str]:
    lines = [line for block in section.blocks for line in _block(block)]
    if section.folded:
        lines = ["<details><summary>show</summary>", "", *lines, "</details>", ""]
    return [f"## {_text(section.title)}", "", *lines]


def _block(block: Block) -> list[str]:
    """Lines, with an empty one behind."""
    match block:
        case Sentence(text):
            return [_text(text), ""]
        case Bullets(items):
            return [*(f"- {_text(item)}" for item in items), ""]
        case Code(text):
            return _code(text)
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)
    assert_never(block)


def _text(text: str) -> str:
    """One line, in which only the two marks mean something."""
    return marked(text.replace("\n", " "), _plain, lambda code: f"`{code}`", lambda bold: f"**{bold}**")


def _plain(text: str) -> str:
    return TAG.sub("&lt;", text).replace("](", "]\\(")


def _code(text: str) -> list[str]:
    fence = FENCE
    while fence in text:
        fence += "`"
    return [f"{fence}sh", printable(text), fence, ""]


def _table(table: Table) -> list[str]:
    aligned = ["---" if number < table.text_columns else "---:" for number in range(len(table.columns))]
    rows = [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]
    title = [f"**{_text(table.title)}**", ""] if table.title else []
    return [*title, f"| {' | '.join(map(_cell, table.columns))} |", f"| {' | '.join(aligned)} |", *rows, ""]


def _cell(text: str) -> str:
    """A bar would end the cell."""
    return _text(text).replace("|", "\\|")


def _figure(figure: Figure) -> list[str]:
    shows = _text(alt(figure)).replace("]", "\\]")
    return [f"![{shows}](figures/{figure.name}.png)", "", f"*{_text(figure.caption)}*", ""]
