"""What do timed generations, batches and prefills reach, against what memory and compute allow?

Rates, work and achieved FLOP/s, from a record; torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from profiling.cost.work import (
    FLOPS_PER_MAC,
    Work,
    cached_loop,
    forward,
    kv_bytes_per_token,
    macs,
    naive_loop,
    step_macs,
    weights_read_bytes,
)
from profiling.results.peaks import matmul_rate, read_rate
from profiling.results.record import BatchRecord, Peaks, StepPrediction, ThroughputRecord, Workload
from profiling.results.stats import Interval, robust_interval
from variants.config import DTYPE_BYTES, GPTConfig
from variants.ladder import BASELINE


@dataclass(frozen=True)
class Loops:
    """The numbers of a record's generations: latencies, rates and work."""

    record: ThroughputRecord
    config: GPTConfig

    @property
    def workload(self) -> Workload:
        """The workload, stored before anything was timed."""
        assert self.record.workload is not None  # stored before anything is timed
        return self.record.workload

    @property
    def matmul_flop_per_s(self) -> float:
        """FLOP/s of this machine's matmul."""
        assert self.record.peaks is not None
        return self.record.peaks.matmul_flop_per_s

    @property
    def prompt(self) -> int:
        """Tokens of the prompt from which rates are told."""
        return self.workload.prompt

    @property
    def batch(self) -> int:
        """Rows that are decoded together."""
        return self.workload.batch

    @property
    def new(self) -> list[int]:
        """Lengths of the generations, in new tokens."""
        return self.record.new

    @property
    def timed(self) -> list[str]:
        """Variants with times, in ladder order."""
        with_times = {loop.variant for loop in self.record.generations}
        return [name for name in self.record.variants if name in with_times]

    def seconds(self, variant: str, prompt: int, new: int) -> float:
        """Median over rounds of the latency of `new` tokens after `prompt` ones, s."""
        return median(self._seconds(variant, prompt, new))

    def token_ms(self, variant: str, number: int) -> float:
        """Median over rounds of the latency of one new token, the first being 1, ms."""
        at = (variant, self.prompt)
        return median(
            loop.tokens_ms[number - 1]
            for loop in self.record.generations
            if (loop.variant, loop.prompt) == at
        )

    def _seconds(self, variant: str, prompt: int, new: int) -> list[float]:
        return [
            sum(loop.tokens_ms[:new]) / 1e3
            for loop in self.record.generations
            if (loop.variant, loop.prompt) == (variant, prompt)
        ]

    def rate(self, variant: str, new: int) -> float:
        """Tokens a second, all rows together."""
        return self.batch * new / self.seconds(variant, self.prompt, new)

    def rates(self, variant: str, new: int) -> list[float]:
        """The same of each round."""
        return [self.batch * new / taken for taken in self._seconds(variant, self.prompt, new)]

    def work(self, variant: str, new: int) -> Work:
        """Work of one row's loop."""
        return (naive_loop if variant == "naive" else cached_loop)(self.prompt, new)

    def flops(self, variant: str, new: int) -> int:
        """FLOPs of one row's loop."""
        return FLOPS_PER_MAC * macs(self.config, self.work(variant, new))

    def flop_rate(self, variant: str, new: int) -> float:
        """FLOP/s of the whole loop."""
        return self.flops(variant, new) * self.rate(variant, new) / new

    def less_work(self, new: int) -> float:
        """FLOPs without a cache over those with one."""
        return self.flops("naive", new) / self.flops(BASELINE, new)

    def speedup(self, new: int) -> float:
        """Tokens a second with a cache over those without one."""
        return self.rate(BASELINE, new) / self.rate("naive", new)


@dataclass(frozen=True)
class Phase:
    """A prefill or a step: what it took and what it computed and read."""

    name: str
    tokens: int
    ms: float
    macs: int
    bytes: int

    @property
    def flop_rate(self) -> float:
        """FLOP/s."""
        return FLOPS_PER_MAC * self.macs / self.ms * 1e3

    @property
    def read_rate(self) -> float:
        """Bytes/s."""
        return self.bytes / self.ms * 1e3


