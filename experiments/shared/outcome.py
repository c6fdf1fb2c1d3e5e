"""How every experiment of the articles ends: tables, claims, notes, report, verdict, from one object."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.shared import claims, cli
from experiments.shared.published import Check
from experiments.shared.ruled import ruled
from reports.shown import Bars, Curves, Shown

if TYPE_CHECKING:
    from rich.table import Table

    from profiling.results.record import RunFolder


@dataclass(frozen=True)
class Outcome:
    """`statements` decide whether the claim `what` holds; `figures` are only compared."""

    what: str
    statements: Sequence[Check]
    figures: Sequence[Check]
    tables: Sequence[Shown]
    curves: Curves | None
    notes: Sequence[str] = ()
    also: bool = True  # whatever else must be so for the claim to hold
    counted: str = "statements hold"

    @property
    def verdict(self) -> str:
        return claims.verdict(self.what, self.statements, self.also, self.counted)


def report(doc: str, run: RunFolder, outcome: Outcome) -> None:
    """Store the outcome of `run` and make its report. `doc` is the experiment's docstring."""
    rows = claims.rows([*outcome.statements, *outcome.figures])
    keep(doc, run, outcome.verdict, outcome.tables, outcome.curves, outcome.notes, rows)


def keep(
    doc: str,
    run: RunFolder,
    verdict: str,
    tables: Sequence[Shown],
    picture: Curves | Bars | None,
    notes: Sequence[str],
    claims: Sequence[dict[str, object]] = (),
) -> None:
    """Store what `run` shows, whether or not an article claims anything of it, and make its report."""
    from reports.experiment import build

    question = " ".join(doc.partition("\n\n")[0].removeprefix("Question: ").split())
    run.data["claims"] = claims
    run.data["shown"] = {
        "question": question[:1].upper() + question[1:],
        "verdict": verdict,
        "tables": tables,
        "curves": picture if isinstance(picture, Curves) else None,
        "bars": picture if isinstance(picture, Bars) else None,
        "notes": notes,
    }
    run.finish()
    build(run.path)


def conclude(arguments: argparse.Namespace, doc: str, run: RunFolder, outcome: Outcome) -> int:
    """Store, report and print the outcome of `run`."""
    report(doc, run, outcome)
    checks = [*outcome.statements, *outcome.figures]
    out = cli.console(arguments)
    for table in outcome.tables:
        out.print(as_rich(table))
    out.print(claims.table(checks))
    for note in (*outcome.notes, *(f"{c.key}: {c.why}" for c in outcome.statements if c.why)):
        out.print(f"- {note}")
    out.print(f"Run folder: {run.path}", soft_wrap=True)
    out.print(outcome.verdict)
    if arguments.json:
        keep = ("experiment", "status", "claims")
        summary = {"run": str(run.path), **{key: run.data[key] for key in keep}, "verdict": outcome.verdict}
        cli.print_json(summary)
    return 0


def as_rich(table: Shown) -> Table:
    """A table of the report, as the console prints it."""
    made = ruled(
        table.title, tuple(table.columns[: table.text_columns]), tuple(table.columns[table.text_columns :])
    )
    for row in table.rows:
        made.add_row(*row)
    return made


def as_shown(table: Table) -> Shown:
    """A table of the console, as the report keeps it."""
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    return Shown(
        title=str(table.title),
        columns=[str(column.header) for column in table.columns],
        rows=list(zip(*cells, strict=True)),
        text_columns=sum(column.justify != "right" for column in table.columns),
    )
