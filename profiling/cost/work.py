"""How much must a step compute and read? Exact counts for any GPT config, before anything is timed.

No torch here. One matrix multiplication of [M,K] by [K,N] is M*K*N multiply-accumulates (MACs); a MAC
is two FLOPs. Everything that is not a matrix multiplication (norms, softmax, GELU) is left out, as in
the usual counting and as in `profiling.cost.matmul_counter`, which counts the same thing in a real run.

What a forward pass does is described by three counts that do not depend on the model's width (`Work`);
`macs(config, work)` turns them into multiply-accumulates. Bytes are distinct bytes: a table that two
operations use is counted once, since the memory floor reads it once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from variants.config import GPTConfig
from variants.spec import Variant

FLOPS_PER_MAC = 2


@dataclass(frozen=True)
class Work:
    """tokens: positions pushed through the Linear layers of the blocks; pairs: (query, key) pairs that
    one attention head scores in one layer; logits: positions pushed through lm_head."""

    tokens: int
    pairs: int
    logits: int

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.pairs + other.pairs, self.logits + other.logits)

    def __mul__(self, batch: int) -> Work:
        return Work(self.tokens * batch, self.pairs * batch, self.logits * batch)


def total(parts: Iterable[Work]) -> Work:
    """The sum of the parts."""
    return sum(parts, Work(0, 0, 0))


def forward(tokens: int, past: int = 0, *, logits: int | None = None, skip_future: bool = False) -> Work:
    """Work of one pass over `tokens` new positions on top of `past` cached ones.

    `logits`: positions that reach lm_head (None: all of them; the articles' toy model has no head: 0).
    `skip_future`: count only the keys that a query may see, as a causal kernel does. Attention written
    out scores every pair and masks afterwards, so that is the default.
    """
    future = tokens * (tokens - 1) // 2 if skip_future else 0
    return Work(tokens, tokens * (past + tokens) - future, tokens if logits is None else logits)


def step_work(variant: Variant, context: int, slots: int) -> Work:
    """Work of one step of this variant with `context` tokens held; `slots` as `Decoder.bucket` says.

    Without a cache the whole text runs again. The modules attend to all slots of a fixed shape; the
    backends that bring their own attention stop at the new token.
    """
    if not variant.cache.keeps:
        return forward(context + 1, logits=variant.head.logits)
    return forward(1, past=slots - 1 if variant.backend.attends_to_bucket else context)


def naive_loop(prompt: int, new: int, *, logits: int | None = None) -> Work:
    """Work of `new` tokens after a `prompt`, every step a pass over the whole sequence so far."""
    return total(forward(n, logits=logits) for n in range(prompt, prompt + new))


def cached_loop(prompt: int, new: int, *, logits: int | None = None) -> Work:
    """Work of `new` tokens with a cache: the prefill gives the first, each further one is a step."""
    steps = (forward(1, past=n, logits=logits) for n in range(prompt, prompt + new - 1))
    return forward(prompt, logits=logits) + total(steps) if new else Work(0, 0, 0)


def linear_macs_per_token(config: GPTConfig) -> int:
    """MACs of one position in all blocks' Linear layers: qkv, out, up, down."""
    mlp = (3 if config.gated else 2) * config.n_inner
    return config.n_layer * config.n_embd * (2 * config.q_dim + 2 * config.kv_dim + mlp)


def attention_macs(config: GPTConfig, work: Work) -> int:
    """MACs of q k^T and weights v: D each per pair and query head, however many share a KV head."""
    return 2 * work.pairs * config.n_layer * config.q_dim


def macs_beyond_windows(config: GPTConfig, context: int) -> int:
    """MACs of one step that attention stopping at a layer's window leaves out."""
    windows = (config.window(layer) for layer in range(config.n_layer))
    beyond = sum(max(0, context + 1 - window) for window in windows if window is not None)
    return 2 * beyond * config.q_dim


def macs(config: GPTConfig, work: Work) -> int:
    """Multiply-accumulates of `work`."""
    head = config.n_embd * config.vocab_size * work.logits
    return linear_macs_per_token(config) * work.tokens + attention_macs(config, work) + head


def attention_share(config: GPTConfig, work: Work) -> float:
    """Share of attention in the multiply-accumulates of `work`."""
    return attention_macs(config, work) / macs(config, work)


def step_macs(config: GPTConfig, context: int, batch: int = 1) -> int:
    """MACs of one decode step with `context` tokens in the cache; it attends to context + 1 (itself too).

    A fixed-shape step attends to all its slots: use `context = slots - 1`.
    """
    return macs(config, forward(1, past=context) * batch)


def naive_step_macs(config: GPTConfig, n: int, batch: int = 1) -> int:
    """MACs of one step of the naive loop: all n tokens of the sequence, logits at every position."""
    return macs(config, forward(n) * batch)


def prefill_macs(config: GPTConfig, n: int, batch: int = 1) -> int:
    """MACs of the prefill of an n-token prompt that keeps the last position's logits only."""
    return macs(config, forward(n, logits=1) * batch)


def matmul_calls(config: GPTConfig, attention: int) -> int:
    """Matrix multiplications of one pass: 4 Linear and those of `attention` a layer, and the head."""
    return config.n_layer * (4 + attention) + 1


def matrix_parameters(config: GPTConfig) -> int:
    """Weights of the blocks' Linear layers (no biases)."""
    return linear_macs_per_token(config)  # one MAC per weight and token


def vector_parameters(config: GPTConfig) -> int:
    """Biases of the Linear layers, weights and biases of the norms."""
    C, norm = config.n_embd, 2 if config.norm == "layer" else 1
    up = 2 * config.n_inner if config.gated else config.n_inner
    biases = config.qkv_bias * (config.q_dim + 2 * config.kv_dim) + config.out_bias * C
    biases += config.mlp_bias * (up + C)
    heads = 2 * norm * config.head_dim if config.qk_norm else 0
    per_layer = 4 if config.out_norms else 2
    return config.n_layer * (biases + heads + per_layer * norm * C) + norm * C


def parameters(config: GPTConfig) -> int:
    """Parameters, a tied lm_head counted once."""
    tables = config.vocab_size * (1 if config.tied_head else 2) + (config.n_ctx if config.rope is None else 0)
    return matrix_parameters(config) + vector_parameters(config) + tables * config.n_embd


def weights_stored_bytes(config: GPTConfig, weight_dtype_bytes: float) -> int:
    """Bytes of all parameters, embedding tables whole."""
    return math.ceil(parameters(config) * weight_dtype_bytes)


def weights_read_bytes(
    config: GPTConfig, weight_dtype_bytes: float, batch: int = 1, other_dtype_bytes: float | None = None
) -> int:
    """Bytes of the weights that one step reads: matrices, lm_head whole, one position row.

    Of the token table one row per sequence is read; a tied table is read whole by lm_head, its rows
    are part of that. `weight_dtype_bytes` is the width of matrices and token table (with group scales
    spread over it: 4 bits in groups of 32 with a 16-bit scale = 0.5625), `other_dtype_bytes` that of
    biases, norms and positions (None: the same).
    """
    C, V = config.n_embd, config.vocab_size
    matrices = matrix_parameters(config) + C * V + (0 if config.tied_head else C * min(batch, V))
    others = vector_parameters(config) + (C if config.rope is None else config.head_dim * len(config.ropes))
    other = weight_dtype_bytes if other_dtype_bytes is None else other_dtype_bytes
    return math.ceil(matrices * weight_dtype_bytes + others * other)


def kv_bytes_per_token(config: GPTConfig, kv_dtype_bytes: float) -> int:
    """Bytes of one token's keys and values in all layers: 2 * layers * kv_heads * head_dim * bytes."""
    return math.ceil(2 * config.n_layer * config.kv_dim * kv_dtype_bytes)


def kv_read_bytes(config: GPTConfig, context: int, kv_dtype_bytes: float, batch: int = 1) -> int:
    """Bytes of the cache as it stands before the step, each row read once (also by shared KV heads).

    A fixed-shape step without a length bound reads all its slots: use `context = slots - 1`.
    """
    return context * batch * kv_bytes_per_token(config, kv_dtype_bytes)


def step_bytes(
    config: GPTConfig, context: int, weight_dtype_bytes: float, kv_dtype_bytes: float, batch: int = 1
) -> int:
    """Distinct bytes that one decode step must read: weights and cache."""
    weights = weights_read_bytes(config, weight_dtype_bytes, batch)
    return weights + kv_read_bytes(config, context, kv_dtype_bytes, batch)


def crossover_tokens(config: GPTConfig, weight_dtype_bytes: float, kv_dtype_bytes: float) -> float:
    """Tokens (batch * context) at which the cache is as large as the stored weights."""
    weights = weights_stored_bytes(config, weight_dtype_bytes)
    return weights / kv_bytes_per_token(config, kv_dtype_bytes)
