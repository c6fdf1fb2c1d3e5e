# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

"""Attention of the new token, split over keys.

An item is one split of one (row, query head). Its partial output is weighted by its log-sum-exp, and the last
split of a head to finish combines them. Old keys are those before `length`; the new one is at `length`, or
still to be turned: then every item turns it for itself, and one per KV head appends it.
"""

import triton
import triton.language as tl

from variants.backends.triton_step.sync import last_to_arrive


@triton.jit
def split_keys(length, g: tl.constexpr):
    """(keys per split, splits that have work): the new key alone still makes one split."""
    SPLITS: tl.constexpr = g.splits
    BLOCK: tl.constexpr = g.block
    keys = tl.maximum((length + SPLITS - 1) // SPLITS, BLOCK)
    return keys, tl.maximum((length + keys - 1) // keys, 1)


@triton.jit
def cached_head(pair, g: tl.constexpr):
    """Where the keys of a (row, query head) begin in a cache [B, Hkv, capacity, D]."""
    H: tl.constexpr = g.n_head
    HEADS: tl.constexpr = g.n_kv_head
    GROUP: tl.constexpr = g.n_head // g.n_kv_head
    SIZE: tl.constexpr = g.capacity * g.head_dim
    return ((pair // H) * HEADS + (pair % H) // GROUP) * SIZE


@triton.jit
def load_keys(cache, start, t, end, g: tl.constexpr):
    """Slots [t, t + block) of one cached head, those before `end`, as [block, head tile]."""
    D: tl.constexpr = g.head_dim
    TILE: tl.constexpr = g.head_tile
    BLOCK: tl.constexpr = g.block
    slot = t + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, TILE)[None, :]
    return tl.load(cache + start + slot * D + d, mask=(slot < end) & (d < D), other=0.0)


@triton.jit
def first_keys(item, length, keys, k_cache, v_cache, g: tl.constexpr):
    """The first tile of old keys and values of one item. Slots before `length` do not change in a step."""
    PAIRS: tl.constexpr = g.batch * g.n_head
    start = cached_head(item % PAIRS, g)
    t = (item // PAIRS) * keys
    end = tl.minimum(t + keys, length)
    return load_keys(k_cache, start, t, end, g), load_keys(v_cache, start, t, end, g)


@triton.jit
def placed(x, gain, turn, g: tl.constexpr):
    """A head x float32 [D] of queries or keys, normed and turned, as [head tile]; `turn`: cosines, sines."""
    D: tl.constexpr = g.head_dim
    HALF: tl.constexpr = g.head_dim // 2
    TILE: tl.constexpr = g.head_tile
    NORMED: tl.constexpr = g.qk_norm
    EPSILON: tl.constexpr = g.epsilon
    d = tl.arange(0, TILE)
    other = (d + HALF) % D  # it is turned with
    here = tl.load(x + d, mask=d < D, other=0.0, cache_modifier=".cg")
    there = tl.load(x + other, mask=d < D, other=0.0, cache_modifier=".cg")
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.sum(here * here, 0) / D + EPSILON)
        here *= scale * tl.load(gain + d, mask=d < D, other=0).to(tl.float32)
        there *= scale * tl.load(gain + other, mask=d < D, other=0).to(tl.float32)
    cos = tl.load(turn + d % HALF, mask=d < D, other=0).to(tl.float32)
    sin = tl.load(turn + HALF + d % HALF, mask=d < D, other=0).to(tl.float32)
    return here * cos + tl.where(d < HALF, -there, there) * sin


@triton.jit
def query_and_key(pair, new, length, turns, q, k_cache, append, g: tl.constexpr):
    """The query of one (row, query head) and the new key that it sees, as [head tile] each; `new` is where
    that key lies in the cache, into which it goes here if it was still to be turned and the item is the one
    to `append` it.
    """
    H: tl.constexpr = g.n_head
    HEADS: tl.constexpr = g.n_kv_head
    GROUP: tl.constexpr = g.n_head // g.n_kv_head
    D: tl.constexpr = g.head_dim
    TILE: tl.constexpr = g.head_tile
    ROTARY: tl.constexpr = g.rotary
    d = tl.arange(0, TILE)
    if ROTARY:
        positions, q_gain, k_gain = turns
        turn = positions + length * D
        row = q + (pair // H) * (H + HEADS) * D
        head = pair % H
        query = placed(row + head * D, q_gain, turn, g)
        new_k = placed(row + (H + head // GROUP) * D, k_gain, turn, g).to(k_cache.dtype.element_ty)
        if append & (head % GROUP == 0):
            tl.store(k_cache + new, new_k, mask=d < D)
        new_k = new_k.to(tl.float32)
    else:
        query = tl.load(q + pair * D + d, mask=d < D, other=0.0, cache_modifier=".cg")
        new_k = tl.load(k_cache + new, mask=d < D, other=0.0, cache_modifier=".cg").to(tl.float32)
    return query, new_k


@triton.jit
def attend(first, item, length, keys, live, turns, q, k_cache, v_cache, o, scratch, g: tl.constexpr):
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
    new = start + length * D + d
    newest = split == live - 1
    query, new_k = query_and_key(pair, new, length, turns, q, k_cache, newest, g)
    query *= SCALE
    new_v = tl.load(v_cache + new, mask=d < D, other=0.0, cache_modifier=".cg").to(tl.float32)
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
    parts = tl.load(partial + at[:, None] * D + d[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    shares = tl.exp(logs - tl.max(logs, 0))
    mixed = tl.sum(shares[:, None] * parts, 0) / tl.sum(shares, 0)
    tl.store(o + pair * D + d, mixed, mask=d < D)
