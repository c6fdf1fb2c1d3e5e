"""What the tables of a record say, a row each."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.results.record import Difference, Memory
from profiling.results.stats import Interval, Quantiles


@dataclass(frozen=True)
class Rung:
    """Everything known about one variant at the smallest context; times in ms, None is unknown.

    `steps` by context; `memory_floor` is the median read of its bytes.
    """

    variant: str
    parent: str | None
    difference: Difference | None
    reason: str
    gate: str  # pass, fail, or skipped
    measured: bool
    steps: dict[int, Quantiles | None]
    floor_ms: Interval | None = None
    memory_floor_ms: float | None = None
    ratio_to_memory_floor: Interval | None = None
    ratio_to_parent: Interval | None = None
    ratio_to_baseline: Interval | None = None
    removed_ms: Interval | None = None
    excess_ms: Interval | None = None
    excess_narrow_ms: Interval | None = None
    ttft_ms: float | None = None
    warm_up_s: float | None = None
    memory: Memory | None = None
    profiler_ratio: float | None = None


@dataclass(frozen=True)
class PageFloors:
    """The memory floor of so many bytes on both page sizes, medians in ms; `contexts` that ask for them."""

    bytes: int
    contexts: set[int]
    ratio: Interval | None
    default_ms: float | None
    huge_ms: float | None

    def gb_per_s(self, ms: float | None) -> float | None:
        """The rate at which these bytes were read in `ms`; None where that is unknown."""
        return None if ms is None else self.bytes / ms / 1e6


@dataclass(frozen=True)
class ReplayOutcome:
    """A stored prediction of the replay beside the measured (p5, median, p95), ms."""

    variant: str
    predicted_ms: tuple[float, float, float]
    measured_ms: tuple[float, float, float]

    @property
    def ratio(self) -> float:
        """The measured median over the predicted middle."""
        return self.measured_ms[1] / self.predicted_ms[1]

    @property
    def inside(self) -> bool:
        """Whether the measured median lies within what was predicted."""
        low, _, high = self.predicted_ms
        return low <= self.measured_ms[1] <= high
