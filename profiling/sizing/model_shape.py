"""What does a model keep per token, and how big is it?

No torch here. A `ModelShape` comes from a config (`profiling.sizing.read_shape.read_shape`), from one of this
project's own models (`shape_of_gpt`), or from numbers; the functions turn it into bytes of KV cache. A layer
with a sliding window of W keeps min(tokens, W) tokens: a query sees itself and W - 1 before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiling.cost import work
from profiling.results.record import ModelShape
from variants.config import DTYPE_BYTES, GPTConfig


@dataclass(frozen=True)
class KvFormat:
    """How one number of the cache is stored, and what a scale per token and KV head adds."""

    element_bytes: int
    scale_bytes: int = 0


# fp8 as vLLM stores it has one scale per tensor, which is nothing; its int8 has a float32 per token and head
KV_FORMATS = {
    **{name: KvFormat(DTYPE_BYTES[name]) for name in ("float32", "bfloat16", "float16")},
    "fp8": KvFormat(1),
    "int8": KvFormat(1, scale_bytes=4),
}


def kv_token_bytes(shape: ModelShape, kv: KvFormat) -> int:
    """Bytes of the keys and values of one token in all layers, while no window is full."""
    return kv_bytes(shape, 1, kv)


def kv_bytes(shape: ModelShape, tokens: int, kv: KvFormat, batch: int = 1) -> int:
    """Bytes of the cache of `batch` requests of `tokens` tokens each: for every layer and every token that
    it keeps 2 * kv_heads * head_dim * element bytes, or one latent vector."""
    tokens_held = sum(tokens if window is None else min(tokens, window) for window in shape.windows)
    vectors, width = (1, shape.latent) if shape.latent else (2 * shape.n_kv_head, shape.head_dim)
    return vectors * (width * kv.element_bytes + kv.scale_bytes) * tokens_held * batch


def longest_context(shape: ModelShape, budget_bytes: int, kv: KvFormat) -> int | None:
    """Most tokens of one request whose cache fits; None: any number does (every layer has a window)."""
    if budget_bytes < kv_token_bytes(shape, kv):
        return 0
    low, high = 1, 1
    while kv_bytes(shape, high, kv) <= budget_bytes:
        if all(window is not None and window <= high for window in shape.windows):
            return None
        low, high = high, 2 * high
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        low, high = (middle, high) if kv_bytes(shape, middle, kv) <= budget_bytes else (low, middle)
    return low


def attention_pairs(shape: ModelShape, tokens: int) -> int:
    """(query, key) pairs that prefill must score, summed over layers, one head each."""

    def pairs(window: int) -> int:  # the first `window` queries see 1, 2, ... keys, the others `window`
        return window * (window + 1) // 2 + (tokens - window) * window

    return sum(pairs(tokens if window is None else min(tokens, window)) for window in shape.windows)


def shape_of_gpt(name: str, config: GPTConfig, dtype: str = "float32") -> ModelShape:
    """The shape of one of this project's own models."""
    parameters = work.parameters(config)
    return ModelShape(
        name,
        config.n_head,
        config.n_kv_head,
        config.head_dim,
        (None,) * config.n_layer,
        config.n_ctx,
        parameters,
        parameters * DTYPE_BYTES[dtype],
        dtype,
        "gpt2",
        work.weights_read_bytes(config, 1),
    )
