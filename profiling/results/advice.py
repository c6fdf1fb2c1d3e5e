"""What to try next on this machine, and what it may bring? Stated rules over the numbers of one record.

A gain is measured (this run timed it) or a bound (nothing can save more than what is there). What lies
within the run's noise is left out. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiling.results.effects import noise, rest
from profiling.results.metrics import Measured
from profiling.results.stats import Interval


@dataclass(frozen=True)
class Advice:
    """`gain_ms` per token: an interval where it was measured, else the most that it can be.

    `ttft_ms`: the first token of the rung that is left and of the one recommended, where both are known.
    """

    what: str
    gain_ms: Interval | float
    rule: str
    ttft_ms: tuple[float, float] | None = None

    @property
    def most_ms(self) -> float:
        """The gain in ms by which advice is ordered: the middle of what was measured, else its bound."""
        return self.gain_ms.mid if isinstance(self.gain_ms, Interval) else self.gain_ms


def fastest(measured: Measured, precision: str | None = None) -> str | None:
    """The proven variant with the smallest median step at the smallest context, of a precision or of all."""
    steps = {}
    for name, entry in measured.record.variants.items():
        proven = entry.status == "proven" and measured.has_times(name)
        if proven and precision in (None, entry.precision):
            step = measured.step_quantiles(name, measured.contexts[0])
            if step:
                steps[name] = step.median
    return min(steps, key=lambda name: steps[name]) if steps else None


def advice(measured: Measured) -> list[Advice]:
    """What to try next, the largest gain first; nothing that lies within the run's noise."""
    precision = measured.precision
    best = fastest(measured, precision)
    step = measured.step_quantiles(best, measured.contexts[0]) if best else None
    aa = noise(measured, "short") if best else None
    if best is None or step is None or aa is None:
        return []
    candidates = [
        *_gains(measured, best, precision),
        *_bounds(measured, best),
        *_pages(measured, best),
        *_bytes(measured, best, precision),
    ]
    worth = [a for a in candidates if a.most_ms > aa * step.median]
    return sorted(worth, key=lambda a: -a.most_ms)


def batch_rows(measured: Measured) -> int | None:
    """Rows that one read of the weights can serve before arithmetic takes as long as the read."""
    best, workload = fastest(measured), measured.record.workload
    predicted = measured.entry(best).prediction.get(measured.contexts[0]) if best else None
    if predicted is None or predicted.arithmetic_ms is None or workload is None:
        return None
    return workload.batch * max(1, int(predicted.memory_ms / predicted.arithmetic_ms))


def _gains(measured: Measured, best: str, precision: str | None) -> list[Advice]:
    context = measured.contexts[0]
    gains = []
    baseline = measured.record.baseline
    pairs = [(baseline, best, f"use `{best}` instead of `{baseline}`")]
    reduced = [n for n, e in measured.record.variants.items() if e.precision != precision]
    pairs += [
        (best, name, f"store fewer bits per weight: `{name}`, at the drift shown above") for name in reduced
    ]
    for before, after, what in pairs:
        gain = measured.difference(measured.steps(before, context), measured.steps(after, context))
        if gain and gain.low > 0:
            first, then = measured.ttft_ms(before), measured.ttft_ms(after)
            firsts = None if first is None or then is None else (first, then)
            gains.append(Advice(what, gain, f"measured: step of `{before}` less step of `{after}`", firsts))
    return gains


def _bounds(measured: Measured, best: str) -> list[Advice]:
    left = rest(measured, best)
    if left is None:
        return []
    gap = left["step"] - left["memory floor"] - left["ops beyond it"]
    return [
        Advice(
            f"take the rest of the launching out of `{best}`",
            gap,
            "at most its gap: step less the time in which ops were busy",
        ),
        Advice(
            f"faster ops in `{best}`: fuse them, or read the weights in one better pass",
            left["ops beyond it"],
            "at most the time in ops less the memory floor",
        ),
    ]


def _pages(measured: Measured, best: str) -> list[Advice]:
    if measured.entry(best).pages == "huge":
        return []
    context = measured.contexts[0]
    gain = measured.difference(
        measured.memory_floor(best, context, "default"), measured.memory_floor(best, context, "huge")
    )
    if gain is None or gain.low <= 0:
        return []
    return [
        Advice("put the weights on huge pages", gain.mid, "at most what a plain read of the same bytes gains")
    ]


def _bytes(measured: Measured, best: str, precision: str | None) -> list[Advice]:
    entries = measured.record.variants
    if any(e.precision != precision and measured.has_times(n) for n, e in entries.items()):
        return []  # measured above
    floor = measured.memory_floor_ms(best, measured.contexts[0])
    if floor is None:
        return []
    return [
        Advice(
            "store the weights in half the bits",
            floor / 2,
            "at most half of the memory floor, which is read at the same rate",
        )
    ]
