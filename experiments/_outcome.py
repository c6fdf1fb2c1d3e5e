"""How every experiment of the articles ends: tables, claims, notes, report, verdict, from one object."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments import _claims, _cli
from experiments._published import Check
from experiments._ruled import ruled
from reports.shown import Curves, Shown

if TYPE_CHECKING:
    from profiling.record import RunFolder


@dataclass(frozen=True)
class Outcome:
    """`statements` decide whether the claim `what` holds; `figures` are only compared."""

    what: str
    statements: Sequence[Check]
    figures: Sequence[Check]
    tables: Sequence[Shown]
    curves: Curves | None
    notes: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        return _claims.verdict(self.what, self.statements, counted="statements hold")


def conclude(arguments: argparse.Namespace, doc: str, run: RunFolder, outcome: Outcome) -> int:
    """Store, print and report the outcome of `run`. `doc` is the experiment's docstring."""
    from reports.experiment import build

    checks = [*outcome.statements, *outcome.figures]
    question = " ".join(doc.partition("\n\n")[0].removeprefix("Question: ").split())
    run.data["claims"] = _claims.rows(checks)
    run.data["shown"] = {
        "question": question[:1].upper() + question[1:],
        "verdict": outcome.verdict,
        "tables": outcome.tables,
        "curves": outcome.curves,
        "notes": outcome.notes,
    }
    run.finish()
    build(run.path)
    out = _cli.console(arguments)
    for table in outcome.tables:
        out.print(_rich(table))
    out.print(_claims.table(checks))
    for note in (*outcome.notes, *(f"{c.key}: {c.why}" for c in outcome.statements if c.why)):
        out.print(f"- {note}")
    out.print(f"Run folder: {run.path}", soft_wrap=True)
    out.print(outcome.verdict)
    if arguments.json:
        keep = ("experiment", "status", "claims")
        summary = {"run": str(run.path), **{key: run.data[key] for key in keep}, "verdict": outcome.verdict}
        _cli.print_json(summary)
    return 0


def _rich(table: Shown) -> Any:
    made = ruled(
        table.title, tuple(table.columns[: table.text_columns]), tuple(table.columns[table.text_columns :])
    )
    for row in table.rows:
        made.add_row(*row)
    return made
