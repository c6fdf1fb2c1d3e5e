"""Prints parts on a terminal or into a pipe: within its width, and no number and no name is ever cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from profiling.results.record.page import Block, Bullets, Code, Figure, Page, Section, Sentence, Table
from reports.printers.marks import marked, printable

MIN_WRAPPED = 16  # characters: a column of text is not wrapped into less
BETWEEN = 3  # characters between two columns; the edges take one each


def show(console: Console, page: Page, *files: str) -> None:
    """Print a page without its details and pictures, then where the `files` are, and the answer last.

    Into a pipe the answer's sentences are one line each, however long: they are what `tail -1` and grep read.
    """
    answer, *others = page.sections
    _show_all(console, others, files)
    _show_answer(console, answer.blocks)


def show_from_the_top(console: Console, page: Page, *files: str) -> None:
    """Print a page as its report stands: title, answer, what is behind it, and where the `files` are."""
    answer, *others = page.sections
    _show_answer(console, [Sentence(f"**{page.title}**"), *answer.blocks])
    _show_all(console, others, files)


def _show_all(console: Console, sections: Sequence[Section], files: Sequence[str]) -> None:
    for section in sections:
        if not section.detail and not section.folded:
            show_section(console, section)
    for file in files:
        _print(console, Code(file))


def _show_answer(console: Console, blocks: Sequence[Block]) -> None:
    for block in blocks:
        if isinstance(block, Sentence) and not console.is_terminal:
            console.print(_text(block.text), soft_wrap=True)
        else:
            _print(console, block)


def show_section(console: Console, section: Section) -> None:
    console.print(Rule(_text(section.title), align="left", style="dim"))
    print_blocks(console, section.blocks)


def print_blocks(console: Console, blocks: Sequence[Block]) -> None:
    for block in blocks:
        _print(console, block)


def _print(console: Console, block: Block) -> None:
    match block:
        case Sentence(text):
            console.print(_text(text))
        case Bullets(items):
            for item in items:
                console.print(_text(f"- {item}"))
        case Code(text):
            console.print(Text(printable(text)), soft_wrap=True)
        case Table():
            for table in rich_tables(block, console.width):
                console.print(table)
        case Figure():
            pass
        case _:
            assert_never(block)


def rich_tables(table: Table, width: int) -> list[RichTable]:
    """A table as one that fits into `width`, or as several: each with the text and as many numbers as fit."""
    text, numbers = [*range(table.text_columns)], [*range(table.text_columns, len(table.columns))]
    tables: list[RichTable] = []
    while numbers or not tables:
        for count in range(len(numbers), -1, -1):
            columns = [*text, *numbers[: max(count, 1)]]
            widths = _widths(table, columns, width)
            if widths:
                break
        widths = widths or _widths(table, columns, width, least_text=1)
        tables.append(_rich(table, columns, widths, title="" if tables else table.title))
        numbers = numbers[len(columns) - len(text) :]
    return tables


def _widths(
    table: Table, columns: Sequence[int], width: int, least_text: int = MIN_WRAPPED
) -> list[int] | None:
    """Characters for each of these columns; None where they do not fit beside each other."""
    cells = [_longest(row[column].split("\n") for row in table.rows) for column in columns]
    heads = [table.columns[column] for column in columns]
    least = [
        min(cell, least_text) if _wraps(table, column, cell, width) else max(cell, _longest([head.split()]))
        for column, cell, head in zip(columns, cells, heads, strict=True)
    ]
    widths = [max(cell, cell_len(_plain(head))) for cell, head in zip(cells, heads, strict=True)]
    while sum(widths) + len(widths) * BETWEEN - 1 > width:
        spare = [has if has > needs else 0 for has, needs in zip(widths, least, strict=True)]
        if not any(spare):
            return None
        widths[spare.index(max(spare))] -= 1
    return widths


def _wraps(table: Table, column: int, cell: int, width: int) -> bool:
    """Numbers never break, nor does what names a row, unless the name takes more than half of the width."""
    if column == 0 and len(table.columns) > 1:
        return cell > width // 2
    return column < table.text_columns


def _longest(texts: Iterable[Sequence[str]]) -> int:
    return max((cell_len(_plain(part)) for parts in texts for part in parts), default=0)


def _rich(table: Table, columns: Sequence[int], widths: Sequence[int] | None, title: str) -> RichTable:
    """`widths` None: as rich divides them, breaking whatever must break."""
    rich_table = RichTable(
        title=_text(title) if title else None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for number, column in enumerate(columns):
        rich_table.add_column(
            _text(table.columns[column]),
            justify="left" if column < table.text_columns else "right",
            overflow="fold",
            width=widths[number] if widths else None,
        )
    for row in table.rows:
        rich_table.add_row(*(_cell(row[column]) for column in columns))
    return rich_table


def _cell(text: str) -> Text:
    first, *less = text.split("\n")
    return Text("\n").join([_text(first), *(Text.assemble((_plain(line), "dim")) for line in less)])


def _text(text: str) -> Text:
    return Text.from_markup(marked(text, escape, escape, "[bold]{}[/]".format), emoji=False)


def _plain(text: str) -> str:
    return _text(text).plain
