"""Other engines as rungs: what each is asked to run, in how many bits, and what it may be held against.

Torch-free: names and facts are read where neither torch nor the engine is installed. A rung's decoder is a
process of its own (`profiling.peers.worker`), in which the engine's adapter is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.cost import work
from variants.backends.plugin import Source, plugin_option
from variants.config import GPTConfig
from variants.slots.cache import CONCAT
from variants.slots.precision import BFLOAT16, FLOAT32, INT4, INT8, PrecisionOption
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.peers.peer import Peer, Task
    from profiling.peers.worker import Worker
    from variants.model import GPT, Model


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An adapter with the weights' `kind` in its own words.

    `precision` is ours of as many bits. `own_weights`: why its logits are none of ours at this precision;
    empty where it stores the weights as we do. `bits` of a weight with its share of a group's scale,
    `cache_bits` of a key or value: where an engine chooses by itself, the fewest that it may take.
    """

    build: Callable[[GPT, Task, str], Peer]
    kind: str
    package: str  # whose version is reported
    settings: str
    bits: float
    cache_bits: int
    precision: PrecisionOption
    own_weights: str = ""
    gives_logits: bool = True

    def step_bytes(self, config: GPTConfig, context: int) -> int:
        """Bytes of weights and cache that a step at this context must read."""
        return work.step_bytes(config, context, self.bits / 8, self.cache_bits / 8)

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def why_not(self, device: str) -> str | None:
        """None where it can run on this kind of device, else the reason."""
        if device != "cpu":
            return "engines of others are run on the CPU: add --device cpu"
        return (
            None if self.version else f"{self.package} is not installed: `make peers`, or see docs/peers.md"
        )


def _transformers_peer(model: GPT, task: Task, kind: str) -> Peer:
    from profiling.peers.peer import HuggingFace

    return HuggingFace(model, task, kind)


def _llama_peer(model: GPT, task: Task, kind: str) -> Peer:
    from profiling.peers.peer import LlamaCpp

    return LlamaCpp(model, task, kind)


def _ctranslate2_peer(model: GPT, task: Task, kind: str) -> Peer:
    from profiling.peers.peer import CTranslate2

    return CTranslate2(model, task, kind)


def _onnx_peer(model: GPT, task: Task, kind: str) -> Peer:
    from profiling.peers.graphs import OnnxRuntime

    return OnnxRuntime(model, task, kind)


def _openvino_peer(model: GPT, task: Task, kind: str) -> Peer:
    from profiling.peers.graphs import OpenVino

    return OpenVino(model, task, kind)


def _transformers(dtype: str, precision: PrecisionOption, bits: int) -> Engine:
    return Engine(
        build=_transformers_peer,
        kind=dtype,
        package="transformers",
        settings=f"{dtype}, dynamic cache, its own SDPA attention",
        bits=bits,
        cache_bits=bits,
        precision=precision,
    )


def _llama(kind: str, precision: PrecisionOption, bits: float) -> Engine:
    cache, cache_bits = ("float32", 32) if kind == "F32" else ("float16", 16)
    return Engine(
        build=_llama_peer,
        kind=kind,
        package="llama-cpp-python",
        settings=f"GGUF {kind}, cache {cache}",
        bits=bits,
        cache_bits=cache_bits,
        precision=precision,
        own_weights="" if kind in ("F32", "BF16") else f"it stores weights as {kind}",
    )


def _ctranslate2(compute: str, precision: PrecisionOption, bits: int) -> Engine:
    return Engine(
        build=_ctranslate2_peer,
        kind=compute,
        package="ctranslate2",
        settings=f"compute type {compute}, generate_tokens one by one",
        bits=bits,
        cache_bits=16 if precision is BFLOAT16 else 32,
        precision=precision,
        own_weights="" if precision is FLOAT32 else f"it computes with {compute} in its own way",
        gives_logits=False,
    )


def _onnx(kind: str, precision: PrecisionOption, weights: str, bits: float) -> Engine:
    return Engine(
        build=_onnx_peer,
        kind=kind,
        package="onnxruntime",
        settings=f"{weights}, all graph optimisations, cache in its own memory",
        bits=bits,
        cache_bits=32,
        precision=precision,
        own_weights="" if precision is FLOAT32 else f"it stores weights as {weights}",
    )


def _openvino(
    kind: str, precision: PrecisionOption, weights: str, bits: float, cache_bits: int = 8
) -> Engine:
    return Engine(
        build=_openvino_peer,
        kind=kind,
        package="openvino",
        settings=f"{weights}, latency hint, cache as the model's state",
        bits=bits,
        cache_bits=cache_bits,
        precision=precision,
        own_weights="" if kind in ("f32", "bf16") else "it chooses the arithmetic of narrow weights itself",
    )


# a scale per output channel is next to nothing, one of 32 bits per group of 64 is not
INT8_BITS, INT4_BITS = 8.0, 4.5
ENGINES = {
    "transformers": _transformers("float32", FLOAT32, 32),
    "transformers-bf16": _transformers("bfloat16", BFLOAT16, 16),
    "llama.cpp": _llama("F32", FLOAT32, 32),
    "llama.cpp-f16": _llama("F16", BFLOAT16, 16),
    "llama.cpp-bf16": _llama("BF16", BFLOAT16, 16),
    "llama.cpp-q8_0": _llama("Q8_0", INT8, 8.5),
    "llama.cpp-q4_0": _llama("Q4_0", INT4, 4.5),
    "ctranslate2": _ctranslate2("float32", FLOAT32, 32),
    "ctranslate2-bf16": _ctranslate2("bfloat16", BFLOAT16, 16),
    "ctranslate2-int8": _ctranslate2("int8", INT8, 8),
    "onnxruntime": _onnx("float32", FLOAT32, "float32", 32),
    "onnxruntime-int8": _onnx("int8", INT8, "dynamic int8 per channel", INT8_BITS),
    "onnxruntime-int4": _onnx("int4", INT4, "MatMulNBits, groups of 64, int8 activations", INT4_BITS),
    "openvino": _openvino("f32", FLOAT32, "float32", 32, 32),
    "openvino-bf16": _openvino("bf16", BFLOAT16, "bfloat16", 16, 16),
    "openvino-int8": _openvino("i8", INT8, "int8 weights per channel", INT8_BITS),
    "openvino-int4": _openvino("i4", INT4, "int4 weights in groups of 64", INT4_BITS),
}


def engine_rungs(folder: Path | None = None) -> dict[str, Variant]:
    """Every engine as a variant without a parent, by name; conversions are kept in `folder`, or the cache.

    Nothing of an engine is imported.
    """
    return {name: _rung(name, engine, folder) for name, engine in ENGINES.items()}


def _rung(name: str, engine: Engine, folder: Path | None) -> Variant:
    def start(model: Model, batch: int, capacity: int) -> Worker:
        from profiling.peers.worker import Worker

        return Worker.of(name, model, batch, capacity, folder)

    source = Source(name, engine.package, lambda: start, engine.why_not, elsewhere=True)
    removes = f"nothing: {engine.package}, {engine.settings}"
    return Variant(name, removes, cache=CONCAT, precision=engine.precision, backend=plugin_option(source))
