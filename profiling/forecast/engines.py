"""What one decode step is made of, by engine: launches, kernels, what runs between two steps.

Launches and views of Hugging Face models were counted on a CPU (transformers 5.24, one step of `generate`,
bfloat16, a dispatch mode; a view costs a quarter of a launch); those of gpt-fast from its model.py; `ours`
from this project's own steps. Kernels per layer of engines that fuse: norm, QKV, rotation, cache, attention
and its reduction, out-projection, norm, gate and up, activation, down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from profiling.forecast.constants import Constant

VIEW_SHARE = 0.25  # host time of a view, as a share of that of a launch: assumed


class Mode(StrEnum):
    """How a step is launched; the values are those of the published table, less the engine."""

    EAGER = "eager"
    STREAM = "cpp-launch"  # from C++ into a stream, no graph
    GRAPH = "graph"
    PIECEWISE = "graph-piecewise"  # compiled, attention outside
    COMPILED = "compile+graph"
    DEPENDENT = (
        "graph+PDL"  # few fused kernels, each launched before its predecessor ends where the device can
    )
    ONE_LAUNCH = "megakernel"
    ONE_LAUNCH_EAGER = "megakernel-eager"  # through Triton's launcher in Python, not as a node of a graph


class Family(StrEnum):
    """Model families that differ in what a layer launches. `model_type` of a Hugging Face config."""

    GPT2 = "gpt2"
    OPT = "opt"
    NEOX = "gpt_neox"
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    PHI3 = "phi3"
    GEMMA = "gemma"


@dataclass(frozen=True)
class Count:
    """A count per layer and a constant one."""

    layer: float
    rest: float = 0.0

    def of(self, layers: int) -> float:
        return self.layer * layers + self.rest

    def plus(self, views: Count) -> Count:
        """Launches and views as launches of the host."""
        return Count(self.layer + VIEW_SHARE * views.layer, self.rest + VIEW_SHARE * views.rest)


_HF_LAUNCHES = {
    Family.GPT2: Count(19, 39),
    Family.OPT: Count(15, 41),
    Family.NEOX: Count(24, 47),
    Family.LLAMA: Count(40, 54),
    Family.MISTRAL: Count(40, 54),
    Family.QWEN2: Count(40, 37),
    Family.QWEN3: Count(56, 37),
    Family.PHI3: Count(39, 54),
    Family.GEMMA: Count(44, 57),
}
_HF_VIEWS = {
    Family.GPT2: Count(18, 13),
    Family.OPT: Count(25, 12),
    Family.NEOX: Count(28, 12),
    Family.LLAMA: Count(36, 12),
    Family.MISTRAL: Count(38, 12),
    Family.QWEN2: Count(36, 11),
    Family.QWEN3: Count(36, 11),
    Family.PHI3: Count(35, 12),
    Family.GEMMA: Count(36, 12),
}
# the same of transformers 4.46, for steps published up to 2024: keys and values are copied for the heads of a
# group, and Mistral's layers each compute their rotation
_HF_2024_LAUNCHES = _HF_LAUNCHES | {
    Family.GPT2: Count(19, 48),
    Family.OPT: Count(15, 49),
    Family.LLAMA: Count(42, 63),
    Family.MISTRAL: Count(50, 53),
    Family.QWEN2: Count(42, 47),
}
_HF_2024_VIEWS = _HF_VIEWS | {
    Family.GPT2: Count(17, 12),
    Family.OPT: Count(24, 10),
    Family.LLAMA: Count(41, 20),
    Family.MISTRAL: Count(51, 10),
    Family.QWEN2: Count(41, 19),
}
# linear layers and attention: the kernels that stream weights or cache
_HF_PRODUCTS = {
    Family.GPT2: Count(5, 1),
    Family.OPT: Count(7, 1),
    Family.NEOX: Count(5, 1),
    Family.LLAMA: Count(8, 1),
    Family.MISTRAL: Count(8, 1),
    Family.QWEN2: Count(8, 1),
    Family.QWEN3: Count(8, 1),
    Family.PHI3: Count(5, 1),
    Family.GEMMA: Count(8, 1),
}
# assumed of an eager step of vLLM: a quarter of the launches, but behind custom ops and wrappers in Python,
# take the host as long as those of a Llama of Hugging Face
_VLLM_HOST = _HF_LAUNCHES[Family.LLAMA].plus(_HF_VIEWS[Family.LLAMA])
# what a compiler leaves beside the products: norms with their residuals, rotation with the cache, the
# activation
COMPILED_REST = Count(4, 4)

Counts = Count | dict[Family, Count]


@dataclass(frozen=True)
class Engine:
    """Counts of kernels by mode, and of launches of the host (views included) of an eager step.

    `kernels`: uncompiled, of which `products` stream weights or cache. `casts`: launches that float32 does
    without. `fused`: of hand-written kernels with dependent launches. `phases`: of one launch. `unsplit`:
    modes whose attention has one block per head. `unpacks`: quantised weights are unpacked at the rate
    DEQUANTISED. `each`: what every kernel adds, where that is one number.
    """

    name: str
    modes: tuple[Mode, ...]
    kernels: Counts
    products: Counts = Count(6, 1)
    host: Counts = Count(0)
    casts: Count = Count(0)
    fused: Count = Count(6, 4)
    phases: Count = Count(5, 1)
    unsplit: tuple[Mode, ...] = ()
    unpacks: bool = True
    each: Constant | None = None


_ALL = (Mode.EAGER, Mode.GRAPH, Mode.PIECEWISE, Mode.COMPILED, Mode.ONE_LAUNCH)
_SERVING = (Mode.EAGER, Mode.GRAPH, Mode.PIECEWISE, Mode.COMPILED)
_NATIVE = (Mode.STREAM, Mode.GRAPH, Mode.DEPENDENT, Mode.ONE_LAUNCH)


def _hf(name: str, launches: dict[Family, Count], views: dict[Family, Count]) -> Engine:
    host = {family: count.plus(views[family]) for family, count in launches.items()}
    return Engine(name, _ALL, launches, _HF_PRODUCTS, host, unsplit=(Mode.EAGER,))


HF = _hf("hf", _HF_LAUNCHES, _HF_VIEWS)
HF_2024 = _hf("hf-2024", _HF_2024_LAUNCHES, _HF_2024_VIEWS)
GPT_FAST = Engine(
    "gpt-fast",
    _ALL,
    Count(51, 20),
    host=Count(51, 20).plus(Count(54, 10)),
    casts=Count(8, 2),
    unsplit=(Mode.EAGER,),
)
# an eager step is the rung `cat`, a graph the rung `cudagraph`, whose attention is one kernel
OURS = Engine(
    "ours",
    (*_ALL, Mode.ONE_LAUNCH_EAGER, Mode.DEPENDENT),
    Count(13, 11),
    Count(5, 1),
    Count(18, 8).plus(Count(10, 1)),
    fused=Count(5, 1),
)
VLLM = Engine("vllm", _SERVING, Count(11, 5), host=_VLLM_HOST, unpacks=False)
SGLANG = Engine("sglang", _SERVING, Count(11, 5), host=_VLLM_HOST, unpacks=False)
TENSORRT_LLM = Engine("tensorrt-llm", (Mode.GRAPH,), Count(11, 5))
LLAMA_CPP = Engine(
    "llama.cpp", (Mode.STREAM, Mode.GRAPH), Count(1), unpacks=False, each=Constant.LLAMA_CPP_LAYER
)
# its test_real_world.py allows a step of GPT-2 137 kernels in 8 layers and 396 in 24
TINYGRAD = Engine("tinygrad", (Mode.GRAPH,), Count(16, 8), each=Constant.TINYGRAD_KERNEL)
NATIVE = Engine("native", _NATIVE, Count(11, 5))  # hand-written: exllama, MLC, calm, yalm, megakernels
# one block per head, 8 phases a layer: its author compares it with 225 kernels for 28 layers
MEGAQWEN = Engine("megaqwen", (Mode.ONE_LAUNCH,), Count(8, 1), phases=Count(8, 1), unsplit=(Mode.ONE_LAUNCH,))
FASTER_TRANSFORMER = Engine("fastertransformer", (Mode.STREAM,), Count(13, 5))

ENGINES = {
    engine.name: engine
    for engine in (
        *(HF, VLLM, SGLANG, LLAMA_CPP, GPT_FAST, OURS, HF_2024),
        *(TENSORRT_LLM, TINYGRAD, NATIVE, MEGAQWEN, FASTER_TRANSFORMER),
    )
}
