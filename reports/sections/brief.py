"""What a floor study says on the console: the ladder, what is not in it, warnings, the verdict."""

from __future__ import annotations

from profiling.results.metrics import Measured
from profiling.results.peaks import rates
from profiling.results.record.page import Block, Bullets, Page, Section, Sentence, Table
from profiling.results.stats import Quantiles
from profiling.results.verdict import QUESTION
from reports.numbers import interval, number
from reports.sections.about import not_measured, warnings
from reports.sections.answer import said
from reports.sections.floor import PREDICTED, prediction_cells
from reports.study import Study


def brief(study: Study) -> Page:
    """The page for a console of 80 columns; the whole is in the report."""
    ladder = ladder_table(study.measured)
    measured: list[Block] = [ladder] if ladder else []
    if study.timed:
        measured.append(Sentence(f"A/A, the baseline over itself: {interval(study.measured.aa_ratio)}"))
    sections = [
        Section(QUESTION, said(study)),
        Section("The ladder", measured),
        not_measured(study),
        warnings(study),
    ]
    return Page("", [section for section in sections if section])


def ladder_table(measured: Measured) -> Table | None:
    """Steps by context, median and below it p95 and p99; at the smallest context their memory floor and
    rates. None before anything is measured.
    """
    rows = []
    for rung in measured.ladder():
        if rung.measured:
            ratio = rung.ratio_to_memory_floor
            steps = [_quantiles(step) for step in rung.steps.values()]
            figures = rates(measured, rung.variant, measured.contexts[0])
            floor = f"{number(rung.memory_floor_ms)}\n{number(figures.gb_per_s)}"
            over = f"{number(ratio.mid if ratio else None)}\n{number(figures.tokens_per_s)}"
            rows.append([rung.variant, *steps, floor, over])
    heads = ["variant", *(f"ctx {n}" for n in measured.contexts), "floor\nGB/s", "x floor\ntok/s"]
    return Table(heads, rows, title="Step, ms: median, below it p95/p99") if rows else None


def _quantiles(step: Quantiles | None) -> str:
    if step is None:
        return ""
    return f"{number(step.median)}\n{number(step.p95)}/{number(step.p99)}"


def predicted_steps(study: Study) -> Section:
    """The section of what the steps should cost, for the console before anything is timed."""
    context, peaks = study.short, study.record.peaks
    rows = [[name, *cells] for name, cells in prediction_cells(study).items()]
    table = Table(["variant", *PREDICTED], rows, title=f"Predicted step at context {context}")
    rate = number(peaks.read_gb_per_s if peaks else None)
    return Section("Predicted", [table, Bullets([f"from a read rate of {rate} GB/s measured now"])])
