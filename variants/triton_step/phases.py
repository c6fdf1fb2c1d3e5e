# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The phases of one decode step, as functions that run inside a kernel.

    qkv     norm, projection, keys and values appended to the cache
    attend  split over keys; the last split of a head to finish combines them
    out     projection, added to the residual stream
    up      norm, projection, GELU
    down    projection, added to the residual stream
    head    final norm, logits, argmax, state advanced

`kernels` runs each phase as a kernel, `persistent` all of them in one. A program owns an even share of the
rows of every matrix. At batch 1 the caller loads the first tile of weights before it waits for the previous
phase, and the loop over the rest keeps one tile in flight; a larger batch streams the weights through the
tensor cores.

`weights` is (w, scale, bias, gain, shift): w [out, in] in float32, bfloat16 or int8 with a float32 scale per
row; gain and shift of the norm before it, where the matrix has one. Activations and the residual stream are
float32 [B, columns]; those that another program wrote are read past the L1 cache (`.cg`).
"""

import triton
import triton.language as tl

NO_INDEX = tl.constexpr(2**31 - 1)


@triton.jit
def share(pid, rows, programs):
    """Rows [first, end) of program `pid`, as even as `rows` allows."""
    return (pid * rows) // programs, ((pid + 1) * rows) // programs


# -- loads that may be issued before the previous phase has ended: constants only -----------------


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
    """(tiles, scales, biases, gains, shifts) of the first tile of rows; nothing for a batch, which streams."""
    BATCH: tl.constexpr = g.batch_tile
    NORMED: tl.constexpr = m.normed
    w, scale, bias, gain, shift = weights
    first = ()
    if BATCH == 1:
        tiles = load_tiles(w, row, end, m)
        per_row = load_scales(scale, row, end, m), load_per_row(bias, row, end, m)
        if NORMED:
            first = tiles, per_row, load_vector(gain, m), load_vector(shift, m)
        else:
            first = tiles, per_row, (), ()
    return first


@triton.jit
def load_keys(cache, start, t, end, g: tl.constexpr):
    """Slots [t, t + block) of one cached head, those before `end`, as [block, head tile]."""
    D: tl.constexpr = g.head_dim
    TILE: tl.constexpr = g.head_tile
    BLOCK: tl.constexpr = g.block
    slot = t + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, TILE)[None, :]
    return tl.load(cache + start + slot * D + d, mask=(slot < end) & (d < D), other=0.0)


# -- the residual stream --------------------------------------------------------------------------


@triton.jit
def embed(token, position, wte, wpe, x, m: tl.constexpr, g: tl.constexpr):
    """Token and position rows, stored in x [B, C]; this program may read them afterwards."""
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
        of_place = tl.load(wpe + position * C + k, mask=k < C, other=0).to(tl.float32)
        tl.store(x + b * C + k, of_token + of_place, mask=inside)
    tl.debug_barrier()


@triton.jit
def load_activations(x, m: tl.constexpr, g: tl.constexpr):
    """x float32 [B, columns] of an earlier phase, as chunks [batch tile, tile]."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    CHUNKS: tl.constexpr = m.chunks
    ROWS: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    b = tl.arange(0, ROWS)[:, None]
    chunks = ()
    for c in tl.static_range(CHUNKS):
        k = c * TILE + tl.arange(0, TILE)[None, :]
        chunk = tl.load(x + b * K + k, mask=(b < B) & (k < K), other=0.0, cache_modifier=".cg")
        chunks = chunks + (chunk,)
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
def moments(x, m: tl.constexpr, g: tl.constexpr):
    """Mean and 1 / standard deviation of the rows of x [B, columns], each [batch tile, 1]."""
    K: tl.constexpr = m.columns
    TILE: tl.constexpr = m.tile_columns
    ROWS: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    EPSILON: tl.constexpr = g.epsilon
    b = tl.arange(0, ROWS)[:, None]
    total = tl.zeros((ROWS, TILE), tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)[None, :]
        total += tl.load(x + b * K + k, mask=(b < B) & (k < K), other=0.0, cache_modifier=".cg")
    mean = (tl.sum(total, 1) / K)[:, None]
    squares = tl.zeros((ROWS, TILE), tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)[None, :]
        chunk = tl.load(x + b * K + k, mask=(b < B) & (k < K), other=0.0, cache_modifier=".cg")
        away = tl.where(k < K, chunk - mean, 0.0)
        squares += away * away
    return mean, (1.0 / tl.sqrt(tl.sum(squares, 1) / K + EPSILON))[:, None]


