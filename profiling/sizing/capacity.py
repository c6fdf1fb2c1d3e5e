"""The planning question backwards: given a device's memory, how many tokens and requests fit?

No torch here. What the weights leave of the usable share of memory is divided by what a token, or a
request of a given length, keeps. Blocks are counted as serving does it: a request holds whole blocks.
"""

from __future__ import annotations

import math

from profiling.results.record import FittingPlan, ModelShape
from profiling.sizing.model_shape import (
    KvFormat,
    attention_pairs,
    kv_bytes,
    kv_token_bytes,
    longest_context,
)
from variants.errors import UserError

GIB = 2**30
BLOCK_TOKENS = 16  # vLLM's default block size


def plan(
    shape: ModelShape,
    kv: KvFormat,
    context: int,
    device_gib: float,
    utilisation: float,
    other_gib: float = 0.0,
) -> FittingPlan:
    """Fit requests of `context` tokens. `other_gib`: activations, graphs and what else is not counted here.

    Raises UserError where the numbers cannot be, the weights' size is unknown, or nothing is left.
    """
    device, other = device_gib * GIB, other_gib * GIB
    if not (0 < device < math.inf and 0 < utilisation <= 1 and 0 <= other < math.inf and context >= 1):
        raise UserError(
            f"cannot plan {context} tokens on {device_gib} GiB used to {utilisation} with {other_gib} GiB "
            "for other things: memory and tokens must be positive and finite, the share in 0 to 1"
        )
    if shape.weights_bytes is None:
        raise UserError(f"{shape.name}: the size of the weights is not known; give it by --weights-gib")
    usable = int(device * utilisation)
    free = usable - shape.weights_bytes - int(other)
    if free < kv_token_bytes(shape, kv):
        raise UserError(
            f"{shape.name}: {shape.weights_bytes / GIB:.2f} GiB of weights and {other_gib:g} GiB for other "
            f"things leave nothing of {usable / GIB:.2f} GiB for a cache"
        )
    blocks = -(-context // BLOCK_TOKENS)
    request = kv_bytes(shape, blocks * BLOCK_TOKENS, kv)
    windowed = any(window is not None for window in shape.windows)
    tokens = None if windowed else free // kv_token_bytes(shape, kv)
    return FittingPlan(usable, free, tokens, free // request, request, longest_context(shape, free, kv))


def doubling(shape: ModelShape, kv: KvFormat, context: int) -> dict[str, float]:
    """Factors by which bytes and work grow when the context doubles, by what they are of."""
    n = context
    return {
        "cache of a request": kv_bytes(shape, 2 * n, kv) / kv_bytes(shape, n, kv),
        "prefill, attention": attention_pairs(shape, 2 * n) / attention_pairs(shape, n),
        "prefill, linear layers": 2.0,
        "decode step, attention": kv_bytes(shape, 2 * n, kv) / kv_bytes(shape, n, kv),
        "decode step, linear layers": 1.0,
    }
