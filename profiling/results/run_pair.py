"""Two runs held against each other: what differs between them, and how far each step moved. Torch-free.

The runs share no round, so the machine's drift between them does not cancel. Each step is therefore compared
twice: in ms, and in units of the plain read of its own bytes in the same round. What moved is what both say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from profiling.results.discrepancies import Discrepancy, Matter, discrepancies
from profiling.results.metrics import Measured
from profiling.results.record import Measurement
from profiling.results.record.samples import AGAIN_SUFFIX
from profiling.results.stats import CONFIDENCE, Interval, independent_ratio


class Cell(NamedTuple):
    """What is compared: a variant at a context, with so many rows."""

    variant: str
    context: int
    batch: int


@dataclass(frozen=True)
class Shift:
    """How far a step moved: medians over rounds, and the later run's typical step over the earlier one's.

    `per_read` is that ratio of steps in units of the plain read of their round; None where it was not read.
    `slower_by`: the share by which the step is slower, at least as far as both carry it and at most as far as
    either leaves open; its ends hold for every cell of the pair at once.
    """

    cell: Cell
    before_ms: float
    after_ms: float
    ratio: Interval | None
    per_read: Interval | None
    slower_by: Interval | None

    @property
    def word(self) -> str:
        """What both readings say, each with its whole interval."""
        if self.ratio is None:
            return "unknown"
        readings = [self.ratio, *([self.per_read] if self.per_read else [])]
        if all(reading.low > 1 for reading in readings):
            return "slower"
        if all(reading.high < 1 for reading in readings):
            return "faster"
        return "not seen" if self.ratio.contains(1.0) else "as the reads"


class RunPair:
    """An earlier run and a later one."""

    def __init__(self, before: Measurement, after: Measurement) -> None:
        self.before, self.after = Measured(before), Measured(after)

    @cached_property
    def discrepancies(self) -> list[Discrepancy]:
        """Everything known of the runs that is not the same in both, by matter."""
        return discrepancies(self.before.record, self.after.record)

    def of(self, matter: Matter) -> list[Discrepancy]:
        return [row for row in self.discrepancies if row.matter is matter]

    @cached_property
    def shifts(self) -> list[Shift]:
        """Every cell that both runs timed as the same work, in the later one's order."""
        if self.of(Matter.WORK):
            return []
        common = [cell for cell in self._cells[1] if cell in self._cells[0] and not self._why_not(cell)]
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(common))
        return [self._shift(cell, confidence) for cell in common]

    @cached_property
    def left_out(self) -> dict[Cell, str]:
        """Cells without a shift, with the reason."""
        earlier, later = self._cells
        reasons = {cell: "only in the first" for cell in earlier if cell not in later}
        reasons |= {cell: "only in the second" for cell in later if cell not in earlier}
        return reasons | {c: why for c in later if c in earlier and (why := self._why_not(c))}

    @cached_property
    def _cells(self) -> tuple[dict[Cell, pd.Series], dict[Cell, pd.Series]]:
        return _steps(self.before), _steps(self.after)

    def _why_not(self, cell: Cell) -> str | None:
        """None where the cell is the same work in both runs, else in what it differs."""
        one, other = (run.entry(cell.variant) for run in (self.before, self.after))
        slots = [entry.slots.get(cell.context) for entry in (one, other)]
        if slots[0] != slots[1]:
            return f"attends over {slots[0]} slots and {slots[1]}"
        for name in ("precision", "pages"):
            if getattr(one, name) != getattr(other, name):
                return f"{name} {getattr(one, name)} and {getattr(other, name)}"
        return None

    def _shift(self, cell: Cell, confidence: float) -> Shift:
        """`confidence` is that of `slower_by`."""
        before, after = (cells[cell] for cells in self._cells)
        ms = list(after), list(before)
        reads = list(_in_reads(self.after, cell, after)), list(_in_reads(self.before, cell, before))
        at_once = [independent_ratio(*values, confidence) for values in (ms, reads)]
        known = [reading for reading in at_once if reading is not None]
        return Shift(
            cell,
            float(before.median()),
            float(after.median()),
            ratio=independent_ratio(*ms),
            per_read=independent_ratio(*reads),
            slower_by=_slower_by(known),
        )


def _slower_by(readings: list[Interval]) -> Interval | None:
    """Of the ratios in ms and, where known, in plain reads."""
    if not readings:
        return None
    low, high = min(r.low for r in readings), max(r.high for r in readings)
    return Interval(low - 1, readings[0].mid - 1, high - 1)


def _steps(run: Measured) -> dict[Cell, pd.Series]:
    """Median step of each round, ms, of everything that was timed at full size under its own name."""
    full = run.samples[run.samples.width == run.width]
    rows = full[list(Cell._fields)].itertuples(index=False, name=None)
    cells = [cell for cell in {Cell(*row) for row in rows} if not cell.variant.endswith(AGAIN_SUFFIX)]
    order = list(run.record.variants)
    return {
        cell: _of(run, cell) for cell in sorted(cells, key=lambda cell: (order.index(cell.variant), cell))
    }


def _of(run: Measured, cell: Cell) -> pd.Series:
    visits = run.visits(cell.variant, cell.context)
    return visits[visits.batch == cell.batch].set_index("round").median_ms


def _in_reads(run: Measured, cell: Cell, steps: pd.Series) -> pd.Series:
    """Steps in units of the plain read of their bytes in the same round, by round; empty where none was."""
    workload = run.record.workload
    if workload is None or cell.batch != workload.batch:  # only that batch's bytes were read
        return pd.Series(dtype=float)
    steps, reads = steps.align(run.memory_floor(cell.variant, cell.context), join="inner")
    return steps / reads
