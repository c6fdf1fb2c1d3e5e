"""Two runs held against each other: what differs between them, and how far each step moved. Torch-free.

The runs share no round, so the machine's drift between them does not cancel. Each step is therefore compared
twice: in ms, and in units of the plain read of its own bytes in the same round. What moved is what both say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import pandas as pd
from msgspec.structs import asdict as fields

from profiling.results.metrics import Measured
from profiling.results.record import Environment, Measurement
from profiling.results.record.samples import AGAIN_SUFFIX
from profiling.results.stats import CONFIDENCE, Interval, independent_ratio


class Matter(StrEnum):
    """What a difference between two runs is a difference of."""

    WORK = "work"  # the steps do other work: no ratio is taken
    MACHINE = "machine"  # the ratios compare machines
    SOFTWARE = "software"  # what a comparison on one machine is made for
    METHOD = "method"  # how often and what was measured


SOFTWARE = ("os", "python")
GPU_SOFTWARE = ("runtime", "driver")


class Difference(NamedTuple):
    """Something that is not the same in both runs; "unknown" is what a run did not say."""

    matter: Matter
    what: str
    before: str
    after: str


class Cell(NamedTuple):
    """What is compared: a variant at a context, with so many rows."""

    variant: str
    context: int
    batch: int


@dataclass(frozen=True)
class Shift:
    """How far a step moved: medians over rounds, and the later run's typical step over the earlier one's.

    `per_read` is that ratio of steps in units of the plain read of their round; None where it was not read.
    """

    cell: Cell
    before_ms: float
    after_ms: float
    ratio: Interval | None
    per_read: Interval | None

    @property
    def readings(self) -> list[Interval]:
        return [reading for reading in (self.ratio, self.per_read) if reading is not None]

    @property
    def slower_by(self) -> Interval | None:
        """The share by which the step is slower, as far as both readings carry it: the ends nearest to 0."""
        if self.ratio is None:
            return None
        low, mid, high = (min(ends) - 1 for ends in zip(*self.readings, strict=True))
        return Interval(low, mid, high)

    @property
    def word(self) -> str:
        """What both readings say, each with its whole interval."""
        if self.ratio is None:
            return "unknown"
        if all(reading.low > 1 for reading in self.readings):
            return "slower"
        if all(reading.high < 1 for reading in self.readings):
            return "faster"
        return "not seen" if self.ratio.contains(1.0) else "as the reads"


class RunPair:
    """An earlier run and a later one."""

    def __init__(self, before: Measurement, after: Measurement) -> None:
        self.before, self.after = Measured(before), Measured(after)

    @cached_property
    def differences(self) -> list[Difference]:
        """Everything known of the runs that is not the same in both, by matter."""
        earlier, later = (dict(_facts(run.record)) for run in (self.before, self.after))
        rows = []
        for key in earlier | later:
            one, other = (str(run.get(key, "unknown")) for run in (earlier, later))
            if one != other:
                rows.append(Difference(*key, one, other))
        return sorted(rows, key=lambda row: list(Matter).index(row.matter))

    def of(self, matter: Matter) -> list[Difference]:
        return [row for row in self.differences if row.matter is matter]

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
        """Its intervals hold in all cells at once."""
        before, after = (cells[cell] for cells in self._cells)
        earlier, later = _in_reads(self.before, cell, before), _in_reads(self.after, cell, after)
        return Shift(
            cell,
            float(before.median()),
            float(after.median()),
            ratio=independent_ratio(list(after), list(before), confidence),
            per_read=independent_ratio(list(later), list(earlier), confidence),
        )


def _steps(run: Measured) -> dict[Cell, pd.Series]:
    """Median step of each round, ms, of everything that was timed at full size under its own name."""
    full = run.samples[run.samples.width == run.width]
    rows = full[list(Cell._fields)].itertuples(index=False, name=None)
    own = [cell for cell in {Cell(*row) for row in rows} if not cell.variant.endswith(AGAIN_SUFFIX)]
    order = list(run.record.variants)
    return {cell: _of(run, cell) for cell in sorted(own, key=lambda cell: (order.index(cell.variant), cell))}


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


def _facts(record: Measurement) -> Iterator[tuple[tuple[Matter, str], object]]:
    """What a run says of itself; of what it does not know, nothing."""
    model, workload = record.model, record.workload
    if record.environment is not None:
        yield from _machine(record.environment)
    if record.commit:
        yield (Matter.SOFTWARE, "commit"), record.commit
    if model is not None:
        yield (Matter.METHOD, "model's name"), model.name
        yield (Matter.WORK, "precision"), model.precision
        for name, value in (asdict(model.shape) if model.shape else {}).items():
            yield (Matter.METHOD if name == "n_ctx" else Matter.WORK, name), value
    for name, value in (fields(workload) if workload else {}).items():
        yield (Matter.METHOD, name.replace("_", " ")), value


def _machine(environment: Environment) -> Iterator[tuple[tuple[Matter, str], object]]:
    known = fields(environment)
    packages, gpu = known.pop("packages"), known.pop("gpu")
    del known["load_at_start"]  # of the minute, not of the machine
    known["memory"] = f"{known.pop('memory_bytes') / 2**30:.0f} GiB"
    if environment.device_name == environment.cpu:
        del known["device_name"]
    matters = {name: Matter.SOFTWARE if name in SOFTWARE else Matter.MACHINE for name in known}
    for name, value in (fields(gpu) if gpu else {}).items():
        known[f"GPU {name}"] = value
        matters[f"GPU {name}"] = Matter.SOFTWARE if name in GPU_SOFTWARE else Matter.MACHINE
    for name, value in known.items():
        if value is not None:
            yield (matters[name], name.replace("_", " ")), value
    for name, value in packages.items():
        yield (Matter.SOFTWARE, name), value or "not installed"
