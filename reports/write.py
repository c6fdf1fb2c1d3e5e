"""Writes a page into a folder: report.md, report.html and figures/."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from profiling.results.folder import write_atomically
from profiling.results.record.page import Page
from reports.drawing import draw
from reports.drawing.look import for_page, png, svg
from reports.printers.html import html
from reports.printers.markdown import markdown
from variants.errors import UserError


def write(path: Path, page: Page) -> None:
    """Each file replaces an older one whole. Raises UserError where they cannot be written."""
    try:
        (path / "figures").mkdir(parents=True, exist_ok=True)
        inline = {}
        for figure in page.figures:
            drawing = draw(figure.picture)
            picture = svg(drawing)
            write_atomically(path / "figures" / f"{figure.name}.svg", picture.encode())
            write_atomically(path / "figures" / f"{figure.name}.png", png(drawing))
            inline[figure.name] = Markup(for_page(picture, figure.name))  # drawn here, nothing foreign in it
        write_atomically(path / "report.md", markdown(page).encode())
        write_atomically(path / "report.html", html(page, inline).encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
