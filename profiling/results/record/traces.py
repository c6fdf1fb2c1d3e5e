"""What a record keeps of a trace: parts and counts of every step, and what was predicted from it."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated

from msgspec import Meta

from profiling.results.record.part import Count, Numbers, Part, Share, Us

BUSY = ("compute", "busy")  # the part in which ops run: on the host, on a device


class Range(Part, frozen=True):
    """Low, middle and high value."""

    low: float
    mid: float
    high: float


class Replay(Part, frozen=True):
    """What the step should cost as one replay. `step_us`: median of the steps as traced.

    `replay_us`: None where nothing can be predicted; `left`: of a trace that replays graphs already, what is
    beside them, per step in us.
    """

    kind: str
    step_us: float
    replay_us: Range | None
    assumptions: list[str]
    left: dict[str, float | None]

    @property
    def saved_us(self) -> float | None:
        """What the replay takes less than the step as traced; None where it is not predicted."""
        return None if self.replay_us is None else self.step_us - self.replay_us.mid


class PredictedReplay(Part, frozen=True):
    """A prediction from the eager trace of `parent`, made before its replay was timed."""

    parent: str
    replay: Replay | None


class Counts(Part, frozen=True):
    """Per traced step, means."""

    kernels: float
    launches: float
    graph_launches: float
    host_ops: float
    syncs: float


class Phase(Part, frozen=True):
    """One phase inside a launch. `slowest_us`: work of the thread that finished last; `waiting_us`: what the
    mean thread waited for it.
    """

    slowest_us: Us
    waiting_us: Us


class Trace(Part, frozen=True, kw_only=True):
    """A few profiled steps of one variant from `context` on, in `file` of the folder's traces.

    `profiled_ms`: their latencies under the profiler. `steps_parts_us`: per step its parts, which sum to its
    interval. `busy_share_of_events`: of the profiled events those that compute; 0 where a device times them.
    """

    file: str
    context: Count
    profiled_ms: Numbers
    steps_parts_us: Annotated[list[dict[str, Us]], Meta(min_length=1)]
    counts: Counts
    busy_share_of_events: Share
    problems: list[str] = []
    replay: Replay | None = None
    phases: dict[str, Phase] = {}

    @property
    def parts_us(self) -> dict[str, float]:
        """Mean of every part over the steps."""
        names = dict.fromkeys(name for parts in self.steps_parts_us for name in parts)
        return {name: fmean(parts[name] for parts in self.steps_parts_us if name in parts) for name in names}

    @property
    def step_ms(self) -> dict[str, float]:
        """Mean parts in ms, the profiler's cost included, and their sum as `step`."""
        parts = {name: us / 1e3 for name, us in self.parts_us.items()}
        return {**parts, "step": sum(parts.values())}

    @property
    def busy_us(self) -> float:
        """Mean time in which ops ran."""
        return next((us for name, us in self.parts_us.items() if name in BUSY), 0.0)

    @property
    def mean_profiled_ms(self) -> float:
        """Mean latency of the traced steps, under the profiler."""
        return fmean(self.profiled_ms)
