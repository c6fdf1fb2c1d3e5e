"""From raw samples to numbers: every figure of console, report and `--json` comes from here. Torch-free.

Functions take the record of a run and return plain values; None is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median

import numpy as np
import pandas as pd
from msgspec.structs import astuple
from numpy.typing import NDArray

from profiling.results.duel import Duel
from profiling.results.record import (
    Entry,
    FirstToken,
    FloorRead,
    GateCheck,
    GateResult,
    Measurement,
    Part,
    PredictedReplay,
    Range,
    Sample,
)
from profiling.results.record.samples import AGAIN_SUFFIX
from profiling.results.rung import PageFloors, ReplayOutcome, Rung
from profiling.results.stats import (
    Estimate,
    Interval,
    Quantiles,
    difference_interval,
    estimate,
    intercepts,
    quantiles,
    ratio_interval,
    robust_interval,
)
from variants.ladder import REPLAYS


class Measured:
    """The samples of one record as tables, indexed once."""

    def __init__(self, record: Measurement) -> None:
        self.record = record
        shape = record.model.shape if record.model else None
        self.precision = record.model.precision if record.model else None
        self.width = shape.n_embd if shape else 0
        self.contexts = list(record.workload.contexts) if record.workload else []
        # what is not proven has no time, even if it was timed before it failed
        proven = {name for name, entry in record.variants.items() if entry.status == "proven"}
        timed = [s for s in record.samples if s.variant.removesuffix(AGAIN_SUFFIX) in proven]
        self.samples = _table(Sample, timed, [median(s.steps_ms) for s in timed])
        self._visits = dict(iter(self.samples.groupby(["variant", "context", "width"])))
        self.floors = _table(FloorRead, record.floors, [median(read.ms) for read in record.floors])
        self._reads = dict(iter(self.floors.groupby(["bytes", "pages"])))
        self._rungs: dict[str, Rung] = {}
        self.ttft = _table(FirstToken, record.ttft, [first.ms for first in record.ttft])

    def entry(self, variant: str) -> Entry:
        """The entry of a variant, by either of the baseline's names."""
        return self.record.variants[variant.removesuffix(AGAIN_SUFFIX)]

    def visits(self, variant: str, context: int, width: int | None = None) -> pd.DataFrame:
        """The visits of one variant at one context, a row each; at full size unless a width is given."""
        return self._visits.get((variant, context, width or self.width), self.samples.iloc[:0])

    def single_steps(self, variant: str, context: int) -> NDArray[np.float64]:
        """All steps of all rounds [n], ms."""
        return np.array([ms for steps in self.visits(variant, context).steps_ms for ms in steps], np.float64)

    # -- per round ----------------------------------------------------------------------------

    def steps(self, variant: str, context: int, width: int | None = None) -> pd.Series:
        """Median step of each round, ms, by round."""
        return self.visits(variant, context, width).set_index("round").median_ms

    def reads(self, n_bytes: int, pages: str) -> pd.Series:
        """Median read of these bytes in each round, ms, by round."""
        return self._reads.get((n_bytes, pages), self.floors.iloc[:0]).set_index("round").median_ms

    def memory_floor(self, variant: str, context: int, pages: str | None = None) -> pd.Series:
        """Memory floor of a full-size variant at a context, by round; on its own page size by default."""
        entry = self.entry(variant)
        predicted = entry.prediction.get(context)
        return self.reads(predicted.bytes, pages or entry.pages) if predicted else pd.Series(dtype=float)

    def memory_floor_ms(self, variant: str, context: int) -> float | None:
        """Median over rounds of the memory floor, ms; None where it was not read."""
        return _median(self.memory_floor(variant, context))

    def floor(self, variant: str) -> pd.Series:
        """Intercept of step over slots attended, ms, by round; the step itself at one fixed capacity.

        Empty where the line meets zero: such a step does not grow with a line (without a cache it does not).
        """
        slots = self.entry(variant).slots
        rounds = pd.concat([self.steps(variant, n) for n in self.contexts], axis=1).dropna()
        x = [slots[n] for n in self.contexts]
        if len(set(x)) < 2 or rounds.empty:
            return self.steps(variant, self.contexts[0])
        floors = pd.Series(intercepts(x, rounds.to_numpy())[0], index=rounds.index)
        return floors if floors.median() > 0 else pd.Series(dtype=float)

    def ttft_ms(self, variant: str) -> float | None:
        """Median over rounds of the first token after the workload's prompt, ms; None where not timed."""
        return _median(self.ttft[self.ttft.variant == variant].ms)

    # -- intervals ----------------------------------------------------------------------------

    def ratio(self, first: pd.Series, second: pd.Series) -> Interval | None:
        """`first` over `second` within the rounds that both have, 95 %; None with fewer than two."""
        first, second = first.align(second, join="inner")
        return ratio_interval(list(first), list(second)) if len(first) > 1 else None

    def difference(self, first: pd.Series, second: pd.Series) -> Interval | None:
        """`first` less `second` within the rounds that both have, 95 %; None with fewer than two."""
        first, second = first.align(second, join="inner")
        return difference_interval(list(first), list(second)) if len(first) > 1 else None

    @cached_property
    def duel(self) -> Duel | None:
        """The blocks of single steps; None in a record without them."""
        record = self.record.duel
        return Duel(record) if record and record.blocks else None

    def removed_share(self, parent: str, name: str) -> Interval | None:
        """Share of its parent's step that a rung takes off: from the duel, else from the rounds."""
        if self.duel is not None and (drop := self.duel.drop_share(parent, name)) is not None:
            return drop.interval(self.duel.confidence)
        context = self.contexts[0]
        ratio = self.ratio(self.steps(name, context), self.steps(parent, context))
        return None if ratio is None else Interval(1 - ratio.high, 1 - ratio.mid, 1 - ratio.low)

    def share(self, part: pd.Series, whole: pd.Series) -> Estimate | None:
        """The typical share of `part` in `whole` within a round; None for fewer than two rounds."""
        return estimate((part / whole).dropna().to_numpy(dtype=float))

    @property
    def again(self) -> str:
        """The second name of the run's baseline."""
        return self.record.baseline + AGAIN_SUFFIX

    @property
    def aa_ratio(self) -> Interval | None:
        """The baseline against itself under another name: the noise of this run."""
        context = self.contexts[0]
        return self.ratio(self.steps(self.again, context), self.steps(self.record.baseline, context))

    def excess_full(self, variant: str) -> Interval | None:
        """Floor minus memory floor at full size, ms."""
        reads = self.memory_floor(variant, 0)
        return self.difference(self.floor(variant), reads) if len(reads) else None

    def excess_narrow(self, variant: str) -> Interval | None:
        """Step of the narrow model with the same op count, minus its memory floor, ms."""
        widths = self.samples[self.samples.variant == variant].width
        if widths.empty or widths.min() == self.width:
            return None
        steps = self.steps(variant, self.contexts[0], int(widths.min()))
        return self.difference(steps, self.narrow_memory_floor(variant, int(widths.min())))

    def narrow_memory_floor(self, variant: str, width: int) -> pd.Series:
        """Memory floor of a narrow model of this variant at the smallest context, ms, by round."""
        entry = self.entry(variant)
        n_bytes = entry.narrow_bytes.get(width)
        return pd.Series(dtype=float) if n_bytes is None else self.reads(n_bytes, entry.pages)

    def excess_by_width(self, variant: str) -> dict[int, Interval | None]:
        """Step less its memory floor, ms, by width, at the smallest context; full size last."""
        widths = sorted({int(w) for w in self.samples[self.samples.variant == variant].width})
        return {
            width: self.difference(
                self.steps(variant, self.contexts[0], width),
                self.narrow_memory_floor(variant, width)
                if width != self.width
                else self.memory_floor(variant, self.contexts[0]),
            )
            for width in widths
        }

    # -- tables -------------------------------------------------------------------------------

    def step_quantiles(self, variant: str, context: int) -> Quantiles | None:
        """Median, p95 and p99 over all single steps, ms."""
        steps = self.single_steps(variant, context)
        return quantiles(steps.tolist()) if len(steps) else None

    def has_times(self, variant: str) -> bool:
        """Whether there is a single time of it."""
        return bool((self.samples.variant == variant).any())

    def spread(self, variant: str, context: int) -> float | None:
        """Interquartile range of single steps over their median."""
        steps = self.single_steps(variant, context)
        if not len(steps):
            return None
        low, mid, high = np.quantile(steps, [0.25, 0.5, 0.75])
        return float((high - low) / mid)

    def pipelined(self, variant: str, context: int) -> float | None:
        """Median step with one sync at the end of each visit, ms; None where it was not timed."""
        return _median(self.visits(variant, context).pipelined_ms.dropna().astype(float))

    def page_floors(self) -> list[PageFloors]:
        """Memory floor on both page sizes: one row per number of bytes, full-size steps only."""
        sizes: dict[int, set[int]] = {}
        for entry in self.record.variants.values():
            for context, predicted in entry.prediction.items():
                sizes.setdefault(predicted.bytes, set()).add(context)
        rows = []
        for size in sorted(set(sizes) & set(self.floors.bytes)):
            default, huge = self.reads(size, "default"), self.reads(size, "huge")
            ratio = self.ratio(default, huge)
            rows.append(PageFloors(size, sizes[size], ratio, _median(default), _median(huge)))
        return rows

    def replay_outcome(self, predicted: PredictedReplay) -> ReplayOutcome | None:
        """The replay of the parent that was traced, if it has times."""
        children = [n for n, e in self.record.variants.items() if e.parent == predicted.parent]
        first = self.contexts[0]  # the one that was traced; a rung that crashed may have no time there
        name = next((n for n in REPLAYS if n in children and len(self.visits(n, first))), None)
        if name is None or predicted.replay is None or predicted.replay.replay_us is None:
            return None
        p5, mid, p95 = np.quantile(self.single_steps(name, first), [0.05, 0.5, 0.95]).tolist()
        return ReplayOutcome(name, _in_ms(predicted.replay.replay_us), (p5, mid, p95))

    def ladder(self) -> list[Rung]:
        """Every variant in ladder order."""
        return [self.rung(name) for name in self.record.variants]

    def rung(self, name: str) -> Rung:
        """Everything known about one variant; worked out once."""
        if name not in self._rungs:
            self._rungs[name] = self._rung(name)
        return self._rungs[name]

    def _rung(self, name: str) -> Rung:
        entry, measured = self.record.variants[name], self.has_times(name)
        steps = {n: self.step_quantiles(name, n) for n in self.contexts}
        gate = {"proven": "pass", "failed": "fail"}.get(entry.status, "skipped")
        known = Rung(name, entry.parent, entry.difference, entry.reason, gate, measured, steps)
        if not measured:
            return known
        first, parent = self.contexts[0], entry.parent
        by_round = self.steps(name, first)
        removed = self.removed_share(parent, name) if parent else None
        before = self.step_quantiles(parent, first) if parent else None
        floors = self.memory_floor(name, first)
        return replace(
            known,
            floor_ms=robust_interval(list(self.floor(name))),
            memory_floor_ms=self.memory_floor_ms(name, first),
            ratio_to_memory_floor=self.ratio(by_round, floors) if len(floors) else None,
            ratio_to_parent=Interval(*(1 - x for x in reversed(removed))) if removed else None,
            ratio_to_baseline=self.ratio(by_round, self.steps(self.record.baseline, first)),
            removed_ms=removed.scaled(before.median) if removed and before else None,
            excess_ms=self.excess_full(name),
            excess_narrow_ms=self.excess_narrow(name),
            ttft_ms=self.ttft_ms(name),
            warm_up_s=entry.warm_up_s,
            memory=entry.memory,
            profiler_ratio=self.profiler_ratio(name),
        )

    def profiler_ratio(self, name: str) -> float | None:
        """Median step under the profiler over the median without it."""
        trace = self.record.variants[name].trace
        plain = self.step_quantiles(name, trace.context) if trace else None
        return median(trace.profiled_ms) / plain.median if trace and plain else None


def _median(values: pd.Series) -> float | None:
    return float(values.median()) if len(values) else None


def _in_ms(us: Range) -> tuple[float, float, float]:
    return us.low / 1e3, us.mid / 1e3, us.high / 1e3


def _table(kind: type[Part], rows: Sequence[Part], medians: Sequence[float]) -> pd.DataFrame:
    """A row per sample, a column per field, and the sample's median."""
    columns = kind.__struct_fields__
    return pd.DataFrame([astuple(row) for row in rows], columns=columns).assign(median_ms=medians)


def closest_check(gate: GateResult) -> GateCheck | None:
    """The check whose error came closest to what is allowed; None where none has errors."""
    near = {number: check.errors.nearness for number, check in enumerate(gate.checks) if check.errors}
    known = {number: nearness for number, nearness in near.items() if nearness is not None}
    return gate.checks[max(known, key=lambda number: known[number])] if known else None
