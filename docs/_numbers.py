"""Puts the numbers of one record into the pages that say `numbers: true` at their head.

    make docs RUN=runs/20260101T120000-cpu-floor

Without RUN it takes the published record of the most rungs. Numbers come from the functions that the report
uses, so page and report cannot differ; what the record does not hold is written as such.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from mkdocs.exceptions import PluginError

from experiments.__main__ import questions
from profiling.results.effects import effects
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord, Record
from profiling.results.verdict import verdict
from reports.numbers import UNKNOWN, interval, number, percent
from variants.errors import UserError
from variants.ladder import ladder

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "reports" / "published"


class Numbers:
    """What a page can ask for. One instance per build."""

    def __init__(self, folder: Path) -> None:
        self.record = RunFolder.load(folder, FloorRecord).record
        self.measured = Measured(self.record)
        self.short, self.long = self.measured.contexts[0], self.measured.contexts[-1]
        self._effects = {effect.variant: effect for effect in effects(self.measured)}

    def about(self) -> str:
        """Machine, model and software of the record, in one line."""
        record = self.record
        where, model = record.environment, record.model
        machine = f"{where.device_name} ({where.simd}, {where.threads} threads)"
        of_model = f"{model.name}, {model.precision}, on {machine}"
        return f"{of_model}, torch {where.packages['torch']}, {record.started[:10]}: `{record.command}`"

    def experiments(self) -> str:
        """Every experiment with its question."""
        rows = [f"| `{name}` | {asks} |" for name, asks in questions().items()]
        return "\n".join(["| name | question |", "|---|---|", *rows])

    def step(self, name: str, context: int | None = None) -> str:
        """Median step in ms at a context, the smallest by default."""
        known = name in self.record.variants and self.measured.has_times(name)
        step = self.measured.step_quantiles(name, context or self.short) if known else None
        return f"{number(step.median)} ms" if step else UNKNOWN

    def rung(self, name: str) -> str:
        """One rung as a table: what it changes and what that did in this record."""
        variant = ladder()[name]
        rows = [("removes", variant.removes)]
        if variant.parent:
            slot, before, after = variant.difference
            rows.insert(0, ("changes", f"`{slot}`: {before} → {after} (parent `{variant.parent.name}`)"))
        entry = self.record.variants.get(name)
        if entry is None or not self.measured.has_times(name):
            why = (entry.reason if entry else "") or "not part of it"
            return _table(name, [*rows, ("in this record", f"not measured: {why}")])
        steps = f"{self.step(name)} at context {self.short}, {self.step(name, self.long)} at {self.long}"
        rows.append(("step", steps))
        if effect := self._effects.get(name):
            rows.append(("taken off the parent's step", f"{interval(effect.removed)} ms ({effect.claim})"))
            if effect.share is not None:
                rows.append(("share of the parent's excess", percent(effect.share)))
        if left := self.measured.rung(name).excess_ms:
            rows.append(("left above the memory floor", f"{interval(left)} ms"))
        return _table(name, rows)

    def ladder(self) -> str:
        """Every measured rung, one row each."""
        steps = f"step at {self.short}, ms | step at {self.long}, ms"
        lines = [f"| variant | {steps} | over memory floor | over `cat` |", "|---|--:|--:|--:|--:|"]
        for rung in self.measured.ladder():
            if rung.measured:
                medians = (rung.steps[n] for n in (self.short, self.long))
                cells = [number(step.median) if step else UNKNOWN for step in medians]
                cells += [interval(rung.ratio_to_memory_floor), interval(rung.ratio_to_baseline)]
                lines.append(f"| `{rung.variant}` | {' | '.join(cells)} |")
        return "\n".join(lines)

    def memory_floor(self) -> str:
        """Of the baseline at the smallest context."""
        ms = self.measured.memory_floor_ms("cat", self.short)
        return UNKNOWN if ms is None else f"{number(ms)} ms"

    def read_rate(self) -> str:
        return f"{number(self.record.peaks.read_gb_per_s)} GB/s" if self.record.peaks else UNKNOWN

    def bytes_per_step(self) -> str:
        predicted = self.record.variants["cat"].prediction.get(self.short)
        return f"{number(predicted.bytes / 1e6)} MB" if predicted else UNKNOWN

    def verdict(self) -> str:
        """The word, its numbers and the rule."""
        judged = verdict(self.measured)
        return f"**{judged.headline}**. {judged.sentence}"


def _table(name: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| `{name}` | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def record_folder() -> Path:
    """RUN, else the published record of the most rungs, the newest of such. PluginError where none is."""
    if chosen := os.environ.get("RUN"):
        return Path(chosen)
    published = [file.parent for file in PUBLISHED.glob("*/run.json")]
    records = {folder: RunFolder.load(folder, Record).record for folder in published}
    runs = {folder: record for folder, record in records.items() if isinstance(record, FloorRecord)}
    if not runs:
        raise PluginError(
            f"no record in {PUBLISHED}; `make floor` makes one, `make docs RUN=runs/...` takes it"
        )
    return max(runs, key=lambda folder: (len(runs[folder].variants), runs[folder].started))


def on_config(config: Any) -> Any:
    try:
        config.extra["numbers"] = Numbers(record_folder())
    except UserError as error:
        raise PluginError(str(error)) from error
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if not page.meta.get("numbers"):
        return markdown
    template = Environment(undefined=StrictUndefined, autoescape=False).from_string(markdown)
    return template.render(record=config.extra["numbers"])
