# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
# ruff: noqa: RUF005, SIM108 (compiled by Triton, which takes a part of Python only)
"""Loads of tiles, the residual stream and its norm.

A row of a matrix is cut into `chunks` tiles side by side, kept as a tuple. Loads are issued where they are
written and used later: what is constant during a step is loaded before a program waits for the others.
"""

import triton
import triton.language as tl

from variants.backends.triton_step.assembly import PREFETCH_LINE, PREFETCH_RUN
from variants.backends.triton_step.plan import Ahead

NO_HINTS = tl.constexpr(int(Ahead.NONE))
IN_RUNS = tl.constexpr(int(Ahead.IN_RUNS))
LINE_BYTES = tl.constexpr(128)
LINES = tl.constexpr(256)  # asked for at a time: one per thread


@triton.jit
def share(pid, m: tl.constexpr, programs):
    """Rows [first, end) of program `pid`, as even as whole units of them allow."""
    UNIT: tl.constexpr = m.unit
    UNITS: tl.constexpr = m.rows // m.unit
    return (pid * UNITS) // programs * UNIT, ((pid + 1) * UNITS) // programs * UNIT


@triton.jit
def load_tiles(w, row, end, m: tl.constexpr):
    """Rows [row, row + tile) of w, those before `end`, as a tuple of chunks; issued, not used."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    ROWS: tl.constexpr = m.tile_rows
    CHUNKS: tl.constexpr = m.chunks
    n = row + tl.arange(0, ROWS)[:, None]
    tiles = ()
    for c in tl.static_range(CHUNKS):
        k = c * TILE + tl.arange(0, TILE)[None, :]
        tiles = tiles + (tl.load(w + n * K + k, mask=(n < end) & (k < K), other=0),)
    return tiles


@triton.jit
def load_per_row(p, row, end, m: tl.constexpr):
    """Bias or scale of the rows of a tile, as float32."""
    ROWS: tl.constexpr = m.tile_rows
    n = row + tl.arange(0, ROWS)
    return tl.load(p + n, mask=n < end, other=0).to(tl.float32)


@triton.jit
def load_biases(bias, row, end, m: tl.constexpr):
    """The biases of a tile's rows; zeros where the matrix has none."""
    BIASED: tl.constexpr = m.biased
    ROWS: tl.constexpr = m.tile_rows
    if BIASED:
        biases = load_per_row(bias, row, end, m)
    else:
        biases = tl.zeros((ROWS,), tl.float32)
    return biases


@triton.jit
def load_scales(scale, row, end, m: tl.constexpr):
    """The scales of a tile's rows; ones, unused, where the weights have none."""
    SCALED: tl.constexpr = m.scaled
    ROWS: tl.constexpr = m.tile_rows
    if SCALED:
        scales = load_per_row(scale, row, end, m)
    else:
        scales = tl.full((ROWS,), 1.0, tl.float32)
    return scales


@triton.jit
def load_vector(p, m: tl.constexpr):
    """A vector as long as the matrix has columns, as float32 chunks [1, tile]."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    CHUNKS: tl.constexpr = m.chunks
    chunks = ()
    for c in tl.static_range(CHUNKS):
        k = c * TILE + tl.arange(0, TILE)[None, :]
        chunks = chunks + (tl.load(p + k, mask=k < K, other=0).to(tl.float32),)
    return chunks


@triton.jit
def prefetch(weights, row, end, m: tl.constexpr, g: tl.constexpr):
    """(tiles, scales, biases, gains, shifts) of the first tile of rows; none for a batch."""
    BATCH: tl.constexpr = g.batch_tile
    NORMED: tl.constexpr = m.normed
    RMS: tl.constexpr = g.rms
    w, scale, bias, gain, shift = weights
    first = ()
    if BATCH == 1:
        tiles = load_tiles(w, row, end, m)
        per_row = load_scales(scale, row, end, m), load_biases(bias, row, end, m)
        if NORMED and RMS:
            first = tiles, per_row, load_vector(gain, m), ()
        elif NORMED:
            first = tiles, per_row, load_vector(gain, m), load_vector(shift, m)
        else:
            first = tiles, per_row, (), ()
    return first


@triton.jit
def ahead(w, row, end, m: tl.constexpr, g: tl.constexpr):
    """Ask for rows [row, end) of w in the second-level cache; nothing waits for them.

    Bytes are counted from the last 16-byte boundary before either end, so that the shares of all programs
    overlap nowhere, leave no gap, and end inside the matrix.
    """
    K: tl.constexpr = m.columns
    AHEAD: tl.constexpr = g.ahead
    SIZE: tl.constexpr = w.dtype.element_ty.primitive_bitwidth // 8
    if AHEAD != NO_HINTS:
        first = row.to(tl.int64) * (K * SIZE) // 16 * 16
        last = end.to(tl.int64) * (K * SIZE) // 16 * 16
        start = w.to(tl.int64) + first
        size = (last - first).to(tl.int32)
        if AHEAD == IN_RUNS:
            tl.inline_asm_elementwise(PREFETCH_RUN, "=r,l,r", [start, size], tl.int32, is_pure=False, pack=1)
        else:
            line = tl.arange(0, LINES) * LINE_BYTES
            for done in range(0, size, LINES * LINE_BYTES):
                left = size - done - line
                tl.inline_asm_elementwise(
                    PREFETCH_LINE, "=r,l,r", [start + done + line, left], tl.int32, is_pure=False, pack=1
                )


@triton.jit
def embed(token, position, wte, wpe, x, m: tl.constexpr, g: tl.constexpr):
    """Token and position rows, stored in x [B, C]; this program may read them afterwards. Rotary positions
    are no part of it.
    """
    ROTARY: tl.constexpr = g.rotary
    C: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    CHUNKS: tl.constexpr = m.chunks
    ROWS: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    b = tl.arange(0, ROWS)[:, None]
    row = tl.load(token + b, mask=b < B, other=0)
    for c in tl.static_range(CHUNKS):
        k = c * TILE + tl.arange(0, TILE)[None, :]
        inside = (b < B) & (k < C)
        of_token = tl.load(wte + row * C + k, mask=inside, other=0).to(tl.float32)
        if not ROTARY:
            of_token += tl.load(wpe + position * C + k, mask=k < C, other=0).to(tl.float32)
        tl.store(x + b * C + k, of_token, mask=inside)
    tl.debug_barrier()


@triton.jit
def load_inputs(x, start, m: tl.constexpr, g: tl.constexpr):
    """[batch tile, tile] from column `start` of x float32 [B, columns], which other programs wrote."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    ROWS: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    b = tl.arange(0, ROWS)[:, None]
    k = start + tl.arange(0, TILE)[None, :]
    return tl.load(x + b * K + k, mask=(b < B) & (k < K), other=0.0, cache_modifier=".cg")


