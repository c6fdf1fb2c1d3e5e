# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
# ruff: noqa: RUF059, SIM108 (compiled by Triton, which takes a part of Python only)
"""Projections: one loop over the rows that a program owns, and what becomes of the result.

At batch 1 a row of weights times the activations is a sum in registers, and one tile of weights is always in
flight. A larger batch is a matrix product: of bfloat16 activations on the tensor cores, of float32 ones in
full precision (no TF32) on the ordinary ones.
"""

import triton
import triton.language as tl

from variants.backends.triton_step.tiles import (
    layer_norm,
    load_activations,
    load_biases,
    load_inputs,
    load_scales,
    load_tiles,
    moments,
    rms_norm,
)

NO_INDEX = tl.constexpr(2**31 - 1)


@triton.jit
def multiply(tiles, per_row, xs, m: tl.constexpr):
    """xs [1, columns] times one tile of rows, transposed -> float32 [1, tile rows]."""
    CHUNKS: tl.constexpr = m.chunks
    scales, biases = per_row
    products = tiles[0].to(tl.float32) * xs[0]
    for c in tl.static_range(1, CHUNKS):
        products += tiles[c].to(tl.float32) * xs[c]
    return (tl.sum(products, 1) * scales + biases)[None, :]


@triton.jit
def multiply_batch(x, norm, weights, row, end, m: tl.constexpr, g: tl.constexpr):
    """x [B, columns], normed on the way, times one tile of rows -> float32 [batch tile, tile rows]."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    ROWS: tl.constexpr = m.tile_rows
    NORMED: tl.constexpr = m.normed
    BATCH: tl.constexpr = g.batch_tile
    HALF: tl.constexpr = g.half
    RMS: tl.constexpr = g.rms
    w, scale, bias, gain, shift = weights
    n = row + tl.arange(0, ROWS)[:, None]
    y = tl.zeros((BATCH, ROWS), tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)[None, :]
        xs = load_inputs(x, start, m, g)
        if NORMED:
            mean, deviation = norm
            xs = (xs - mean) * deviation * tl.load(gain + k, mask=k < K, other=0).to(tl.float32)
            if not RMS:
                xs += tl.load(shift + k, mask=k < K, other=0).to(tl.float32)
        tile = tl.load(w + n * K + k, mask=(n < end) & (k < K), other=0)
        if HALF:
            y = tl.dot(xs.to(tl.bfloat16), tl.trans(tile.to(tl.bfloat16)), y)
        else:
            y = tl.dot(xs, tl.trans(tile.to(tl.float32)), y, input_precision="ieee")
    return y * load_scales(scale, row, end, m)[None, :] + load_biases(bias, row, end, m)[None, :]


@triton.jit
def linear(first, x, weights, row, end, out, state, m: tl.constexpr, g: tl.constexpr, STORE: tl.constexpr):
    """Rows [row, end) of a projection of x [B, columns]; `first` is what `prefetch` returned.

    STORE(y, row, end, out, state, m, g) says what becomes of a tile of the result and returns the new state.
    """
    ROWS: tl.constexpr = m.tile_rows
    NORMED: tl.constexpr = m.normed
    BATCH: tl.constexpr = g.batch_tile
    RMS: tl.constexpr = g.rms
    if BATCH == 1:
        tiles, per_row, gains, shifts = first
        w, scale, bias, gain, shift = weights
        xs = load_activations(x, m, g)
        if NORMED and RMS:
            xs = rms_norm(xs, gains, m, g)
        elif NORMED:
            xs = layer_norm(xs, gains, shifts, m, g)
        for r in range(row, end, ROWS):
            next_tiles = load_tiles(w, r + ROWS, end, m)
            next_per_row = load_scales(scale, r + ROWS, end, m), load_biases(bias, r + ROWS, end, m)
            state = STORE(multiply(tiles, per_row, xs, m), r, end, out, state, m, g)
            tiles = next_tiles
            per_row = next_per_row
    else:
        norm = 0.0, 0.0
        if NORMED:
            norm = moments(x, m, g)
        for r in range(row, end, ROWS):
            y = multiply_batch(x, norm, weights, r, end, m, g)
            state = STORE(y, r, end, out, state, m, g)
    return state


@triton.jit
def no_state():
    """For stores that carry nothing from tile to tile."""
    return tl.zeros((1,), tl.int32)


@triton.jit
def lanes(row, end, m: tl.constexpr, g: tl.constexpr):
    """Where a tile of a result belongs: row of the batch, row of the matrix, and whether both exist."""
    ROWS: tl.constexpr = m.tile_rows
    BATCH: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    b = tl.arange(0, BATCH)[:, None]
    n = row + tl.arange(0, ROWS)[None, :]
    return b, n, (n < end) & (b < B)


@triton.jit
def store_qkv(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    """Queries to q [B, H*D]; keys and values to slot `slot` of their caches [B, Hkv, capacity, D]. Keys that
    are still to be turned go behind the queries, q [B, (H+Hkv)*D].
    """
    ROTARY: tl.constexpr = g.rotary
    D: tl.constexpr = g.head_dim
    QUERIES: tl.constexpr = g.n_head * g.head_dim
    KEYS: tl.constexpr = g.n_kv_head * g.head_dim
    HEADS: tl.constexpr = g.n_kv_head
    CAPACITY: tl.constexpr = g.capacity
    ASIDE: tl.constexpr = QUERIES + KEYS * ROTARY
    q, k_cache, v_cache, slot = out
    b, n, inside = lanes(row, end, m, g)
    tl.store(q + b * ASIDE + n, y, mask=inside & (n < ASIDE))
    j = (n + (KEYS - QUERIES % KEYS)) % KEYS
    at = ((b * HEADS + j // D) * CAPACITY + slot) * D + j % D
    if not ROTARY:
        is_key = (n >= QUERIES) & (n < QUERIES + KEYS)
        tl.store(k_cache + at, y.to(k_cache.dtype.element_ty), mask=inside & is_key)
    tl.store(v_cache + at, y.to(v_cache.dtype.element_ty), mask=inside & (n >= QUERIES + KEYS))
    return state


@triton.jit
def activation(y, g: tl.constexpr):
    """SiLU, or GELU with the tanh approximation, written as a sigmoid: tanh(z) = 2 sigmoid(2 z) - 1."""
    SILU: tl.constexpr = g.silu
    if SILU:
        activated = y * tl.sigmoid(y)
    else:
        activated = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    return activated


@triton.jit
def store_activated(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    """To out [B, F]. Where rows of gate and up alternate, a tile holds whole pairs."""
    UNIT: tl.constexpr = m.unit
    F: tl.constexpr = m.rows // m.unit
    BATCH: tl.constexpr = g.batch_tile
    PAIRS: tl.constexpr = m.tile_rows // m.unit
    B: tl.constexpr = g.batch
    if UNIT == 1:
        b, n, inside = lanes(row, end, m, g)
        tl.store(out + b * F + n, activation(y, g), mask=inside)
    else:
        gate, up = tl.split(tl.reshape(y, (BATCH, PAIRS, 2)))
        b = tl.arange(0, BATCH)[:, None]
        n = row // UNIT + tl.arange(0, PAIRS)[None, :]
        inside = (n < end // UNIT) & (b < B)
        tl.store(out + b * F + n, activation(gate, g) * up, mask=inside)
    return state


@triton.jit
def add_to_residual(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    C: tl.constexpr = m.rows
    b, n, inside = lanes(row, end, m, g)
    here = out + b * C + n
    tl.store(here, tl.load(here, mask=inside, other=0.0, cache_modifier=".cg") + y, mask=inside)
    return state


@triton.jit
def store_logits(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    """Logits [B, V]; the state is the best one so far and its index, per lane."""
    V: tl.constexpr = m.rows
    top, at = state
    b, n, inside = lanes(row, end, m, g)
    y = y.to(out.dtype.element_ty)
    tl.store(out + b * V + n, y, mask=inside)
    y = y.to(tl.float32)  # the argmax is that of the logits as they were stored
    better = inside & (y > top)
    return tl.where(better, y, top), tl.where(better, n, at)


@triton.jit
def classify(first, x, weights, row, end, logits, best, pid, m: tl.constexpr, g: tl.constexpr):
    """Logits of rows [row, end) and their maximum, at place `pid` of value and index [B, programs]."""
    ROWS: tl.constexpr = m.tile_rows
    BATCH: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    PROGRAMS: tl.constexpr = g.programs
    value, index = best
    nothing = tl.full((BATCH, ROWS), float("-inf"), tl.float32), tl.full((BATCH, ROWS), NO_INDEX, tl.int32)
    top, at = linear(first, x, weights, row, end, logits, nothing, m, g, store_logits)
    highest = tl.max(top, 1)
    lowest = tl.min(tl.where(top == highest[:, None], at, NO_INDEX), 1)
    b = tl.arange(0, BATCH)
    tl.store(value + b * PROGRAMS + pid, highest, mask=b < B)
    tl.store(index + b * PROGRAMS + pid, lowest, mask=b < B)
