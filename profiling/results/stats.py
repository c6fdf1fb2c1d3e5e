"""Statistics over rounds. Torch-free, computed when a record is read.

Effects are ratios or differences within a round, so that the machine's slow drift cancels; intervals are
Student's t over rounds, never over steps, since the steps of one round share its luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean with its confidence interval."""

    low: float
    mid: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval | None:
    """Student's t interval of the mean over rounds; None for fewer than two rounds.

    Where neighbouring rounds are alike (significant lag-1 autocorrelation) the interval is widened to the
    number of independent rounds that the correlation leaves, n (1 - r) / (1 + r).
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    if n < 2:
        return None
    mid = float(sample.mean())
    r = autocorrelation(sample)
    effective = max(2.0, n * (1 - r) / (1 + r)) if r is not None and r > autocorrelation_limit(n) else n
    half = stdtrit(effective - 1, (1 + CONFIDENCE) / 2) * sample.std(ddof=1) / effective**0.5
    return Interval(mid - float(half), mid, mid + float(half))


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float]) -> Interval | None:
    """Geometric mean of per-round ratios with its interval."""
    logs = mean_interval(np.log(np.asarray(numerator) / np.asarray(denominator)))
    return None if logs is None else Interval(*(float(np.exp(x)) for x in logs))


def difference_interval(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Mean of per-round differences first - second with its interval."""
    return mean_interval(np.asarray(first) - np.asarray(second))


def autocorrelation(values: NDArray[np.float64]) -> float | None:
    """Lag-1 autocorrelation; None where it is undefined."""
    centred = values - values.mean()
    spread = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / spread if len(values) > 2 and spread > 0 else None


def autocorrelation_limit(n: int) -> float:
    """What independent rounds exceed one time in twenty (one-sided, large n)."""
    return float(1.645 / n**0.5)


def intercepts(
    x: Sequence[float], rounds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least squares per round: y [rounds, len(x)] -> (intercepts [rounds], slopes [rounds])."""
    slope, intercept = np.polyfit(np.asarray(x, dtype=np.float64), rounds.T, 1)
    return intercept, slope


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, p95 and p99 of single steps (linear interpolation)."""
    median, p95, p99 = np.quantile(np.asarray(values), [0.5, 0.95, 0.99])
    return {"median": float(median), "p95": float(p95), "p99": float(p99)}
