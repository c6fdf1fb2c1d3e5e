# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

"""Schedule 1: one kernel per phase, five per layer and the head, meant to be replayed from a CUDA graph.

With programmatic dependent launch (PDL, compute capability 9.0) a kernel starts while its predecessor still
runs, loads its first tile of weights and then waits. What it reads before the wait must be constant: weights,
and slots and length that this step does not change. Length counts as constant because the first kernel of a
step triggers only after its own wait, so nothing of a step starts before the last step has ended; and every
kernel waits, or the order would not be transitive.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from variants.backends.triton_step.attention import attend, first_keys, split_keys
from variants.backends.triton_step.finish import finish
from variants.backends.triton_step.linear import (
    add_to_residual,
    classify,
    linear,
    no_state,
    store_activated,
    store_qkv,
)
from variants.backends.triton_step.tiles import embed, prefetch, share


@triton.jit
def follow(PDL: tl.constexpr, FIRST: tl.constexpr):
    """Wait for the previous kernel and let the next one start."""
    if PDL:
        if FIRST:
            gdc_wait()
            gdc_launch_dependents()
        else:
            gdc_launch_dependents()
            gdc_wait()


@triton.jit
def qkv_kernel(
    token,
    length,
    wte,
    wpe,
    x,
    w,
    scale,
    bias,
    gain,
    shift,
    q,
    k_cache,
    v_cache,
    g: tl.constexpr,
    FIRST: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first kernel of a step embeds: each program keeps a copy, program 0's is the residual stream."""
    m: tl.constexpr = g.qkv
    SIZE: tl.constexpr = g.batch * g.qkv.columns
    weights = (w, scale, bias, gain, shift)
    row, end = share(tl.program_id(0), m, tl.num_programs(0))
    first = prefetch(weights, row, end, m, g)
    follow(PDL, FIRST)
    position = tl.load(length).to(tl.int32)
    if FIRST:
        x += tl.program_id(0) * SIZE
        embed(token, position, wte, wpe, x, m, g)
    linear(first, x, weights, row, end, (q, k_cache, v_cache, position), no_state(), m, g, store_qkv)


@triton.jit
def attend_kernel(
    length,
    positions,
    q_gain,
    k_gain,
    q,
    k_cache,
    v_cache,
    o,
    partial,
    weight,
    arrived,
    g: tl.constexpr,
    PDL: tl.constexpr,
):
    item = tl.program_id(0)
    PAIRS: tl.constexpr = g.batch * g.n_head
    position = tl.load(length).to(tl.int32)
    keys, live = split_keys(position, g)
    first = first_keys(item, position, keys, k_cache, v_cache, g)
    follow(PDL, False)
    scratch = (partial, weight, arrived)
    turns = (positions, q_gain, k_gain)
    if item < PAIRS * live:
        attend(first, item, position, keys, live, turns, q, k_cache, v_cache, o, scratch, g)


@triton.jit
def residual_kernel(x, y, w, scale, bias, m: tl.constexpr, g: tl.constexpr, PDL: tl.constexpr):
    """x += y W^T + b, for `out` and `down`."""
    weights = (w, scale, bias, bias, bias)
    row, end = share(tl.program_id(0), m, tl.num_programs(0))
    first = prefetch(weights, row, end, m, g)
    follow(PDL, False)
    linear(first, y, weights, row, end, x, no_state(), m, g, add_to_residual)


@triton.jit
def up_kernel(x, w, scale, bias, gain, shift, h, g: tl.constexpr, PDL: tl.constexpr):
    m: tl.constexpr = g.up
    weights = (w, scale, bias, gain, shift)
    row, end = share(tl.program_id(0), m, tl.num_programs(0))
    first = prefetch(weights, row, end, m, g)
    follow(PDL, False)
    linear(first, x, weights, row, end, h, no_state(), m, g, store_activated)


@triton.jit
def head_kernel(
    token,
    length,
    x,
    w,
    scale,
    bias,
    gain,
    shift,
    logits,
    value,
    index,
    counters,
    g: tl.constexpr,
    PDL: tl.constexpr,
):
    m: tl.constexpr = g.head
    weights = (w, scale, bias, gain, shift)
    pid = tl.program_id(0)
    row, end = share(pid, m, tl.num_programs(0))
    first = prefetch(weights, row, end, m, g)
    follow(PDL, False)
    held = tl.load(length)
    classify(first, x, weights, row, end, logits, (value, index), pid, m, g)
    finish(token, length, held, (value, index), counters, g)
