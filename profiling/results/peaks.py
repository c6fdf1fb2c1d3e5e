"""What the machine reached in the rounds themselves, and what cannot be true beside it. Torch-free.

A rate that was read once at the start stands beside steps of another minute: one machine's records said 14 to
31 GB/s. In the rounds the same minute is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from profiling.results.metrics import Measured
from profiling.results.record import Measurement
from profiling.results.stats import Interval, robust_interval


def read_rate(record: Measurement) -> Interval | None:
    """Bytes/s of a plain read of the most bytes on default pages; None for fewer than two rounds."""
    reads = [read for read in record.floors if read.pages == "default"]
    most = max((read.bytes for read in reads), default=0)
    return robust_interval([read.bytes / median(read.ms) * 1e3 for read in reads if read.bytes == most])


def matmul_rate(record: Measurement) -> Interval | None:
    """FLOP/s of a large product; None for fewer than two rounds."""
    return robust_interval([sample.flops / median(sample.ms) * 1e3 for sample in record.matmuls])


@dataclass(frozen=True)
class Rates:
    """What a step amounts to: tokens of all rows, and bytes that it must read, over its median time; energy
    of processor and memory per token, over rounds. None is unknown.
    """

    tokens_per_s: float | None
    gb_per_s: float | None
    joules_per_token: Interval | None


def rates(measured: Measured, variant: str, context: int) -> Rates:
    """The rates of a variant at a context."""
    step, workload = measured.step_quantiles(variant, context), measured.record.workload
    predicted = measured.entry(variant).prediction.get(context)
    visits = measured.visits(variant, context).dropna(subset=["energy_j"])
    tokens = visits.batch * visits.steps_ms.map(len)
    return Rates(
        1e3 * workload.batch / step.median if step and workload else None,
        predicted.bytes / step.median / 1e6 if step and predicted else None,
        robust_interval((visits.energy_j / tokens).to_numpy(dtype=float)),
    )


def peak_resident_bytes(record: Measurement) -> int | None:
    """The most that the process held in memory, its proofs included; None where no round saw it."""
    return max((look.peak_resident_bytes or 0 for look in record.machine), default=0) or None


def beyond_peaks(shares: Mapping[str, float]) -> list[str]:
    """Of shares of a measured peak, by what reached them: those above 1, an error of the instrument."""
    return [
        f"{what}: {share:.0%} of a measured peak, which cannot be: the peak was measured too low, so that "
        "its shares here are wrong"
        for what, share in shares.items()
        if share > 1
    ]


def impossible(measured: Measured) -> list[str]:
    """Steps that took less than reading their bytes takes: then the instrument is wrong, not the limit."""
    sentences = []
    for rung in measured.ladder():
        ratio = rung.ratio_to_memory_floor if rung.measured else None
        if ratio is not None and ratio.high < 1:
            sentences.append(
                f"`{rung.variant}` took {ratio.mid:.2f} times its memory floor, which cannot be: the plain "
                "read was slower than this machine reads, so its distances to the floor are wrong"
            )
    return sentences