# -- matrix products ------------------------------------------------------------------------------


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
    B: tl.constexpr = g.batch
    HALF: tl.constexpr = g.half
    w, scale, bias, gain, shift = weights
    b = tl.arange(0, BATCH)[:, None]
    n = row + tl.arange(0, ROWS)[:, None]
    y = tl.zeros((BATCH, ROWS), tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)[None, :]
        xs = tl.load(x + b * K + k, mask=(b < B) & (k < K), other=0.0, cache_modifier=".cg")
        if NORMED:
            mean, deviation = norm
            xs = (xs - mean) * deviation * tl.load(gain + k, mask=k < K, other=0).to(tl.float32)
            xs += tl.load(shift + k, mask=k < K, other=0).to(tl.float32)
        tile = tl.load(w + n * K + k, mask=(n < end) & (k < K), other=0)
        if HALF:
            y = tl.dot(xs.to(tl.bfloat16), tl.trans(tile.to(tl.bfloat16)), y)
        else:
            y = tl.dot(xs, tl.trans(tile.to(tl.float32)), y, input_precision="ieee")
    return y * load_scales(scale, row, end, m)[None, :] + load_per_row(bias, row, end, m)[None, :]


@triton.jit
def linear(
    first, x, weights, row, end, out, state, m: tl.constexpr, g: tl.constexpr, STORE: tl.constexpr
):
    """Rows [row, end) of a projection of x [B, columns]; `first` is what `prefetch` returned.

    STORE(y, row, end, out, state, m, g) says what becomes of a tile of the result and returns the new state.
    """
    ROWS: tl.constexpr = m.tile_rows
    NORMED: tl.constexpr = m.normed
    BATCH: tl.constexpr = g.batch_tile
    if BATCH == 1:
        tiles, per_row, gains, shifts = first
        w, scale, bias, gain, shift = weights
        xs = load_activations(x, m, g)
        if NORMED:
            xs = layer_norm(xs, gains, shifts, m, g)
        for r in range(row, end, ROWS):
            next_tiles = load_tiles(w, r + ROWS, end, m)
            next_per_row = load_scales(scale, r + ROWS, end, m), load_per_row(bias, r + ROWS, end, m)
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
def store_qkv(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    """Queries to q [B, H*D]; keys and values to slot `slot` of their caches [B, Hkv, capacity, D]."""
    ROWS: tl.constexpr = m.tile_rows
    BATCH: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    D: tl.constexpr = g.head_dim
    QUERIES: tl.constexpr = g.n_head * g.head_dim
    KEYS: tl.constexpr = g.n_kv_head * g.head_dim
    HEADS: tl.constexpr = g.n_kv_head
    CAPACITY: tl.constexpr = g.capacity
    q, k_cache, v_cache, slot = out
    b = tl.arange(0, BATCH)[:, None]
    n = row + tl.arange(0, ROWS)[None, :]
    inside = (n < end) & (b < B)
    tl.store(q + b * QUERIES + n, y, mask=inside & (n < QUERIES))
    j = (n + (KEYS - QUERIES % KEYS)) % KEYS
    at = ((b * HEADS + j // D) * CAPACITY + slot) * D + j % D
    is_key = (n >= QUERIES) & (n < QUERIES + KEYS)
    tl.store(k_cache + at, y.to(k_cache.dtype.element_ty), mask=inside & is_key)
    tl.store(v_cache + at, y.to(v_cache.dtype.element_ty), mask=inside & (n >= QUERIES + KEYS))
    return state


@triton.jit
def store_gelu(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    """GELU with the tanh approximation, written as a sigmoid: tanh(z) = 2 sigmoid(2 z) - 1."""
    ROWS: tl.constexpr = m.tile_rows
    BATCH: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    F: tl.constexpr = m.rows
    b = tl.arange(0, BATCH)[:, None]
    n = row + tl.arange(0, ROWS)[None, :]
    activated = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    tl.store(out + b * F + n, activated, mask=(n < end) & (b < B))
    return state


@triton.jit
def add_to_residual(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    ROWS: tl.constexpr = m.tile_rows
    BATCH: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    C: tl.constexpr = m.rows
    b = tl.arange(0, BATCH)[:, None]
    n = row + tl.arange(0, ROWS)[None, :]
    inside = (n < end) & (b < B)
    here = out + b * C + n
    tl.store(here, tl.load(here, mask=inside, other=0.0, cache_modifier=".cg") + y, mask=inside)
    return state


# -- attention ------------------------------------------------------------------------------------


@triton.jit
def last_to_arrive(counter, programs):
    """Whether this program is the last of `programs` to get here; it then sees what the others stored.

    The last one puts the counter back to zero for the next step.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1
    tl.debug_barrier()
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def split_keys(length, g: tl.constexpr):
    """(keys per split, splits that have work): the new key alone still makes one split."""
    SPLITS: tl.constexpr = g.splits
    BLOCK: tl.constexpr = g.block
    keys = tl.maximum((length + SPLITS - 1) // SPLITS, BLOCK)
    return keys, tl.maximum((length + keys - 1) // keys, 1)


@triton.jit
def first_keys(item, length, keys, k_cache, v_cache, g: tl.constexpr):
    """The first tile of old keys and values of one item. Slots before `length` do not change in a step."""
    PAIRS: tl.constexpr = g.batch * g.n_head
    start = cached_head(item % PAIRS, g)
    t = (item // PAIRS) * keys
    end = tl.minimum(t + keys, length)
    return load_keys(k_cache, start, t, end, g), load_keys(v_cache, start, t, end, g)


@triton.jit
def cached_head(pair, g: tl.constexpr):
    """Where the keys of a (row, query head) begin in a cache [B, Hkv, capacity, D]."""
    H: tl.constexpr = g.n_head
    HEADS: tl.constexpr = g.n_kv_head
    GROUP: tl.constexpr = g.n_head // g.n_kv_head
    SIZE: tl.constexpr = g.capacity * g.head_dim
    return ((pair // H) * HEADS + (pair % H) // GROUP) * SIZE


@triton.jit
def attend(first, item, length, keys, live, q, k_cache, v_cache, o, scratch, g: tl.constexpr):
    """One split of one (row, query head): softmax over its old keys, and the new key in the last split."""
    PAIRS: tl.constexpr = g.batch * g.n_head
    D: tl.constexpr = g.head_dim
    TILE: tl.constexpr = g.head_tile
    BLOCK: tl.constexpr = g.block
    SPLITS: tl.constexpr = g.splits
    SCALE: tl.constexpr = g.head_dim**-0.5
    partial, weight, arrived = scratch
    k, v = first
    pair = item % PAIRS
    split = item // PAIRS
    start = cached_head(pair, g)
    end = tl.minimum((split + 1) * keys, length)
    d = tl.arange(0, TILE)
    query = tl.load(q + pair * D + d, mask=d < D, other=0.0, cache_modifier=".cg") * SCALE
    new = start + length * D + d
    new_k = tl.load(k_cache + new, mask=d < D, other=0.0, cache_modifier=".cg").to(tl.float32)
    new_v = tl.load(v_cache + new, mask=d < D, other=0.0, cache_modifier=".cg").to(tl.float32)
    newest = split == live - 1
    top = tl.where(newest, tl.sum(query * new_k, 0), float("-inf"))
    total = tl.where(newest, 1.0, 0.0)
    mixed = tl.where(newest, new_v, 0.0)
    for t in range(split * keys, end, BLOCK):
        next_k = load_keys(k_cache, start, t + BLOCK, end, g)
        next_v = load_keys(v_cache, start, t + BLOCK, end, g)
        score = tl.sum(k.to(tl.float32) * query[None, :], 1)
        score = tl.where(t + tl.arange(0, BLOCK) < end, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        fade = tl.exp(top - higher)
        share_of = tl.exp(score - higher)
        total = total * fade + tl.sum(share_of, 0)
        mixed = mixed * fade + tl.sum(share_of[:, None] * v.to(tl.float32), 0)
        top = higher
        k = next_k
        v = next_v
    if live == 1:
        tl.store(o + pair * D + d, mixed / total, mask=d < D)
    else:
        at = pair * SPLITS + split
        tl.store(partial + at * D + d, mixed / total, mask=d < D)
        tl.store(weight + at, top + tl.log(total))
        if last_to_arrive(arrived + pair, live):
            combine(pair, live, o, partial, weight, g)


@triton.jit
def combine(pair, live, o, partial, weight, g: tl.constexpr):
    """The splits of one head, each weighted by its log-sum-exp."""
    D: tl.constexpr = g.head_dim
    TILE: tl.constexpr = g.head_tile
    SPLITS: tl.constexpr = g.splits
    SPLIT_TILE: tl.constexpr = g.split_tile
    s = tl.arange(0, SPLIT_TILE)
    d = tl.arange(0, TILE)
    at = pair * SPLITS + s
    logs = tl.load(weight + at, mask=s < live, other=float("-inf"), cache_modifier=".cg")
    inside = (s < live)[:, None] & (d < D)[None, :]
    parts = tl.load(
        partial + at[:, None] * D + d[None, :], mask=inside, other=0.0, cache_modifier=".cg"
    )
    shares = tl.exp(logs - tl.max(logs, 0))
    mixed = tl.sum(shares[:, None] * parts, 0) / tl.sum(shares, 0)
    tl.store(o + pair * D + d, mixed, mask=d < D)


# -- logits and the next token --------------------------------------------------------------------


@triton.jit
def store_logits(y, row, end, out, state, m: tl.constexpr, g: tl.constexpr):
    """Logits [B, V]; the state is the best one so far and its index, per lane."""
    ROWS: tl.constexpr = m.tile_rows
    BATCH: tl.constexpr = g.batch_tile
    B: tl.constexpr = g.batch
    V: tl.constexpr = m.rows
    top, at = state
    b = tl.arange(0, BATCH)[:, None]
    n = row + tl.arange(0, ROWS)[None, :]
    inside = (n < end) & (b < B)
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


@triton.jit
def finish(token, length, held, best, counters, g: tl.constexpr):
    """The last program picks the tokens (lowest index on ties) and advances the state.

    All programs have read token and length by then, or they would not have arrived.
    """
    PROGRAMS: tl.constexpr = g.programs
    TILE: tl.constexpr = g.program_tile
    B: tl.constexpr = g.batch
    LAST: tl.constexpr = g.head.rows - 1
    value, index = best
    if last_to_arrive(counters, PROGRAMS):
        p = tl.arange(0, TILE)
        for b in range(B):
            top = tl.load(
                value + b * PROGRAMS + p, mask=p < PROGRAMS, other=float("-inf"), cache_modifier=".cg"
            )
            at = tl.load(index + b * PROGRAMS + p, mask=p < PROGRAMS, other=NO_INDEX, cache_modifier=".cg")
            choice = tl.min(tl.where(top == tl.max(top, 0), at, NO_INDEX), 0)
            # logits that are all NaN must not become a wild address in the next step
            tl.store(token + b, tl.minimum(choice, LAST).to(tl.int64))
        tl.store(length, held + 1)
        tl.store(counters + 1, 0)  # the grid barrier: every program has passed the last one
