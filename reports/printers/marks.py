"""The two marks of a text, `code` and **bold**, and what is never printed."""

from __future__ import annotations

import re
from collections.abc import Callable

MARK = re.compile(r"`(?P<code>[^`]+)`|\*\*(?P<bold>(?:`[^`]+`|[^*`])+)\*\*")
# A record is written by others: what would steer a terminal is shown as a sign that stands for nothing.
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
Written = Callable[[str], str]


def printable(text: str) -> str:
    return text.translate(CONTROL)


def marked(text: str, plain: Written, code: Written, bold: Written) -> str:
    """The text with its marks in another language: `plain` and `code` escape, `bold` gets what they gave."""
    text = printable(text)
    parts, at = [], 0
    for mark in MARK.finditer(text):
        parts.append(plain(text[at : mark.start()]))
        at = mark.end()
        inside = mark["code"]
        parts.append(bold(marked(mark["bold"], plain, code, bold)) if inside is None else code(inside))
    return "".join([*parts, plain(text[at:])])