@triton.jit
def load_activations(x, m: tl.constexpr, g: tl.constexpr):
    """x float32 [B, columns] of an earlier phase, as chunks [batch tile, tile]."""
    TILE: tl.constexpr = m.tile_columns
    CHUNKS: tl.constexpr = m.chunks
    chunks = ()
    for c in tl.static_range(CHUNKS):
        chunks = chunks + (load_inputs(x, c * TILE, m, g),)
    return chunks


@triton.jit
def layer_norm(xs, gains, shifts, m: tl.constexpr, g: tl.constexpr):
    """Each row of xs, normalised; two passes over registers."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    CHUNKS: tl.constexpr = m.chunks
    EPSILON: tl.constexpr = g.epsilon
    total = xs[0]
    for c in tl.static_range(1, CHUNKS):
        total += xs[c]
    mean = (tl.sum(total, 1) / K)[:, None]
    squares = tl.zeros_like(total)
    for c in tl.static_range(CHUNKS):
        k = c * TILE + tl.arange(0, TILE)[None, :]
        away = tl.where(k < K, xs[c] - mean, 0.0)
        squares += away * away
    scale = (1.0 / tl.sqrt(tl.sum(squares, 1) / K + EPSILON))[:, None]
    normed = ()
    for c in tl.static_range(CHUNKS):
        normed = normed + ((xs[c] - mean) * scale * gains[c] + shifts[c],)
    return normed


@triton.jit
def rms_norm(xs, gains, m: tl.constexpr, g: tl.constexpr):
    """Each row of xs over the root of its mean square."""
    K: tl.constexpr = m.columns
    CHUNKS: tl.constexpr = m.chunks
    EPSILON: tl.constexpr = g.epsilon
    squares = xs[0] * xs[0]
    for c in tl.static_range(1, CHUNKS):
        squares += xs[c] * xs[c]
    scale = (1.0 / tl.sqrt(tl.sum(squares, 1) / K + EPSILON))[:, None]
    normed = ()
    for c in tl.static_range(CHUNKS):
        normed = normed + (xs[c] * scale * gains[c],)
    return normed


@triton.jit
def moments(x, m: tl.constexpr, g: tl.constexpr):
    """Mean and 1 / standard deviation of the rows of x [B, columns], each [batch tile, 1]; the mean is zero
    where norms take none.
    """
    RMS: tl.constexpr = g.rms
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    ROWS: tl.constexpr = g.batch_tile
    EPSILON: tl.constexpr = g.epsilon
    total = tl.zeros((ROWS, TILE), tl.float32)
    if not RMS:
        for start in range(0, K, TILE):
            total += load_inputs(x, start, m, g)
    mean = (tl.sum(total, 1) / K)[:, None]
    squares = tl.zeros((ROWS, TILE), tl.float32)
    for start in range(0, K, TILE):
        inside = start + tl.arange(0, TILE)[None, :] < K
        away = tl.where(inside, load_inputs(x, start, m, g) - mean, 0.0)
        squares += away * away
    return mean, (1.0 / tl.sqrt(tl.sum(squares, 1) / K + EPSILON))[:, None]
