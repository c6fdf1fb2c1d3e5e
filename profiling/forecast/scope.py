"""Which steps are out of range, whoever asks, and why: nothing here predicts them."""

from __future__ import annotations

from profiling.forecast.engines import SGLANG, VLLM, Engine, Mode
from profiling.forecast.job import NATIVE_BITS, PACKED_BITS

SERVING = (VLLM, SGLANG)


def why_not(engine: Engine, mode: Mode, precision: str) -> str | None:
    """The reason; None for a step that is in range."""
    if precision in PACKED_BITS and mode is Mode.EAGER:
        return f"{precision} in an eager step: its kernels are not limited by bytes, their rate is not known"
    if NATIVE_BITS.get(precision) == 32 and engine in SERVING and mode is not Mode.EAGER:
        return "attention kernels of serving engines are built for 16 bits; what replaces them is not known"
    return None
