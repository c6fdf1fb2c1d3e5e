"""The look of every table: title, text columns left, numbers right and never cut."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def ruled(title: str, text: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """A table for 80 columns: text columns but the first of several may wrap, nothing else does."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in text:
        made.add_column(column, no_wrap=column == text[0] and len(text) > 1)
    for column in numbers:
        made.add_column(column, justify="right", no_wrap=True)
    return made
