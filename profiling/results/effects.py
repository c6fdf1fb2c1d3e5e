"""What did each rung change, should it have, and what is left? Torch-free.

Functions take the tables of one record and return plain values; None is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from profiling.results.metrics import Measured
from profiling.results.record.traces import BUSY
from profiling.results.rung import Rung
from profiling.results.stats import Interval
from profiling.results.verdict import busy_ms
from variants.spec import option_named

UNSTABLE = 0.10  # interquartile range over median, as pyperf warns


@dataclass(frozen=True)
class Effect:
    """One rung against its parent at the smallest context, ms.

    `share` is of the parent's excess; None where that may be 0, or where nothing was found.
    """

    variant: str
    parent: str
    removes: str
    removed: Interval | None
    noise: float | None
    excess: Interval | None  # the parent's
    left: Interval | None  # the rung's own excess

    @property
    def claim(self) -> str:
        """What may be claimed: nothing smaller than the run's own noise."""
        if self.removed is None or self.noise is None:
            return "unknown"
        if self.removed.contains(0.0) or abs(self.removed.mid) <= self.noise:
            return "nothing beyond the noise"
        return "faster" if self.removed.mid > 0 else "slower"

    @property
    def share(self) -> float | None:
        """Share of the parent's excess that it removed, 0 to 1; None where that is unknown or noise."""
        if self.removed is None or self.excess is None or self.excess.low <= 0:
            return None
        return self.removed.mid / self.excess.mid if self.claim in ("faster", "slower") else None


@dataclass(frozen=True)
class Expectation:
    """`ratio` is the rung over its parent; `noise` is how far the baseline strays from itself."""

    variant: str
    quantity: str  # 'short' and 'long': step at the smallest and largest context; 'ttft'
    matters: bool
    why: str
    ratio: Interval | None
    noise: float | None

    @property
    def moved(self) -> bool | None:
        """Whether the quantity changed by more than the noise; None where either is unknown."""
        if self.ratio is None or self.noise is None:
            return None
        return not self.ratio.contains(1.0) and abs(self.ratio.mid - 1) > self.noise

    @property
    def outcome(self) -> str:
        """One of "as expected", "against expectation", "not seen" (it should have moved) and "unknown"."""
        if self.moved is None or self.ratio is None:
            return "unknown"
        if self.moved == self.matters and (not self.moved or self.ratio.mid < 1):
            return "as expected"
        return "against expectation" if self.moved else "not seen"


def effects(measured: Measured) -> list[Effect]:
    """The effect of every measured rung with a measured parent, in ladder order."""
    return [
        _effect(measured, rung, rung.parent)
        for rung in measured.ladder()
        if rung.measured and rung.parent and measured.has_times(rung.parent)
    ]


def _effect(measured: Measured, rung: Rung, parent: str) -> Effect:
    excess, removed = measured.excess_full(parent), rung.removed_ms
    ratio, step = noise(measured, "short"), measured.step_quantiles(parent, measured.contexts[0])
    noise_ms = ratio * step.median if ratio is not None and step else None
    removes = measured.entry(rung.variant).removes
    return Effect(rung.variant, parent, removes, removed, noise_ms, excess, rung.excess_ms)


def expectations(measured: Measured) -> list[Expectation]:
    """One per move of every measured rung: what should or should not change, and the measured ratio."""
    per_move = []
    for name, entry in measured.record.variants.items():
        parent, difference = entry.parent, entry.difference
        if not parent or not difference or not measured.has_times(name) or not measured.has_times(parent):
            continue
        slot, _, after = difference
        option = option_named(slot, after)
        for move in option.moves if option else ():
            quantity = move.quantity
            ratio = (
                measured.rung(name).ratio_to_parent
                if quantity == "short"
                else measured.ratio(_series(measured, name, quantity), _series(measured, parent, quantity))
            )
            per_move.append(
                Expectation(name, quantity, move.matters, move.why, ratio, noise(measured, quantity))
            )
    return per_move


def noise(measured: Measured, quantity: str) -> float | None:
    """The largest ratio, less one, that the baseline shows against itself at 95 % confidence."""
    if quantity == "short" and measured.duel is not None:
        itself = next((first for first, second in measured.duel.pairs() if first == second), None)
        share = measured.removed_share(itself, itself) if itself else None
        if share is not None:
            return max(abs(share.low), abs(share.high))
    twice = (_series(measured, name, quantity) for name in (measured.again, measured.record.baseline))
    aa = measured.ratio(*twice)
    return None if aa is None else max(abs(aa.low - 1), abs(aa.high - 1))


def _series(measured: Measured, name: str, quantity: str) -> pd.Series:
    """By round: the step at the smallest or largest context, or the time to the first token, ms."""
    if quantity == "ttft":
        rows = measured.ttft[measured.ttft.variant == name]
        return rows.set_index("round").ms.astype(float)
    return measured.steps(name, measured.contexts[0 if quantity == "short" else -1])


def rest(measured: Measured, name: str) -> dict[str, float] | None:
    """What an unprofiled step consists of, ms; the values sum to its median at the traced context.

    `memory floor`; `ops beyond it`: time in ops, the profiler's share taken off, less the memory floor; and
    the remaining gap, divided as the trace divides it. None without a trace that fits the step.
    """
    trace = measured.entry(name).trace
    if not trace or trace.problems:
        return None
    step = measured.step_quantiles(name, trace.context)
    floor = measured.memory_floor_ms(name, trace.context)
    if step is None or floor is None:
        return None
    busy = busy_ms(trace, step.median)
    if busy > step.median:  # the machine was slower while it was traced: the shares would be fiction
        return None
    parts = {k: v for k, v in trace.parts_us.items() if k not in BUSY}
    total, gap = sum(parts.values()), step.median - busy
    divided = {part: gap * us / total if total else 0.0 for part, us in parts.items()}
    return {"step": step.median, "memory floor": floor, "ops beyond it": busy - floor, **divided}


def unstable(measured: Measured, name: str, context: int) -> bool:
    """Whether single steps spread so far that their median is to be read with care."""
    spread = measured.spread(name, context)
    return spread is not None and spread > UNSTABLE


def compare_readings(measured: Measured, name: str) -> str | None:
    """Which reading of the excess is larger, `full` size or `narrow`; `same` where their intervals meet."""
    full, narrow = measured.excess_full(name), measured.excess_narrow(name)
    if full is None or narrow is None:
        return None
    if full.low <= narrow.high and narrow.low <= full.high:
        return "same"
    return "full" if full.mid > narrow.mid else "narrow"
