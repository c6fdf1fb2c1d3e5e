"""Prints a page as one HTML file that fetches nothing: report.html."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import to_builtins

from profiling.results.record.page import Block, Figure, Page
from profiling.results.record.pictures import Steps
from reports.alt import alt
from reports.drawing.colours import colour
from reports.printers.marks import marked, printable


def html(page: Page, inline: Mapping[str, Markup]) -> str:
    """The page as one HTML file; `inline`: the SVG of each figure by name."""
    return _environment().get_template("report.html.jinja").render(page=page, ids=_ids(page), inline=inline)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"marked": _marked, "printable": printable, "alt": alt, "kind": _kind}
    environment.filters |= {"colours": _colours, "steps": _steps}
    environment.tests["zoomable"] = _zoomable
    return environment


def _marked(text: str) -> Markup:
    """Escaped, with tags for the marks; further lines of a cell are smaller."""
    first, *less = (marked(line, _plain, _code, "<strong>{}</strong>".format) for line in text.split("\n"))
    return Markup(
        "".join([first, *(f'<br><span class="less">{line}</span>' for line in less)])
    )  # escaped below


def _plain(text: str) -> str:
    return str(escape(text))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _kind(block: Block) -> str:
    return str(block.__struct_config__.tag)


def _zoomable(block: Block) -> bool:
    return isinstance(block, Figure) and isinstance(block.picture, Steps)


def _colours(figure: Figure) -> dict[str, str]:
    """What the bars' colours mean; without a device what no op covers is Python."""
    assert isinstance(figure.picture, Steps)
    outside = [] if any(step.rows for step in figure.picture.steps) else ["python"]
    return {kind: colour(kind) for kind in [*outside, *figure.picture.kinds]}


def _steps(figure: Figure) -> Markup:
    """Data for a script element, which ends at the first `</`."""
    assert isinstance(figure.picture, Steps)
    text = orjson.dumps({**to_builtins(figure.picture), "colours": _colours(figure)}).decode()
    return Markup(text.replace("<", "\\u003c"))  # nothing left that HTML could take for a tag


def _ids(page: Page) -> list[str]:
    """A different one for each section, to link to."""
    ids: list[str] = []
    for section in page.sections:
        slug = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        ids.append(f"{slug}-{len(ids)}" if slug in ids else slug)
    return ids
