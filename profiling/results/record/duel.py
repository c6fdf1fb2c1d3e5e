"""Single steps in alternation, as they were timed."""

from __future__ import annotations

from statistics import fmean

from profiling.results.record.part import Count, Ms, Part, Us
from profiling.results.record.traces import Trace


class DuelBlock(Part, frozen=True):
    """Four single steps, ms, in the order in which they ran; `mirrored` is BAAB. A is `first`."""

    first: str
    second: str
    mirrored: bool
    ms: tuple[Ms, Ms, Ms, Ms]

    @property
    def means(self) -> tuple[float, float]:
        """Mean step of the first and of the second, ms."""
        outer, inner = fmean((self.ms[0], self.ms[3])), fmean(self.ms[1:3])
        return (inner, outer) if self.mirrored else (outer, inner)


class DuelTrace(Part, frozen=True):
    """A trace between plain steps: their median, and what the profiler adds to one event, if it is known.

    `variant`: whose steps; older records do not say it.
    """

    plain_ms: Ms
    event_us: Us | None
    trace: Trace
    variant: str | None = None


class DuelSteps(Part, frozen=True):
    """`looks`: after how many turns it was judged."""

    turns: Count = 0
    looks: list[Count] = []
    blocks: list[DuelBlock] = []
    traces: list[DuelTrace] = []
