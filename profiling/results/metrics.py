"""From raw samples to numbers: every figure of console, report and `--json` comes from here. Torch-free.

Functions take the record of a run (the content of run.json) and return plain values; None is unknown.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiling.results.duel import Duel
from profiling.results.stats import (
    Estimate,
    Interval,
    difference_interval,
    estimate,
    intercepts,
    quantiles,
    ratio_interval,
    robust_interval,
)
from variants.ladder import BASELINE

AGAIN_SUFFIX = " again"
AGAIN = BASELINE + AGAIN_SUFFIX  # the baseline under a second name: the run's own noise
REPLAYS = ("cudagraph", "tape")  # rungs that keep the kernels and remove the launches; the first decides
Record = dict[str, Any]


class Measured:
    """The samples of one record as tables, indexed once."""

    def __init__(self, record: Record) -> None:
        self.record: Record = {"variants": {}, **record}  # none yet in a run that was interrupted at once
        self.width = record["model"]["n_embd"] if "model" in record else 0
        self.contexts: list[int] = list(record["workload"]["contexts"]) if "workload" in record else []
        columns = ["round", "variant", "width", "context", "steps_ms", "pipelined_ms"]
        samples = pd.DataFrame(record.get("samples", []), columns=columns)
        # what failed has no time, even if it was timed before it failed
        failed = [name for name, entry in self.record["variants"].items() if entry.get("status") == "failed"]
        samples = samples[~samples.variant.str.removesuffix(AGAIN_SUFFIX).isin(failed)]
        self.samples = samples.assign(median_ms=[float(np.median(ms)) for ms in samples.steps_ms])
        self._visits = dict(iter(self.samples.groupby(["variant", "context", "width"])))
        floors = pd.DataFrame(record.get("floors", []), columns=["round", "bytes", "pages", "ms"])
        self.floors = floors.assign(median_ms=[float(np.median(ms)) for ms in floors.ms])
        self._reads = dict(iter(self.floors.groupby(["bytes", "pages"])))
        self._rows: dict[str, dict[str, Any]] = {}
        self.ttft = pd.DataFrame(record.get("ttft", []), columns=["round", "variant", "ms"])

    def _entry(self, variant: str) -> Record:
        """What is recorded of a variant, by either of the baseline's names."""
        entry: Record = self.record["variants"][variant.removesuffix(AGAIN_SUFFIX)]
        return entry

    def visits(self, variant: str, context: int, width: int | None = None) -> pd.DataFrame:
        """What was timed of one variant at one context; at full size unless a width is given."""
        return self._visits.get((variant, context, width or self.width), self.samples.iloc[:0])

    def single_steps(self, variant: str, context: int) -> NDArray[np.float64]:
        """All steps of all rounds, ms."""
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
        entry = self._entry(variant)
        if "prediction" not in entry:
            return pd.Series(dtype=float)
        return self.reads(entry["prediction"][str(context)]["bytes"], pages or entry["pages"])

    def memory_floor_ms(self, variant: str, context: int) -> float | None:
        """Median over rounds, ms."""
        return _median(self.memory_floor(variant, context))

    def floor(self, variant: str) -> pd.Series:
        """Intercept of step over slots attended, ms, by round; the step itself at one fixed capacity.

        Empty where the line meets zero: such a step does not grow with a line (without a cache it does not).
        """
        slots = self._entry(variant)["slots"]
        rounds = pd.concat([self.steps(variant, n) for n in self.contexts], axis=1).dropna()
        x = [slots[str(n)] for n in self.contexts]
        if len(set(x)) < 2 or rounds.empty:
            return self.steps(variant, self.contexts[0])
        found = pd.Series(intercepts(x, rounds.to_numpy())[0], index=rounds.index)
        return found if found.median() > 0 else pd.Series(dtype=float)

    # -- intervals ----------------------------------------------------------------------------

    def ratio(self, first: pd.Series, second: pd.Series) -> Interval | None:
        first, second = first.align(second, join="inner")
        return ratio_interval(list(first), list(second)) if len(first) > 1 else None

    def difference(self, first: pd.Series, second: pd.Series) -> Interval | None:
        first, second = first.align(second, join="inner")
        return difference_interval(list(first), list(second)) if len(first) > 1 else None

    @cached_property
    def duel(self) -> Duel | None:
        """The blocks of single steps; None in a record without them."""
        stored = self.record.get("duel")
        return Duel.of(stored) if stored and stored["blocks"] else None

    def removed_share(self, parent: str, name: str) -> Interval | None:
        """What a rung takes off the step of its parent, as a share: from the duel, else from the rounds."""
        if self.duel is not None and (found := self.duel.drop_share(parent, name)) is not None:
            return found.interval(self.duel.confidence)
        context = self.contexts[0]
        ratio = self.ratio(self.steps(name, context), self.steps(parent, context))
        return None if ratio is None else Interval(1 - ratio.high, 1 - ratio.mid, 1 - ratio.low)

    def share(self, part: pd.Series, whole: pd.Series) -> Estimate | None:
        """The typical share within a round."""
        return estimate((part / whole).dropna().to_numpy(dtype=float))

    @property
    def aa_ratio(self) -> Interval | None:
        """The baseline against itself under another name: the noise of this run."""
        context = self.contexts[0]
        return self.ratio(self.steps(AGAIN, context), self.steps(BASELINE, context))

    def excess_full(self, variant: str) -> Interval | None:
        """Floor minus memory floor at full size, ms."""
        reads = self.memory_floor(variant, 0)
        return self.difference(self.floor(variant), reads) if len(reads) else None

    def excess_narrow(self, variant: str) -> Interval | None:
        """Step of the narrow model with the same op count, minus its own read, ms."""
        widths = self.samples[self.samples.variant == variant].width
        if widths.empty or widths.min() == self.width:
            return None
        steps = self.steps(variant, self.contexts[0], int(widths.min()))
        return self.difference(steps, self.own_read(variant, int(widths.min())))

    def own_read(self, variant: str, width: int) -> pd.Series:
        """Memory floor of a narrow model of this variant at the smallest context, ms, by round."""
        entry = self.record["variants"][variant]
        n_bytes = entry.get("narrow_bytes", {}).get(str(width))
        return pd.Series(dtype=float) if n_bytes is None else self.reads(n_bytes, entry["pages"])

    def excess_by_width(self, variant: str) -> dict[int, Interval | None]:
        """Step less its own read, ms, by width, at the smallest context; full size last."""
        widths = sorted({int(w) for w in self.samples[self.samples.variant == variant].width})
        return {
            width: self.difference(
                self.steps(variant, self.contexts[0], width),
                self.own_read(variant, width)
                if width != self.width
                else self.memory_floor(variant, self.contexts[0]),
            )
            for width in widths
        }

    # -- tables -------------------------------------------------------------------------------

    def step_quantiles(self, variant: str, context: int) -> dict[str, float] | None:
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

    def page_floors(self) -> list[dict[str, Any]]:
        """Memory floor on both page sizes: one row per number of bytes, full-size steps only, ms."""
        entries = self.record["variants"].values()
        sizes: dict[int, set[int]] = {}
        for entry in entries:
            for n, predicted in entry.get("prediction", {}).items():
                sizes.setdefault(predicted["bytes"], set()).add(int(n))
        rows = []
        for size in sorted(set(sizes) & set(self.floors.bytes)):
            default, huge = self.reads(size, "default"), self.reads(size, "huge")
            row = {"bytes": size, "contexts": sizes[size], "ratio": self.ratio(default, huge)}
            for pages, ms in (("default", _median(default)), ("huge", _median(huge))):
                row |= {f"{pages}_ms": ms, f"{pages}_gb_per_s": None if ms is None else size / ms / 1e6}
            rows.append(row)
        return rows

    def replay_outcome(self, predicted: Record) -> dict[str, Any] | None:
        """A stored prediction of the replay (low, mid, high) beside the measured (p5, median, p95), ms."""
        children = [n for n, e in self.record["variants"].items() if e["parent"] == predicted["from"]]
        first = self.contexts[0]  # the one that was traced; a rung that crashed may have no time there
        name = next((n for n in REPLAYS if n in children and len(self.visits(n, first))), None)
        if name is None or not predicted.get("replay_us"):
            return None
        low, mid, high = (predicted["replay_us"][key] / 1e3 for key in ("low", "mid", "high"))
        steps = self.single_steps(name, first)
        p5, median, p95 = np.quantile(steps, [0.05, 0.5, 0.95]).tolist()
        return {
            "variant": name,
            "predicted_ms": (low, mid, high),
            "measured_ms": (p5, median, p95),
            "ratio": median / mid,
            "inside": low <= median <= high,
        }

    def ladder(self) -> list[dict[str, Any]]:
        """One row per variant in ladder order: what it changed, whether it is proven, and what it costs."""
        return [self.row(name) for name in self.record["variants"]]

    def row(self, name: str) -> dict[str, Any]:
        """Everything known about one variant; worked out once."""
        if name not in self._rows:
            self._rows[name] = self._row(name)
        return self._rows[name]

    def _row(self, name: str) -> dict[str, Any]:
        entry = self.record["variants"][name]
        row: dict[str, Any] = {
            "variant": name,
            **{key: entry[key] for key in ("parent", "difference", "status", "reason")},
            "gate": {"proven": "pass", "failed": "fail"}.get(entry["status"], "skipped"),
            "steps": {n: self.step_quantiles(name, n) for n in self.contexts},
            "measured": self.has_times(name),
        }
        if not row["measured"]:
            return row
        first, parent = self.contexts[0], entry["parent"]
        own = self.steps(name, first)
        removed = self.removed_share(parent, name) if parent else None
        before = self.step_quantiles(parent, first) if parent else None
        floors = self.memory_floor(name, first)
        return row | {
            "floor_ms": robust_interval(list(self.floor(name))),
            "memory_floor_ms": self.memory_floor_ms(name, first),
            "ratio_to_memory_floor": self.ratio(own, floors) if len(floors) else None,
            "ratio_to_parent": Interval(*(1 - x for x in reversed(removed))) if removed else None,
            "ratio_to_baseline": self.ratio(own, self.steps(BASELINE, first)),
            "removed_ms": Interval(*(x * before["median"] for x in removed)) if removed and before else None,
            "excess_ms": self.excess_full(name),
            "excess_narrow_ms": self.excess_narrow(name),
            "ttft_ms": _median(self.ttft[self.ttft.variant == name].ms),
            "warm_up_s": entry.get("warm_up_s"),
            "memory": entry.get("memory"),
            "profiler_ratio": self.profiler_ratio(name),
        }

    def profiler_ratio(self, name: str) -> float | None:
        """Median step under the profiler over the median without it."""
        trace = self.record["variants"][name].get("trace")
        plain = self.step_quantiles(name, trace["context"]) if trace else None
        return float(np.median(trace["profiled_ms"])) / plain["median"] if trace and plain else None

    def traced_ms(self, name: str) -> dict[str, float] | None:
        """Parts of a traced step, the profiler's cost included, and their sum as `step`; means over steps."""
        trace = self.record["variants"][name].get("trace")
        if not trace:
            return None
        parts = {part: us / 1e3 for part, us in trace["analysis"]["parts_us"].items()}
        return {**parts, "step": sum(parts.values())}


def _median(values: pd.Series) -> float | None:
    return float(values.median()) if len(values) else None


def closest_check(gate: Record) -> dict[str, Any] | None:
    """The check of a gate result whose error came closest to what is allowed; None where none has errors."""
    compared = [check for check in gate["checks"] if check.get("rms") is not None]
    return max(
        compared,
        key=lambda check: max(check["rms"] / check["allowed_rms"], check["max"] / check["allowed_max"]),
        default=None,
    )