def takeover(
    config: GPTConfig, context: int, dtype_bytes: int, read_rate: float, flop_rate: float
) -> float | None:
    """Batch at which arithmetic takes as long as reading; None where reading the cache outgrows it."""
    weights_s = weights_read_bytes(config, dtype_bytes) / read_rate
    cache_s = context * kv_bytes_per_token(config, dtype_bytes) / read_rate
    row_s = FLOPS_PER_MAC * step_macs(config, context) / flop_rate
    return weights_s / (row_s - cache_s) if row_s > cache_s else None


@dataclass(frozen=True)
class Roofline:
    """The steps of one variant over batch, and its prefills over prompt length."""

    record: BatchRecord
    config: GPTConfig
    name: str
    context: int
    prompts: Sequence[int]

    @property
    def batches(self) -> list[int]:
        """Batches with times."""
        return sorted({s.batch for s in self.record.samples if s.context == self.context})

    @property
    def left_out(self) -> dict[str, str]:
        """Batch -> why it has no times."""
        return {str(n): entry.reason for n, entry in self.record.batches.items() if entry.reason}

    @property
    def peaks(self) -> Peaks:
        """The peaks of this machine, measured before anything was timed."""
        assert self.record.peaks is not None  # measured before anything is timed
        return self.record.peaks

    @property
    def read_rate(self) -> float:
        """Bytes/s that this machine reads: in the rounds, where it was asked there."""
        rate = read_rate(self.record)
        return rate.mid if rate else self.peaks.read_gb_per_s * 1e9

    @property
    def flop_rate(self) -> float:
        """FLOP/s of this machine's matmul: in the rounds, where it was asked there."""
        rate = matmul_rate(self.record)
        return rate.mid if rate else self.peaks.matmul_flop_per_s

    @property
    def weight_bytes(self) -> int:
        """Bytes of one stored weight."""
        assert self.record.model is not None and self.record.model.precision is not None
        return DTYPE_BYTES[self.record.model.precision]

    def step_ms(self, batch: int) -> float:
        """Median over rounds of their median steps, ms."""
        return median(self._steps(batch))

    def step(self, batch: int) -> Interval | None:
        """The typical step of a round, ms; None for fewer than two rounds."""
        return robust_interval(self._steps(batch))

    def _steps(self, batch: int) -> list[float]:
        at = (self.name, batch, self.context)
        return [median(s.steps_ms) for s in self.record.samples if (s.variant, s.batch, s.context) == at]

    def tokens_per_s(self, batch: int) -> float:
        """Tokens a second, all rows together, by the median step."""
        return 1e3 * batch / self.step_ms(batch)

    def memory_ms(self, batch: int) -> float:
        """Time of reading a step's bytes at the measured peak, ms."""
        return self._prediction(batch).memory_ms

    def compute_ms(self, batch: int) -> float:
        """Time of a step's arithmetic at the measured peak, ms."""
        ms = self._prediction(batch).arithmetic_ms
        assert ms is not None  # rows are studied of our decoder only, whose arithmetic is known
        return ms

    def cache_bytes(self, batch: int) -> int:
        """Bytes of the keys and values of all rows, at full capacity."""
        size = self.record.batches[batch].cache_bytes
        assert size is not None  # what has times is proven, and what is proven has all of these
        return size

    def _prediction(self, batch: int) -> StepPrediction:
        predicted = self.record.batches[batch].prediction
        assert predicted is not None
        return predicted

    def decode(self) -> Phase:
        """A step of one row."""
        predicted = self._prediction(1)
        assert predicted.macs is not None  # as above
        name = f"decode at {self.context}"
        return Phase(name, 1, self.step_ms(1), predicted.macs, predicted.bytes)

    def prefills(self) -> list[Phase]:
        """Prefills of one row, by prompt length: all keys are scored, the last position's logits kept."""
        return [self._prefill(n) for n in self.prompts]

    def _prefill(self, n: int) -> Phase:
        times = [prefill.ms for prefill in self.record.prefills if prefill.prompt == n]
        width = self.weight_bytes
        positions = (n - 1) * self.config.n_embd * width
        written = n * kv_bytes_per_token(self.config, width)
        moved = weights_read_bytes(self.config, width, batch=n) + positions + written
        return Phase(f"prefill of {n}", n, median(times), macs(self.config, forward(n, logits=1)), moved)
