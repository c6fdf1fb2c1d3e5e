"""Statistics over rounds and blocks. Torch-free, computed when a record is read.

Effects are ratios or differences within a round, so that the machine's slow drift cancels. Every estimate is
a mean of the middle 60 %, with Yuen's Student t over rounds, never over steps, since the steps of one round
share its luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
TRIM = 0.2  # of the values on each side: a burst that hits one round in five moves nothing
MAX_CORRELATION = 0.9
MIN_CORRELATED = 6  # values, below which nothing can be said of their correlation

Values = Sequence[float] | NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with its confidence interval."""

    low: float
    mid: float
    high: float

    def scaled(self, by: float) -> Interval:
        """Every number times `by`: the interval in another unit."""
        return Interval(*(by * x for x in self))

    def contains(self, value: float) -> bool:
        """Whether a value lies inside, the ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error, and the degrees of freedom of Student's t that belong to it."""

    mid: float
    error: float
    freedom: float

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """The two-sided interval; each end is a one-sided bound at half the error."""
        from scipy.special import stdtrit  # scipy.stats takes a second to import

        half = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return Interval(self.mid - half, self.mid, self.mid + half)


def estimate(values: Values) -> Estimate | None:
    """Mean of the values without the lowest and highest fifth, after Yuen (1974); None for fewer than two.

    The error is that of the winsorised values, widened where neighbours may be alike: see `widening`.
    """
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    if n < 2:
        return None
    cut = int(TRIM * n)
    middle = np.sort(sample)[cut : n - cut]
    winsorised = np.clip(sample, middle[0], middle[-1])
    squares = float(((winsorised - winsorised.mean()) ** 2).sum())
    error = (squares / (len(middle) * (len(middle) - 1))) ** 0.5 * widening(winsorised)
    return Estimate(float(middle.mean()), error, len(middle) - 1)


def combined(*terms: tuple[float, Estimate]) -> Estimate:
    """Weighted sum of independent estimates; degrees of freedom after Welch and Satterthwaite."""
    variances = [(weight * term.error) ** 2 for weight, term in terms]
    total = sum(variances)
    shares = sum(v**2 / term.freedom for v, (_, term) in zip(variances, terms, strict=True))
    freedom = total**2 / shares if shares else min(term.freedom for _, term in terms)
    return Estimate(sum(weight * term.mid for weight, term in terms), total**0.5, freedom)


def robust_interval(values: Values) -> Interval | None:
    """The estimate of these values with its interval; None for fewer than two."""
    typical = estimate(values)
    return None if typical is None else typical.interval()


def ratio_interval(numerator: Values, denominator: Values) -> Interval | None:
    """Typical ratio within a round (estimated of its logarithm) with its interval."""
    logs = robust_interval(np.log(np.asarray(numerator) / np.asarray(denominator)))
    with np.errstate(over="ignore"):  # two values far apart leave its end open: infinity
        return None if logs is None else Interval(*(float(np.exp(x)) for x in logs))


def independent_ratio(after: Values, before: Values, confidence: float = CONFIDENCE) -> Interval | None:
    """Typical ratio of two samples that share no rounds, such as two runs: estimates of the logarithms,
    subtracted (Yuen and Welch); None with fewer than two values in either.
    """
    later, earlier = (estimate(np.log(np.asarray(values))) for values in (after, before))
    if later is None or earlier is None:
        return None
    logs = combined((1.0, later), (-1.0, earlier)).interval(confidence)
    return Interval(*(float(np.exp(x)) for x in logs))


def difference_interval(first: Values, second: Values) -> Interval | None:
    """Typical difference first - second within a round with its interval."""
    return robust_interval(np.asarray(first) - np.asarray(second))


def widening(values: NDArray[np.float64]) -> float:
    """Factor of the standard error for values that follow each other in time.

    Of n values with lag-1 correlation r, n (1 - r) / (1 + r) are independent. r is what these values show,
    freed from its bias (Kendall) and one standard error higher, since too small an r is what costs false
    alarms; never below 0, for values that avoid each other are not trusted to.
    """
    n, r = len(values), autocorrelation(values)
    if n < MIN_CORRELATED or r is None:
        return 1.0
    at_most = min(max((n * r + 1) / (n - 4) + n**-0.5, 0.0), MAX_CORRELATION)
    return float(((1 + at_most) / (1 - at_most)) ** 0.5)


def autocorrelation(values: NDArray[np.float64]) -> float | None:
    """Lag-1 autocorrelation; None where it is undefined."""
    centred = values - values.mean()
    spread = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / spread if len(values) > 2 and spread > 0 else None


def intercepts(
    x: Sequence[float], rounds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least squares per round: y [rounds, len(x)] -> (intercepts [rounds], slopes [rounds])."""
    slope, intercept = np.polyfit(np.asarray(x, dtype=np.float64), rounds.T, 1)
    return intercept, slope


@dataclass(frozen=True)
class Quantiles:
    """Median, p95 and p99 of single steps."""

    median: float
    p95: float
    p99: float


def quantiles(values: Sequence[float]) -> Quantiles:
    """Median, p95 and p99 of the values, by linear interpolation."""
    return Quantiles(*np.quantile(np.asarray(values), [0.5, 0.95, 0.99]).tolist())
