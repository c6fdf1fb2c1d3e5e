"""Makes the report of a run folder, from the folder alone: report.md, report.html and figures/.

    python -m reports.build runs/FOLDER

Never imports torch.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from profiling.analysis import timeline as op_by_op
from profiling.results.metrics import Measured
from profiling.results.record import RunFolder, write_atomically
from profiling.results.verdict import verdict
from reports.content import Block, Figure, Section, Study, Timeline
from reports.drawing import for_page, png, svg
from reports.sections import sections
from variants.command import run
from variants.errors import UserError

MARKS = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<strong>\1</strong>"),
)


def build(path: Path) -> None:
    """Report, page and figures of the run folder at `path`; each file replaces an older one whole.

    Raises UserError where the folder holds no run or cannot be written.
    """
    run = RunFolder.load(path)
    if "shown" in run.data:  # of an experiment that says what it shows
        from reports import experiment  # which is built on this module

        experiment.build(path)
        return
    try:
        timeline = _timeline(run)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    write(path, title(run), sections(study(run, timeline)))


def study(run: RunFolder, timeline: dict[str, Any] | None = None) -> Study:
    """What the sections are made from."""
    measured = Measured(run.data)
    traces = sorted(file.name for file in run.traces.glob("*.pt.trace.json*"))
    return Study(measured, verdict(measured), str(run.path), traces, timeline)


def write(path: Path, title: str, made: Sequence[Section]) -> None:
    """report.md, report.html and figures/ of these sections; UserError where they cannot be written."""
    try:
        (path / "figures").mkdir(exist_ok=True)
        inline = {}
        for figure in _figures(made):
            drawing = figure.draw()
            picture = svg(drawing)
            write_atomically(path / "figures" / f"{figure.name}.svg", picture.encode())
            write_atomically(path / "figures" / f"{figure.name}.png", png(drawing))
            inline[figure.name] = Markup(for_page(picture, figure.name))  # drawn here, nothing foreign in it
        write_atomically(path / "report.md", markdown(title, made).encode())
        write_atomically(path / "report.html", html(title, made, inline).encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def markdown(title: str, made: Sequence[Section]) -> str:
    return _environment().get_template("report.md.jinja").render(title=title, sections=made)


def html(title: str, made: Sequence[Section], inline: dict[str, Markup]) -> str:
    """`inline`: the SVG of each figure by name."""
    return _environment().get_template("report.html.jinja").render(title=title, sections=made, inline=inline)


def title(run: RunFolder) -> str:
    model = run.data.get("model", {}).get("name", "unknown model")
    device = run.data.get("environment", {}).get("device_name", "unknown device")
    return f"The decode floor of {model} on {device}"


def _timeline(run: RunFolder) -> dict[str, Any] | None:
    """From the traces, kept as small data beside the figures; from there where the traces are gone."""
    kept = run.path / "figures" / "timeline.json"
    made = op_by_op.timeline(run)
    if made is not None:
        kept.parent.mkdir(exist_ok=True)
        write_atomically(kept, orjson.dumps(made))
        return made
    stored: dict[str, Any] | None = orjson.loads(kept.read_bytes()) if kept.exists() else None
    return stored


def _figures(made: Sequence[Section]) -> list[Figure]:
    blocks: list[Block] = [block for section in made for block in section.blocks]
    return [
        block.picture if isinstance(block, Timeline) else block
        for block in blocks
        if isinstance(block, (Figure, Timeline))
    ]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=lambda name: bool(name and name.endswith(".html.jinja")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"marked": _marked, "cell": _cell, "slug": _slug, "timeline_json": _timeline_json}
    return environment


def _marked(text: str) -> Markup:
    """Escaped HTML of a text with `code` and **bold**."""
    html = str(escape(text))
    for pattern, tag in MARKS:
        html = pattern.sub(tag, html)
    return Markup(html)  # escaped above


def _timeline_json(block: Timeline) -> Markup:
    """Data for a script element, which ends at the first `</`."""
    text = orjson.dumps({**block.data, "colours": block.colours}).decode()
    return Markup(text.replace("<", "\\u003c"))  # nothing left that HTML could take for a tag


def _cell(text: str) -> str:
    """A table cell of Markdown: a bar or a line break would end it."""
    return text.replace("|", "\\|").replace("\n", " ")


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def command(make: Callable[[Path], object], module: str, argv: Sequence[str] | None = None) -> None:
    """The command line of a module that makes a report: says where it is."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description="Make the report of a run folder."
    )
    parser.add_argument("run", type=Path, help="a run folder, e.g. runs/20260101T120000-cpu-floor")
    path = parser.parse_args(argv).run
    make(path)
    sys.stdout.write(f"{path / 'report.md'}\n{path / 'report.html'}\n")


def main(argv: Sequence[str] | None = None) -> None:
    command(build, "reports.build", argv)


if __name__ == "__main__":
    run(main)
