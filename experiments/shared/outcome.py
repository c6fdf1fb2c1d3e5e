"""How every experiment ends: its page is kept in the run folder, written as a report and printed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.shared import claims, cli
from experiments.shared.published import Check
from profiling.results.record import Record
from profiling.results.record.page import Block, Bullets, Page, Section
from reports import experiment

if TYPE_CHECKING:
    from profiling.results.folder import RunFolder


@dataclass(frozen=True)
class Outcome:
    """`checks` decide whether the claim `what` holds, but for those that were measured elsewhere."""

    what: str
    checks: Sequence[Check]
    measured: Sequence[Block]
    notes: Sequence[str] = ()
    also: bool = True  # whatever else must be so for the claim to hold
    counted: str = "statements hold"

    @property
    def verdict(self) -> str:
        return claims.verdict(self.what, self.checks, self.also, self.counted)


def conclude(
    arguments: argparse.Namespace, doc: str, run: RunFolder[Record], outcome: Outcome, **fields: object
) -> int:
    """End an experiment that holds claims of the articles against its run; `fields` go into --json."""
    run.update(claims=claims.rows(outcome.checks))
    notes = [Bullets(outcome.notes)] if outcome.notes else []
    page = page_of(doc, run, outcome.verdict, [*outcome.measured, *notes])
    return publish(arguments, run, page, **fields, claims=run.record.claims, verdict=outcome.verdict)


def page_of(
    doc: str, run: RunFolder[Record], answer: str, measured: Sequence[Block], further: Sequence[Section] = ()
) -> Page:
    """`doc`: the experiment's docstring, which opens with its question. `further` than what was measured."""
    return experiment.page(run.record, question_of(doc), answer, measured, further)


def question_of(doc: str) -> str:
    """The question with which an experiment's docstring opens, as a sentence."""
    question = " ".join(doc.partition("\n\n")[0].removeprefix("Question: ").split())
    return question[:1].upper() + question[1:]


def publish(
    arguments: argparse.Namespace, run: RunFolder[Record], page: Page, whole: bool = True, /, **fields: object
) -> int:
    """Keep the page, make its report, print it; with --json also `fields`. Returns the exit code.

    Not `whole`: of a run that was stopped.
    """
    from reports.printers.console import show
    from reports.write import write

    run.update(page=page)
    run.finish() if whole else run.save()
    write(run.path, page)
    show(cli.console(arguments), page, f"Report: {run.path / 'report.md'}, report.html")
    if arguments.json:
        about = {"experiment": run.record.kind(), "status": run.record.status}
        cli.print_json({"run": str(run.path), **about, **fields})
    return 0
