"""How often is the instrument wrong, and how far off? From duels with a known answer; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling.results.duel import LOOKS, MIN_TRACES, TRACE_EVERY, confidence_of_look
from profiling.results.record import FalseAlarms, InjectedWait, RunAnswer, StepDifference, Truth, WordsGiven
from profiling.results.rules import UNDECIDED, Numbers, judge
from profiling.results.stats import CONFIDENCE, Estimate, Interval, combined, estimate, widening

IN_PYTHON, PER_OP, IN_A_KERNEL = "once per step, in Python", "before every op", "inside a kernel"
NORMAL = 1.959963984540054  # quantile at 97.5 %
SHARE_OFF, MS_OFF = 0.05, 0.02  # a wait is recovered within the larger of these
NEIGHBOURS = 8  # blocks that are drawn together, so that their correlation stays


def removed_ms(difference: StepDifference) -> Interval | None:
    """What the second step takes off the first, ms; None for fewer than two blocks."""
    share = estimate(difference.shares)
    return None if share is None else share.interval().scaled(difference.step_ms)


def false_alarm(difference: StepDifference) -> bool:
    """Whether a step is called different from itself."""
    ms = removed_ms(difference)
    return ms is not None and not ms.contains(0.0)


def table_alarms(runs: Sequence[RunAnswer]) -> tuple[int, int]:
    """In how many runs the rounds call the baseline different from itself, and of how many that is known."""
    ratios = [Interval(*run.aa_ratio) for run in runs if run.aa_ratio is not None]
    return sum(not ratio.contains(1.0) for ratio in ratios), len(ratios)


def _tolerance_ms(ms: float) -> float:
    return max(SHARE_OFF * ms, MS_OFF)


def precise(difference: StepDifference, ms: float) -> bool:
    """Whether the interval is narrow enough to say whether a wait of `ms` is recovered."""
    interval = removed_ms(difference)
    return interval is not None and (interval.high - interval.low) / 2 <= _tolerance_ms(ms) / 2


def recovered(wait: InjectedWait) -> bool:
    """Whether the duel finds it within 5 % or 20 us, whichever is more."""
    ms = removed_ms(wait.difference)
    return ms is not None and abs(ms.mid - wait.ms) <= _tolerance_ms(wait.ms)


def share_in_gap(wait: InjectedWait) -> Interval | None:
    """Share of the wait that the traces put where no op was busy; None for fewer than two traces."""
    plain, waiting = estimate(wait.gaps_plain_ms), estimate(wait.gaps_waiting_ms)
    if plain is None or waiting is None:
        return None
    return combined((1 / wait.ms, waiting), (-1 / wait.ms, plain)).interval()


def placed(wait: InjectedWait) -> bool | None:
    """Whether the traces put most of it on the right side: only what a kernel spends is not the gap's.

    None where they leave it open.
    """
    share = share_in_gap(wait)
    if share is None or share.contains(1 / 2):
        return None
    return (share.low > 1 / 2) == (wait.kind != IN_A_KERNEL)


def share_interval(hits: int, of: int) -> Interval:
    """A share with its 95 % interval after Wilson (1927), which holds near 0 and 1 too."""
    z, share = NORMAL, hits / of
    middle, half = share + z * z / (2 * of), z * (share * (1 - share) / of + z * z / (4 * of * of)) ** 0.5
    return Interval((middle - half) / (1 + z * z / of), share, (middle + half) / (1 + z * z / of))


def wrong_words(given: WordsGiven) -> int:
    """Runs that were given a word which is not true."""
    return sum(count for word, count in given.words.items() if word not in (given.truth.word, UNDECIDED))


# -- the estimators that were tried ------------------------------------------------------------

Draw = Callable[[int, np.random.Generator], NDArray[np.float64]]


def student(values: NDArray[np.float64]) -> Interval:
    """Mean with Student's t."""
    from scipy.special import stdtrit

    n, mid = len(values), float(values.mean())
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * float(values.std(ddof=1)) / n**0.5
    return Interval(mid - half, mid, mid + half)


def widened(interval: Interval, values: NDArray[np.float64]) -> Interval:
    """For values that may be like their neighbours, as `estimate` does it."""
    low, mid, high = interval
    by = widening(values)
    return Interval(mid - (mid - low) * by, mid, mid + (high - mid) * by)


def signed_ranks(values: NDArray[np.float64]) -> Interval:
    """Median of the means of all pairs (Hodges and Lehmann 1963) with Wilcoxon's signed-rank interval, by
    the normal approximation.
    """
    n = len(values)
    first, second = np.triu_indices(n)
    means = np.sort((values[first] + values[second]) / 2)
    outside = n * (n + 1) / 4 - NORMAL * (n * (n + 1) * (2 * n + 1) / 24) ** 0.5
    cut = max(0, int(outside))
    return Interval(float(means[cut]), float(np.median(means)), float(means[-1 - cut]))


