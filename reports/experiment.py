"""Makes the report of any experiment that keeps what it showed: report.md, report.html and one figure.

    python -m reports.experiment runs/FOLDER

Reads the run folder alone (`shown` and `claims` in run.json, see `reports.shown`); never imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, NullLocator

from profiling.results.record import RunFolder
from reports.build import command
from reports.curves import line_style
from reports.drawing import BLUE, INK, PALE, WIDTH_IN, styled
from reports.page import Block, Bullets, Figure, Page, Section, Sentence, Table
from reports.shown import Bars, Curves, Shown
from reports.write import write
from variants.command import run
from variants.errors import UserError

CLAIM_COLUMNS = ("article", "claim", "published", "here", "holds", "why")
MAX_TICKS = 8
APART = 1.2  # ratio of neighbours whose labels stand beside each other


def build(path: Path) -> None:
    """The report of the run folder at `path`. Raises UserError where it holds none or cannot be written."""
    run = RunFolder.load(path)
    if "shown" not in run.data:
        raise UserError(f"{path} shows nothing yet: its experiment is still running, or was interrupted")
    write(path, Page(_title(run.data), sections(run.data)))


def sections(data: dict[str, Any]) -> list[Section]:
    """The answer, the figure with its tables, the published figures, and how the run was made."""
    shown = data["shown"]
    name = data["experiment"]
    measured: list[Block] = []
    if shown["curves"]:
        curves = Curves(**shown["curves"])
        alt = f"{curves.y} over {curves.x}: {', '.join([*curves.lines, *curves.levels])}"
        measured.append(Figure(name, alt, curves.caption, lambda: draw(curves)))
    if shown.get("bars"):
        bars = Bars(**shown["bars"])
        alt = f"{bars.x}: {', '.join(name for group in bars.groups.values() for name in group)}"
        measured.append(Figure(name, alt, bars.caption, lambda: draw_bars(bars)))
    for made in (Shown(**table) for table in shown["tables"]):
        measured += [Sentence(f"**{made.title}**"), Table(made.columns, made.rows, made.text_columns)]
    if shown["notes"]:
        measured.append(Bullets(shown["notes"]))
    made_by = [f"Made by `{data['command']}`, {data['started']}.", *data["warnings"]]
    answer = Section(
        "Question and answer", [Sentence(shown["question"]), Sentence(f"**{shown['verdict']}**")]
    )
    claims = [Section("The articles' figures", [claims_table(data["claims"])])] if data["claims"] else []
    return [answer, Section("Measured", measured), *claims, Section("The run", [Bullets(made_by)])]


def claims_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Published values beside those found here, and why they differ."""
    words = {True: "yes", False: "no", None: "not measured"}
    cells = [
        (*(str(row[c]) for c in CLAIM_COLUMNS[:4]), words[row["holds"]], str(row["why"])) for row in rows
    ]
    return Table(CLAIM_COLUMNS, cells, text_columns=len(CLAIM_COLUMNS))


def _title(data: dict[str, Any]) -> str:
    model = data.get("model", {}).get("name", "unknown model")
    return f"{data['experiment']}: {model} on {data.get('environment', {}).get('device_name', 'any device')}"


@styled
def draw(curves: Curves) -> Drawing:
    figure = Drawing(figsize=(WIDTH_IN, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.lines.items()):
        axes.plot(*zip(*points, strict=True), label=name, **line_style(number))
    for number, (name, height) in enumerate(curves.levels.items()):
        axes.axhline(height, label=name, color=INK, linestyle=("--", ":")[number % 2], linewidth=1.2)
    if curves.log_y:
        axes.set_yscale("log")
    if curves.log_x:
        axes.set_xscale("log")
        xs = sorted({x for points in curves.lines.values() for x, _ in points})
        ticks = xs[:: -(-len(xs) // MAX_TICKS)]
        if all(right / left > APART for left, right in itertools.pairwise(ticks)):  # else in powers of ten
            axes.set_xticks(ticks)
            axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: _minor(axes, value)))
    axes.set_xlabel(f"{curves.x} (log)" if curves.log_x else curves.x)
    axes.set_ylabel(f"{curves.y} (log)" if curves.log_y else curves.y)
    figure.legend(loc="outside upper center", ncols=5, fontsize=8.5)
    return figure


@styled
def draw_bars(bars: Bars) -> Drawing:
    rows = sum(len(group) + 1 for group in bars.groups.values())
    figure = Drawing(figsize=(WIDTH_IN, 0.6 + 0.2 * rows), layout="constrained")
    axes = figure.subplots()
    row, ticks = 0, {}
    for title, group in bars.groups.items():
        ticks[row] = title
        for name, (length, text) in group.items():
            row += 1
            ticks[row] = name
            axes.barh(row, length, 0.7, color=BLUE if name in bars.ours else PALE)
            axes.text(length, row, f" {text}", va="center", fontsize=8)
        row += 1
    axes.set_yticks(list(ticks), list(ticks.values()))
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in bars.groups else "normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(row - 0.5, -0.7)
    axes.margins(x=0.35)  # for the texts
    axes.set_xlim(left=0)
    axes.set_xlabel(bars.x)
    return figure


def _minor(axes: Axes, value: float) -> str:
    """On a logarithmic axis shorter than two decades 2 and 5 get a number too."""
    low, high = axes.get_ylim()
    return f"{value:,.10g}" if high / low < 100 and f"{value:e}"[0] in "25" else ""


def main(argv: Sequence[str] | None = None) -> None:
    command(build, "reports.experiment", argv)


if __name__ == "__main__":
    run(main)
