"""Two traces side by side: per-step counts and times, and which kernels appeared, vanished or changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

import numpy as np

from profiling.analysis.explanation import Explanation

SAME_WORK_SHARE = 0.02
"""Kernels per step may differ by this share and the device work still counts as the same."""
SAME_BUSY_SHARE = 0.15
CHANGED_FACTOR = 1.25


Kernel = dict[str, float]
"""`per_step` (count) and `mean_us`."""


@dataclass(frozen=True)
class Changed:
    """A kernel that is not the same in both; None where it is missing."""

    name: str
    change: str
    this: Kernel | None
    against: Kernel | None

    @property
    def weight(self) -> float:
        """Time per step that came or went, us."""
        this, against = (
            side["per_step"] * side["mean_us"] if side else 0.0 for side in (self.this, self.against)
        )
        return abs(this - against)


@dataclass(frozen=True)
class Comparison:
    """`rows`: quantity -> (this trace, the other), means per step that was read; `kernels`: name -> per-step
    count and mean time in both; `finding`: what the difference is, in one sentence.
    """

    rows: dict[str, tuple[float | None, float | None]]
    kernels: list[Changed] = field(default_factory=list)
    finding: str = ""

    def as_json(self) -> dict[str, object]:
        rows = {key: {"this": a, "against": b} for key, (a, b) in self.rows.items()}
        kernels = [asdict(changed) for changed in self.kernels]
        return {"finding": self.finding, "per_step": rows, "kernels": kernels}


def compare(this: Explanation, other: Explanation) -> Comparison:
    """Compare `this` with `other` (what it is held against)."""
    mine, theirs = _per_step(this), _per_step(other)
    rows = {key: (mine.get(key), theirs.get(key)) for key in mine | theirs}
    my_kernels, their_kernels = _kernels(this), _kernels(other)
    changes = []
    for name in sorted(my_kernels.keys() | their_kernels.keys()):
        a, b = my_kernels.get(name), their_kernels.get(name)
        change = _change(a, b)
        if change:
            changes.append(Changed(name, change, a, b))
    changes.sort(key=lambda changed: -changed.weight)
    return Comparison(rows, changes, _finding(rows, my_kernels, their_kernels))


def _per_step(explanation: Explanation) -> dict[str, float | None]:
    mean = explanation.reading.mean
    counts = explanation.attribution.counts
    counts = counts[counts["step"].isin(mean.steps)]
    out: dict[str, float | None] = {"steps": float(len(mean.steps)), "step_us": mean.length_us}
    out |= {f"{part}_us": us for part, us in mean.parts_us.items()}
    means = counts.drop(columns="step").mean()
    return out | dict(zip(means.index.astype(str), means.tolist(), strict=True))


def _kernels(explanation: Explanation) -> dict[str, Kernel]:
    """Per kernel name: `per_step` (count) and `mean_us`, over the steps of the main device that were read."""
    if explanation.device is None:
        return {}
    judged = explanation.reading.mean.steps
    work = explanation.trace.device_events
    work = work[(work["device"] == explanation.device) & (work["kind"] == "kernel")]
    kernels = work[np.isin(explanation.attribution.owner.loc[work.index], judged)]
    lasted = (
        (kernels["end_ns"] - kernels["start_ns"])
        .groupby(kernels["name"].astype(object))
        .agg(["size", "mean"])
    )
    columns = (lasted.index.tolist(), lasted["size"].tolist(), lasted["mean"].tolist())
    return {
        str(name): {"per_step": n / len(judged), "mean_us": mean / 1000}
        for name, n, mean in zip(*columns, strict=True)
    }


def _change(a: Kernel | None, b: Kernel | None) -> str | None:
    if b is None:
        return "appeared"
    if a is None:
        return "vanished"
    if abs(a["per_step"] - b["per_step"]) > SAME_WORK_SHARE * b["per_step"]:
        return "other count"
    ratio = a["mean_us"] / b["mean_us"] if b["mean_us"] else 1.0
    if ratio > CHANGED_FACTOR:
        return "slower"
    return "faster" if ratio < 1 / CHANGED_FACTOR else None


def _finding(
    rows: dict[str, tuple[float | None, float | None]],
    mine: dict[str, Kernel],
    theirs: dict[str, Kernel],
) -> str:
    if not mine or not theirs:
        return "no device work to compare"
    my_count = Counter({name: round(k["per_step"]) for name, k in mine.items()})
    their_count = Counter({name: round(k["per_step"]) for name, k in theirs.items()})
    different = ((my_count - their_count) + (their_count - my_count)).total()
    share = different / max(my_count.total(), their_count.total(), 1)
    busy, busy_other = (value or 0.0 for value in rows["busy_us"])
    same_busy = abs(busy - busy_other) <= SAME_BUSY_SHARE * max(busy, busy_other)
    if share > 2 * SAME_WORK_SHARE:
        return f"different device work: {share:.0%} of the kernels of a step differ"
    calls = [sum((rows[key][side] or 0.0) for key in ("launches", "graph_launches")) for side in (0, 1)]
    steps_us = [rows["step_us"][side] or 0.0 for side in (0, 1)]
    times = f"{calls[1]:.0f} -> {calls[0]:.0f} launch calls, step {steps_us[1]:.0f} -> {steps_us[0]:.0f} us"
    busy_note = "" if same_busy else f", but busy {busy_other:.0f} -> {busy:.0f} us"
    if calls[0] < 0.5 * calls[1]:
        return f"same device work, launches removed: {times}{busy_note}"
    if calls[1] < 0.5 * calls[0]:
        return f"same device work, launches added: {times}{busy_note}"
    return f"same device work, as many launches: {times}{busy_note}"
