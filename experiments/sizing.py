"""Question: how large does the KV cache get, and how many requests fit beside the weights?

Claim (articles 2-4): the cache is 2 * layers * kv_heads * head_dim * tokens * bytes * batch, outgrows the weights,
shrinks by n_heads / kv_heads, and doubles with the context while prefill attention quadruples.

Arithmetic only, no torch. The model is a name, a Hugging Face config.json (or its folder), or a shape in flags;
one whose cache is of a kind that is not known here is refused.

    python -m experiments.sizing
    python -m experiments.sizing --model path/to/config.json --context 8192,131072 --batch 1,64
    python -m experiments.sizing --model llama-2-7b --device-gib 80 --utilisation 0.9 --kv-dtype fp8
    python -m experiments.sizing --layers 32 --heads 32 --kv-heads 8 --head-dim 128 --weights-gib 15
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.published import Check
from profiling.capacity import GIB, doubling
from profiling.hf_config import read_shape
from profiling.model_shape import KV_FORMATS, ModelShape, kv_bytes, kv_token_bytes
from variants.config import PRESETS

FP16, FP32 = KV_FORMATS["float16"], KV_FORMATS["float32"]


def published_checks() -> list[Check]:
    """Every figure of the articles' sizing; none depends on a machine."""
    return [*_gpt2(), *_llama(), *_heads(), *_article_4()]


def _gpt2() -> Iterator[Check]:
    shape, token = read_shape("gpt2"), kv_token_bytes(read_shape("gpt2"), FP32)
    weights, limit = shape.weights_bytes, PRESETS["gpt2"].n_ctx
    assert weights is not None
    yield Check("gpt2.token", f"{token / 1024:.0f} KB")
    yield Check("gpt2.4k", f"{kv_bytes(shape, 4096, FP32) / 1e9:.1f} GB")
    yield Check("memory.token", f"{token / 1024:.0f} KiB")
    yield Check("memory.1024", f"{kv_bytes(shape, limit, FP32) / 2**20:.0f} MiB")
    yield Check("memory.weights", f"{weights / 2**20:.0f} MiB")
    yield Check("memory.crossover", f"{round(weights / token, -1):,.0f}")
    yield Check("memory.sequences", {7: "seven"}.get(round(weights / token / limit), "another number"))
    yield Check("memory.64", f"{kv_bytes(shape, limit, FP32, batch=64) / GIB:.1f} GiB")
    yield Check("memory.masks", f"{shape.n_layer * limit * limit * 4 / 2**20:.0f} MiB")


def _llama() -> Iterator[Check]:
    shape = read_shape("llama-2-7b")
    assert shape.weights_bytes is not None and shape.parameters is not None
    yield Check("llama.parameters", f"{shape.parameters / 1e9:.2f}B")
    yield Check("llama.weights", f"{shape.weights_bytes / GIB:.2f} GiB")
    yield Check("llama.token", f"{kv_token_bytes(shape, FP16) / 1024:.0f} KB")
    yield Check("llama.token_bytes", f"{kv_token_bytes(shape, FP16):,}")
    yield Check("llama.4k", f"{kv_bytes(shape, 4096, FP16) / 1e9:.2f} GB")
    for n in (1024, 4096, 32768, 131072):
        many = kv_bytes(shape, n, FP16, batch=32)
        yield Check(f"llama.batch1.{n}", f"{kv_bytes(shape, n, FP16) / GIB:.2f}")
        yield Check(f"llama.batch32.{n}", f"{many / GIB:.1f}")
        yield Check(f"llama.ratio.{n}", f"{many / shape.weights_bytes:.1f}x")


def _heads() -> Iterator[Check]:
    full = read_shape("llama-2-7b")
    for kv_heads in (32, 8, 1):
        shape = replace(full, n_kv_head=kv_heads)
        yield Check(f"heads.4k.{kv_heads}", f"{kv_bytes(shape, 4096, FP16, batch=32) / GIB:.1f}GiB")
        yield Check(f"heads.32k.{kv_heads}", f"{kv_bytes(shape, 32768, FP16, batch=32) / GIB:.1f}GiB")
        yield Check(f"heads.token.{kv_heads}", f"{kv_token_bytes(shape, FP16):,}")
        yield Check(
            f"heads.reduction.{kv_heads}", f"{kv_token_bytes(full, FP16) / kv_token_bytes(shape, FP16):g}x"
        )


def _article_4() -> Iterator[Check]:
    shape = read_shape("llama-2-7b")
    times = doubling(shape, FP16, 4096)
    yield Check("sizing.one", f"{kv_bytes(shape, 4096, FP16) / GIB:g} GiB")
    yield Check("sizing.batch8", f"{kv_bytes(shape, 4096, FP16, batch=8) / GIB:g} GiB")
    yield Check("sizing.double", f"{kv_bytes(shape, 8192, FP16, batch=8) / GIB:g} GiB")
    yield Check("sizing.memory_doubles", f"{times['cache of a request']:.0f}")
    yield Check("sizing.prefill_quadruples", f"{times['prefill, attention']:.0f}")