def trimmed(values: NDArray[np.float64]) -> Interval:
    """What every number of a report is estimated by."""
    centre = estimate(values)
    assert centre is not None
    return centre.interval()


ESTIMATORS: dict[str, Callable[[NDArray[np.float64]], Interval]] = {
    "mean, Student's t": student,
    "mean, Student's t, widened": lambda values: widened(student(values), values),
    "Hodges-Lehmann, signed ranks": signed_ranks,
    "Hodges-Lehmann, signed ranks, widened": lambda values: widened(signed_ranks(values), values),
    "mean of the middle 60 %, Yuen's t, widened (used)": trimmed,
}


def noises(measured: Sequence[float]) -> dict[str, Draw]:
    """By name; `measured`: shares of duels of a step with itself."""
    return {
        "this machine's blocks": lambda n, rng: _drawn(measured, n, False, rng),
        "a load in a third of them": lambda n, rng: _drawn(measured, n, True, rng),
        "normal": lambda n, rng: rng.normal(size=n),
        "normal with one burst": _with_a_burst,
        "neighbours alike (0.4)": _alike,
    }


def _with_a_burst(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Every seventh value in one burst of either sign."""
    values, length = rng.normal(size=n), max(1, round(n / 7))
    start = int(rng.integers(n - length + 1))
    values[start : start + length] += rng.choice([-1.0, 1.0], length) * rng.exponential(14.0, length)
    return values


def _alike(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Autoregressive of order one, after thirty values of its own."""
    values = rng.normal(size=n + 30)
    for at in range(1, len(values)):
        values[at] += 0.4 * values[at - 1]
    return values[30:]


def false_alarms(measured: Sequence[float], sizes: Sequence[int], times: int, seed: int) -> list[FalseAlarms]:
    """Every estimator on the same series of every noise."""
    rng, rows = np.random.default_rng(seed), []
    for noise, draw in noises(measured).items():
        for n in sizes:
            series = [draw(n, rng) for _ in range(times)]
            scale = float(np.median([np.median(np.abs(values)) for values in series])) or 1.0
            for name, interval in ESTIMATORS.items():
                intervals = [interval(values) for values in series]
                alarms = sum(not one.contains(0.0) for one in intervals)
                width = float(np.median([one.high - one.low for one in intervals])) / scale
                rows.append(FalseAlarms(name, noise, n, alarms, times, width))
    return rows


# -- the verdict on made truths ----------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """What was seen around the truth: blocks as shares of the step, traces of the gap."""

    blocks: Sequence[float]
    traces: Sequence[float]


def words(truth: Truth, noise: Noise, times: int, loaded: bool, seed: int) -> dict[str, int]:
    """How often each word is given on this truth, with looks as in a run.

    Noise is drawn from what was measured, in runs of neighbours so that its correlation stays; a load that
    comes and goes doubles the noise of a third of each series.
    """
    rng = np.random.default_rng(seed)
    counted: dict[str, int] = {}
    for _ in range(times):
        word = _word(truth, noise, loaded, rng)
        counted[word] = counted.get(word, 0) + 1
    return counted


def _word(truth: Truth, noise: Noise, loaded: bool, rng: np.random.Generator) -> str:
    drops, reads, again = (_drawn(noise.blocks, LOOKS[-1], loaded, rng) for _ in range(3))
    traces = _drawn(noise.traces, LOOKS[-1] // TRACE_EVERY, loaded, rng)
    for number, look in enumerate(LOOKS, start=1):
        gaps = truth.gap / truth.step * (1 + traces[: max(MIN_TRACES, look // TRACE_EVERY)])
        drop = _in_ms(truth.step, truth.drop / truth.step + drops[:look])
        numbers = Numbers(
            drop,
            _in_ms(truth.step, gaps),
            _in_ms(truth.step, truth.excess / truth.step + reads[:look]),
            _in_ms(truth.step, again[:look]),
            truth.step,
            confidence_of_look(number),
        )
        word = judge(numbers)[0]
        if word != UNDECIDED:
            return word
    return UNDECIDED


def _in_ms(step_ms: float, shares: NDArray[np.float64]) -> Estimate:
    share = estimate(shares)
    assert share is not None  # every series has two values at least
    return combined((step_ms, share))


def _drawn(values: Sequence[float], n: int, loaded: bool, rng: np.random.Generator) -> NDArray[np.float64]:
    """n values in runs of neighbours, centred, each run's sign drawn."""
    centred = np.asarray(values) - np.median(values)
    runs: list[float] = []
    while len(runs) < n:
        start, sign = int(rng.integers(len(centred))), float(rng.choice([-1.0, 1.0]))
        runs += (sign * centred[start : start + NEIGHBOURS]).tolist()
    drawn = np.array(runs[:n])
    if loaded:
        start = int(rng.integers(n))
        drawn[start : start + max(1, n // 3)] *= 2
    return drawn
