"""Does per-step launch overhead set the floor? The rules, applied to the numbers of one record. Torch-free.

The rung that keeps the kernels and removes the launches decides: the CUDA graph, on a CPU the op tape. Its
parent's step minus the time its ops were busy is the gap g that removing launches could close at most.

CONFIRMED     the drop's lower bound is at least g/2, g is at least half of the excess, and the drop is
              beyond the run's own noise
REFUTED       the drop's upper bound is below g/10, or g's upper bound is below a tenth of the excess
PARTLY        the drop is beyond the noise, and neither of the above
INCONCLUSIVE  gate, trace or noise failed, or the intervals decide nothing
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profiling.results.metrics import REPLAYS, Measured
from profiling.results.stats import Interval, robust_interval


@dataclass(frozen=True)
class Numbers:
    """What decides, all in ms: the replay's drop, the gap it could close, the excess, the run's noise."""

    drop: Interval
    gap: Interval
    excess: Interval
    noise: float


@dataclass(frozen=True)
class Verdict:
    """`word` and the rule that gave it; `numbers` is None where something was missing."""

    word: str
    rule: str
    replay: str | None = None
    parent: str | None = None
    numbers: Numbers | None = None
    details: dict[str, Any] = field(default_factory=dict)


def verdict(measured: Measured) -> Verdict:
    """The verdict of a run."""
    variants = measured.record["variants"]
    replay = next((name for name in REPLAYS if variants.get(name, {}).get("status") == "proven"), None)
    if replay is None:
        return Verdict("INCONCLUSIVE", "no rung that replays the step without launches was measured")
    parent = variants[replay]["parent"]
    trace = variants[parent].get("trace", {}).get("analysis")
    if trace is None:
        return Verdict("INCONCLUSIVE", f"{parent} was not traced, so its gap is unknown", replay, parent)
    if trace["problems"]:
        return Verdict("INCONCLUSIVE", f"unreliable trace: {trace['problems'][0]}", replay, parent)
    numbers = _numbers(measured, replay, parent, trace)
    if numbers is None:
        return Verdict("INCONCLUSIVE", "too few rounds for intervals", replay, parent)
    aa = measured.aa_ratio
    if aa is None or not aa.contains(1.0):
        return Verdict(
            "INCONCLUSIVE",
            "the baseline differs from itself: the machine was not steady",
            replay,
            parent,
            numbers,
        )
    return Verdict(*judge(numbers), replay, parent, numbers)


def judge(numbers: Numbers) -> tuple[str, str]:
    """The word and the rule, from the numbers alone."""
    drop, gap, excess = numbers.drop, numbers.gap.mid, numbers.excess
    beyond = drop.low > 0 and drop.mid > numbers.noise
    if excess.low <= 0:
        return (
            "INCONCLUSIVE",
            "the floor is not measurably above the memory floor: there is no excess to explain",
        )
    if drop.low >= gap / 2 and gap >= excess.mid / 2 and beyond:
        return "CONFIRMED", "the drop is at least half of the gap, and the gap at least half of the excess"
    if drop.high < gap / 10:
        return "REFUTED", "launches were removed, and less than a tenth of the gap went with them"
    if numbers.gap.high < excess.mid / 10:
        return "REFUTED", "the gap between ops is less than a tenth of the excess: the rest is inside the ops"
    if beyond:
        return (
            "PARTLY",
            "the drop is real, but smaller than half of the gap or the gap than half of the excess",
        )
    return "INCONCLUSIVE", "the drop is within the run's noise"


def _numbers(measured: Measured, replay: str, parent: str, trace: dict[str, Any]) -> Numbers | None:
    context = measured.contexts[0]
    steps = measured.steps(parent, context)
    drop = measured.difference(steps, measured.steps(replay, context))
    excess, aa = measured.excess_full(parent), measured.aa_ratio
    gap = robust_interval(list(steps - busy_ms(trace, float(steps.median()))))
    if drop is None or excess is None or gap is None or aa is None:
        return None
    noise = max(abs(aa.low - 1), abs(aa.high - 1)) * float(steps.median())
    return Numbers(drop, gap, excess, noise)


def busy_ms(trace: dict[str, Any], plain_ms: float) -> float:
    """Time in which ops computed, per step, without the profiler's own share.

    The profiler costs about the same for every event, so of what it adds to a step the computing ops on a
    CPU carry their share of the events; device events of a GPU are timed by the device and carry none.
    """
    added_ms = max(0.0, trace["profiled_ms"] - plain_ms)
    return float(trace["busy_us"] / 1e3 - added_ms * trace["busy_share_of_events"])
