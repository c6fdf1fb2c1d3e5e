"""What the prediction assumes, each number with its source.

`prior` is what the source alone says; `fitted` is that number after the published steps were held against it
(`make validate` fits again and says where the two part). `spread`: the factor by which the truth may lie
above or below in nine of ten cases, from the scatter between sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Known:
    fitted: float
    prior: float
    spread: float
    unit: str
    source: str


class Constant(Enum):
    """Every constant of the model. Values are looked up by member, so a typing error cannot pass."""

    # share of the stated bandwidth that a matrix-vector product reaches
    REACH_GDDR = Known(0.925, 0.92, 1.06, "share", "calm on an RTX 4090: 892 to 955 of 1008 GB/s")
    REACH_GDDR_ECC = Known(
        0.848, 0.85, 1.08, "share", "as GDDR, less the bits of error correction on the bus (1/16 to 1/8)"
    )
    REACH_HBM2 = Known(0.771, 0.83, 1.1, "share", "gpt-fast: practical peak 1700 of 2039 GB/s on an A100")
    REACH_HBM3 = Known(
        0.901, 0.88, 1.12, "share", "AutoMegaKernel: copy 3050 to 3089 of 3350 GB/s on an H100"
    )
    REACH_CDNA = Known(0.679, 0.7, 1.25, "share", "assumed below HBM2 of NVIDIA; gpt-fast on an MI250X")
    # what one kernel adds beside its bytes: gap, ramp, tail
    PRODUCT_KERNEL = Known(
        5.21,
        4.5,
        1.6,
        "us",
        "node of a graph 0.8 to 1.3 us (MegaQwen, No Bubbles), ramp and tail of a product",
    )
    SMALL_KERNEL = Known(2.13, 2.2, 1.6, "us", "the same node, and the shortest kernel: about 1 us")
    DEPENDENT_KERNEL = Known(1.54, 1.5, 1.6, "us", "programmatic dependent launch hides the gap")
    PHASE = Known(2.11, 1.8, 1.8, "us", "grid barrier 0.7 us and more (MegaQwen), first loads after it")
    LLAMA_CPP_LAYER = Known(84.5, 80.0, 1.3, "us", "about 20 kernels a layer of llama.cpp at 4 us")
    LLAMA_CPP_GRAPH = Known(0.852, 0.85, 1.15, "share", "ggerganov/llama.cpp#6766: graphs against streams")
    TINYGRAD_KERNEL = Known(
        7.26, 6.0, 2.5, "us", "assumed as a launch into a stream; kernels of one published row"
    )
    # limits inside a multiprocessor
    LLAMA_CPP_BYTES = Known(
        7.67, 8.0, 1.3, "bytes per clock and multiprocessor", "loads in flight of its matrix-vector kernel"
    )
    DEQUANTISED = Known(
        12.8, 12.0, 1.4, "weights per clock and multiprocessor", "unpack, scale and add beside the product"
    )
    # share of the bandwidth at which attention reads the cache
    CACHE = Known(0.768, 0.77, 1.3, "share", "vllm#53060: slope of the step over 128 to 32,640 tokens")
    CACHE_LLAMA_CPP = Known(0.402, 0.4, 1.6, "share", "attention as products without flash kernels, 2024")
    CACHE_UNSPLIT = Known(
        57.5, 60.0, 1.5, "GB/s", "one block per head, whatever the device; the cache copied too"
    )
    # host
    HOST_OLDER = Known(19.9, 19.5, 1.35, "us per launch", "the article's GPT-2 step on an A40: 4.95 ms")
    HOST_NEWER = Known(9.12, 9.0, 1.35, "us per launch", "DeepSpeed#8271: OPT-1.3B on an H100 in 5.0 ms")
    STREAM_LAUNCH = Known(
        0.436, 0.4, 1.6, "launches of PyTorch", "a launch from C++: 1.5 to 4 us where PyTorch takes 9"
    )
    TRITON_LAUNCH = Known(
        17.5,
        17.5,
        1.3,
        "launches of PyTorch",
        "profiling.measure.launcher: onelaunch up to the driver's call, beside an eager step",
    )
    BETWEEN_STEPS = Known(130.0, 100.0, 1.6, "launches' worth of host time", "scheduler and sampler of 2024")


Values = dict[Constant, float]


def fitted() -> Values:
    """The committed values: the constants fitted to the published steps."""
    return {constant: constant.value.fitted for constant in Constant}


def priors() -> Values:
    """The values of the sources, which know nothing of the published steps."""
    return {constant: constant.value.prior for constant in Constant}
