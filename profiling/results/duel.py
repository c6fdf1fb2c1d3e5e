"""What single steps in alternation say: one estimate per block of four, so that the machine's drift cancels.

A block times two decoders as ABBA or BAAB after an untimed step of the one that begins: each is then preceded
once by itself and once by the other, whatever ran before. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from profiling.results.record import DuelSteps, DuelTrace, Trace
from profiling.results.stats import CONFIDENCE, Estimate, estimate

LOOKS = (40, 80, 160, 320)  # blocks after which a duel is judged; it goes on by doubling when it is extended
TRACE_EVERY = 8  # turns, each a block of every contrast that decides
MIN_TRACES = 5  # the fewest of which one may be far off: the estimate leaves out a fifth on each side
READ = "plain read"  # the contestant that reads what a step must read, and does nothing else


def read_of(name: str) -> str:
    """What the plain read of this rung's bytes is called."""
    return f"{READ} of {name}"


@dataclass(frozen=True)
class Duel:
    """The numbers of a duel, from the steps that a record holds."""

    record: DuelSteps

    def traces(self, name: str) -> list[DuelTrace]:
        """Those of this rung's steps; in older records of the one that was timed beside itself."""
        names = (name, None) if self.count(name, name) else (name,)
        return [traced for traced in self.record.traces if traced.variant in names]

    def gap_shares(self, name: str) -> list[float]:
        """One per trace of this rung, see `gap_share`."""
        return [gap_share(one.trace, one.plain_ms, one.event_us) for one in self.traces(name)]

    def python_shares(self, name: str) -> list[float]:
        """Share of the step that was gap and Python outside ops, one per trace; none beside a device."""
        parts = [traced.trace.parts_us for traced in self.traces(name)]
        gaps = [sum(us.values()) - _busy_us(us) for us in parts]
        return [
            share * us["python"] / gap
            for share, us, gap in zip(self.gap_shares(name), parts, gaps, strict=True)
            if "python" in us and gap > 0
        ]

    @property
    def confidence(self) -> float:
        """Confidence of every interval after the looks so far, 0 to 1."""
        return confidence_of_look(max(1, len(self.record.looks)))

    def pairs(self) -> list[tuple[str, str]]:
        """Every contrast that was timed."""
        return list(dict.fromkeys((block.first, block.second) for block in self.record.blocks))

    def count(self, first: str, second: str) -> int:
        return sum((block.first, block.second) == (first, second) for block in self.record.blocks)

    def means(self, first: str, second: str) -> NDArray[np.float64]:
        """Mean steps [blocks, 2], ms."""
        of = [block.means for block in self.record.blocks if (block.first, block.second) == (first, second)]
        return np.array(of, dtype=np.float64).reshape(-1, 2)

    def excess_share(self, name: str) -> Estimate | None:
        """Share of this rung's step beyond a plain read of what it must read; None without blocks."""
        return self.drop_share(name, read_of(name)) or self.drop_share(name, READ)  # as older records call it

    def drop_share(self, first: str, second: str) -> Estimate | None:
        """Share of the first's step that the second takes off; None without blocks."""
        means = self.means(first, second)
        return estimate(1 - means[:, 1] / means[:, 0]) if len(means) else None


def confidence_of_look(k: int) -> float:
    """Look k, from 1, may err by 5 % / (k (k + 1)), which sums to 5 % over all looks ever."""
    return 1 - (1 - CONFIDENCE) / (k * (k + 1))


def gap_share(trace: Trace, plain_ms: float, event_us: float | None) -> float:
    """Share of a plain step in which no op was busy, from the steps of one trace beside it.

    Under the profiler a step lasts plain + events x cost; of that cost the busy ops carry their share of the
    events. Where the cost of an event was not measured, it is what the profiler added to these steps.
    """
    shares = [1 - _busy_us(parts) / sum(parts.values()) for parts in trace.steps_parts_us]
    added_ms = max(0.0, trace.mean_profiled_ms - plain_ms)
    if event_us is not None:
        added_ms = trace.counts.host_ops * event_us / 1e3
    added = added_ms / plain_ms
    return float(median(shares) * (1 + added) - (1 - trace.busy_share_of_events) * added)


def _busy_us(parts: dict[str, float]) -> float:
    return parts.get("compute", 0.0) + parts.get("busy", 0.0)


def next_look(looks: Sequence[int]) -> int:
    """After how many blocks the duel is judged next."""
    done = max(looks, default=0)
    return next((n for n in LOOKS if n > done), 2 * max(done, LOOKS[-1]))
