"""What do timed generations say? Rates, work and achieved FLOP/s of whole loops, from a record. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from profiling.cost.work import FLOPS_PER_MAC, Work, cached_loop, macs, naive_loop
from profiling.results.record import ThroughputRecord, Workload
from variants.config import GPTConfig
from variants.ladder import BASELINE


@dataclass(frozen=True)
class Loops:
    """What the record says of its loops."""

    record: ThroughputRecord
    config: GPTConfig

    @property
    def workload(self) -> Workload:
        assert self.record.workload is not None  # stored before anything is timed
        return self.record.workload

    @property
    def matmul_flop_per_s(self) -> float:
        """FLOP/s of this machine's matmul."""
        assert self.record.peaks is not None
        return self.record.peaks.matmul_flop_per_s

    @property
    def prompt(self) -> int:
        return self.workload.prompt

    @property
    def batch(self) -> int:
        return self.workload.batch

    @property
    def new(self) -> list[int]:
        return self.record.new

    @property
    def timed(self) -> list[str]:
        """Variants with times, in ladder order."""
        found = {loop.variant for loop in self.record.generations}
        return [name for name in self.record.variants if name in found]

    def seconds(self, variant: str, prompt: int, new: int) -> float:
        """Median over rounds of the latency of `new` tokens after `prompt` ones, s."""
        loops = [
            sum(loop.tokens_ms[:new]) / 1e3
            for loop in self.record.generations
            if (loop.variant, loop.prompt) == (variant, prompt)
        ]
        return median(loops)

    def rate(self, variant: str, new: int) -> float:
        """Tokens a second, all rows together."""
        return self.batch * new / self.seconds(variant, self.prompt, new)

    def work(self, variant: str, new: int) -> Work:
        """Of one row's loop."""
        return (naive_loop if variant == "naive" else cached_loop)(self.prompt, new)

    def flops(self, variant: str, new: int) -> int:
        return FLOPS_PER_MAC * macs(self.config, self.work(variant, new))

    def flop_rate(self, variant: str, new: int) -> float:
        """FLOP/s of the whole loop."""
        return self.flops(variant, new) * self.rate(variant, new) / new

    def less_work(self, new: int) -> float:
        return self.flops("naive", new) / self.flops(BASELINE, new)

    def speedup(self, new: int) -> float:
        return self.rate(BASELINE, new) / self.rate("naive", new)
