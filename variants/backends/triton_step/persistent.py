# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

"""Schedule 2: one persistent kernel per step, a software barrier between its phases.

The grid must be resident as a whole: it has one program per multiprocessor and is launched cooperatively, so
that a grid that does not fit is refused by the driver. The weights of the next phase are loaded between a
program's arrival at the barrier and its first poll: not before, since the release would wait for them. There
too the matrix of the phase after that is asked for in the second-level cache (`ahead`), each once and a phase
before its first tile is loaded; not at the third wait, where the two largest are on their way already.

A program that polls in vain for `POLLS` in one step goes on with wrong data, raises counters[2] and ends: an
error instead of a hang. The barrier's count is put back to zero by the last program of the step.
"""

import triton
import triton.language as tl

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
from variants.backends.triton_step.sync import arrive, stamp, wait
from variants.backends.triton_step.tiles import ahead, embed, prefetch, share

# Columns of the table of addresses: the five of a matrix's `weights`, then keys and values, then the gains of
# the queries' and keys' norms. One row per layer and one for the head, whose weights stand where a layer has
# those of `qkv`.
QKV = tl.constexpr(0)
OUT = tl.constexpr(5)
UP = tl.constexpr(10)
DOWN = tl.constexpr(15)
CACHE = tl.constexpr(20)
NORMS = tl.constexpr(22)
COLUMNS = tl.constexpr(24)
# Stamps of a program, where they are wanted: at the start, on arrival at each of a layer's five barriers and
# behind it, and at the end.
STAMPS_PER_LAYER = 10
LAYER_STAMPS = tl.constexpr(STAMPS_PER_LAYER)


@triton.jit
def address(table, layer, column, like):
    """A pointer from the table, of the type of `like`; the host has checked that it is 16-byte aligned."""
    return tl.multiple_of(tl.load(table + layer * COLUMNS + column).to(like.dtype), 16)


@triton.jit
def weights_of(table, layer, column, matrix, vector, x):
    """(w, scale, bias, gain, shift) of one matrix."""
    return (
        address(table, layer, column, matrix),
        address(table, layer, column + 1, x),
        address(table, layer, column + 2, vector),
        address(table, layer, column + 3, vector),
        address(table, layer, column + 4, vector),
    )


@triton.jit
def one_step(
    table,
    token,
    length,
    wte,
    wpe,
    matrix,
    vector,
    cache,
    x,
    q,
    o,
    h,
    partial,
    weight,
    value,
    index,
    arrived,
    counters,
    logits,
    stamps,
    g: tl.constexpr,
    POLLS: tl.constexpr,
):
    """`matrix`, `vector`, `cache` only lend their types to the addresses in `table`."""
    LAYERS: tl.constexpr = g.n_layer
    PAIRS: tl.constexpr = g.batch * g.n_head
    PROGRAMS: tl.constexpr = g.programs
    qkv: tl.constexpr = g.qkv
    out: tl.constexpr = g.out
    up: tl.constexpr = g.up
    down: tl.constexpr = g.down
    head: tl.constexpr = g.head
    SIZE: tl.constexpr = g.batch * g.out.rows
    pid = tl.program_id(0)
    at = pid * (LAYERS * LAYER_STAMPS + 2)
    stamp(stamps, at)
    barrier = counters + 1
    q_row, q_end = share(pid, qkv, PROGRAMS)
    c_row, c_end = share(pid, out, PROGRAMS)
    f_row, f_end = share(pid, up, PROGRAMS)
    v_row, v_end = share(pid, head, PROGRAMS)
    scratch = (partial, weight, arrived)

    weights = weights_of(table, 0, QKV, matrix, vector, x)
    first = prefetch(weights, q_row, q_end, qkv, g)
    held = tl.load(length)
    position = held.to(tl.int32)
    keys, live = split_keys(position, g)
    ahead(address(table, 0, OUT, matrix), c_row, c_end, out, g)
    embed(token, position, wte, wpe, x + pid * SIZE, qkv, g)
    target = 0
    polls = POLLS
    # addresses and masks of all five matrices, hoisted out of the loop, would be held in registers across it
    for layer in tl.range(LAYERS, disable_licm=True):
        k_cache = address(table, layer, CACHE, cache)
        v_cache = address(table, layer, CACHE + 1, cache)
        # each program keeps a copy of the embedding; program 0's is the residual stream
        here = x + tl.where(layer == 0, pid, 0) * SIZE
        appended = (q, k_cache, v_cache, position)
        linear(first, here, weights, q_row, q_end, appended, no_state(), qkv, g, store_qkv)

        arrive(barrier, stamps, at + 1)
        target += PROGRAMS
        turns = wpe, address(table, layer, NORMS, vector), address(table, layer, NORMS + 1, vector)
        weights_out = weights_of(table, layer, OUT, matrix, vector, x)
        first_out = prefetch(weights_out, c_row, c_end, out, g)
        old = first_keys(pid, position, keys, k_cache, v_cache, g)
        ahead(address(table, layer, UP, matrix), f_row, f_end, up, g)
        polls = wait(barrier, target, polls, stamps, at + 2)
        for item in range(pid, PAIRS * live, PROGRAMS):
            attend(old, item, position, keys, live, turns, q, k_cache, v_cache, o, scratch, g)
            old = first_keys(item + PROGRAMS, position, keys, k_cache, v_cache, g)

        arrive(barrier, stamps, at + 3)
        target += PROGRAMS
        ahead(address(table, layer, DOWN, matrix), c_row, c_end, down, g)
        polls = wait(barrier, target, polls, stamps, at + 4)
        linear(first_out, o, weights_out, c_row, c_end, x, no_state(), out, g, add_to_residual)

        arrive(barrier, stamps, at + 5)
        target += PROGRAMS
        weights_up = weights_of(table, layer, UP, matrix, vector, x)
        first_up = prefetch(weights_up, f_row, f_end, up, g)
        polls = wait(barrier, target, polls, stamps, at + 6)
        linear(first_up, x, weights_up, f_row, f_end, h, no_state(), up, g, store_activated)

        arrive(barrier, stamps, at + 7)
        target += PROGRAMS
        weights_down = weights_of(table, layer, DOWN, matrix, vector, x)
        first_down = prefetch(weights_down, c_row, c_end, down, g)
        # the next layer's, or as many rows of the head
        more = layer + 1 < LAYERS
        next_row = tl.where(more, q_row, v_row)
        next_end = tl.where(more, q_end, tl.minimum(v_row + q_end - q_row, v_end))
        ahead(address(table, layer + 1, QKV, matrix), next_row, next_end, qkv, g)
        polls = wait(barrier, target, polls, stamps, at + 8)
        linear(first_down, h, weights_down, c_row, c_end, x, no_state(), down, g, add_to_residual)

        arrive(barrier, stamps, at + 9)
        target += PROGRAMS
        weights = weights_of(table, layer + 1, QKV, matrix, vector, x)
        first = prefetch(weights, next_row, tl.where(more, q_end, v_end), qkv, g)
        ahead(address(table, layer + 1, OUT, matrix), c_row, tl.where(more, c_end, c_row), out, g)
        polls = wait(barrier, target, polls, stamps, at + 10)
        at += LAYER_STAMPS

    best = (value, index)
    classify(first, x, weights, v_row, v_end, logits, best, pid, head, g)
    stamp(stamps, at + 1)
    if polls == 0:
        tl.store(counters + 2, 1)
    finish(token, length, held, best, counters, g)
