"""Faults of caches with a layout of their own.

Of pages: in the table, in the places within a block, and in who owns a block. Of eight bits: in the scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.gate.faults import around, block_table_not_updated, newest_scale_for_all
from profiling.gate.planted.hunt import PAGES, SCALES, cached, planted
from profiling.gate.planted.numerics import by_the_largest, up_to_128
from variants.decoder import Decoder
from variants.slots.blocks import BLOCK, SCRATCH
from variants.slots.cache import PAGED
from variants.slots.kv import KV_INT8
from variants.slots.narrow_cache import NarrowCache, decoded
from variants.slots.paged_cache import PagedCache
from variants.spec import Variant


def _cache(decoder: Decoder) -> PagedCache:
    assert isinstance(decoder.cache, PagedCache)
    return decoder.cache


# -- the table --------------------------------------------------------------------------------


def _with_table(decoder: Decoder, change: Callable[[Tensor], Tensor]) -> None:
    """The table [B,blocks] as `change` makes it, whenever the host writes it."""
    cache = _cache(decoder)

    def show(original: Any) -> None:
        original()
        cache.table.copy_(change(cache.table.clone()))

    around(cache, "_show_blocks", show)


def read_by_the_table_of_the_row_before(decoder: Decoder) -> None:
    """Each row reads by the block table of the row before, and writes by its own."""
    cache = _cache(decoder)

    def begin(original: Any, tokens: Tensor) -> Any:
        window = original(tokens)
        cache._seen = cache._seen.roll(1, dims=0)
        return window

    around(cache, "begin", begin)


def table_of_the_first_row_for_all(decoder: Decoder) -> None:
    _with_table(decoder, lambda table: table[:1].expand_as(table))


def table_sorted(decoder: Decoder) -> None:
    """By block number, not by position in the text: the same until blocks come back in another order."""

    def by_number(table: Tensor) -> Tensor:
        unused = table == SCRATCH
        ordered = table.masked_fill(unused, table.numel() + 1).sort(dim=1).values
        return ordered.masked_fill(unused, SCRATCH)

    _with_table(decoder, by_number)


def last_block_left_out_of_the_table(decoder: Decoder) -> None:
    """Rounding down: a block that is only partly full is not shown."""
    _with_table(decoder, lambda table: table.where(table.roll(-1, dims=1) != SCRATCH, SCRATCH))


# -- places -----------------------------------------------------------------------------------


def _written(decoder: Decoder, places: Callable[[PagedCache, Tensor], Tensor]) -> None:
    """New tokens at positions [T] written to `places` [B,T] of the pool."""
    cache = _cache(decoder)

    def begin(original: Any, tokens: Tensor) -> Any:
        window = original(tokens)
        cache._places = cache._rows(places(cache, window.positions))
        return window

    around(cache, "begin", begin)


def last_place_of_a_block_never_used(decoder: Decoder) -> None:
    _written(
        decoder,
        lambda cache, at: cache.table[:, at // BLOCK] * BLOCK + (at % BLOCK).clamp(max=BLOCK - 2),
    )


def block_of_the_next_token(decoder: Decoder) -> None:
    """Rounding up at a block's end."""
    _written(
        decoder,
        lambda cache, at: (
            cache.table[:, ((at + 1) // BLOCK).clamp(max=cache.table.size(1) - 1)] * BLOCK + at % BLOCK
        ),
    )


def place_counted_from_the_prompts_end(decoder: Decoder) -> None:
    """The place within a block is right for prompts that fill whole blocks."""
    held = [0]

    def places(cache: PagedCache, at: Tensor) -> Tensor:
        if len(at) > 1:
            held[0] = len(at)
        shift = held[0] if len(at) == 1 else 0
        return cache.table[:, at // BLOCK] * BLOCK + (at - shift) % BLOCK

    _written(decoder, places)


# -- who owns a block -------------------------------------------------------------------------


def freed_twice(decoder: Decoder) -> None:
    """Two rows are handed the same block after the next reset."""
    pool = _cache(decoder).pool

    def release(original: Any, row: list[int], tokens: int = 0) -> None:
        before = len(pool.free)
        original(row, tokens)
        pool.free.extend(pool.free[before:])

    around(pool, "release", release)


def partly_full_block_given_up(decoder: Decoder) -> None:
    """A rewind into the middle of a block rounds down."""
    pool = _cache(decoder).pool
    around(
        pool,
        "release",
        lambda original, row, tokens=0: original(row, tokens // BLOCK * BLOCK),
    )


def block_asked_for_one_token_late(decoder: Decoder) -> None:
    """A token that begins a block is written to scratch."""
    around(_cache(decoder), "reserve", lambda original, held, new: original(held, new - 1))


def first_block_shared_by_all_rows(decoder: Decoder) -> None:
    """Every row reads the first row's first block, as if all had the same prompt."""
    cache = _cache(decoder)

    def reserve(original: Any, held: int, new: int) -> None:
        original(held, new)
        cache.table[:, 0] = cache.table[0, 0]

    around(cache, "reserve", reserve)


def gathered_one_block_behind(decoder: Decoder) -> None:
    """The values' blocks; the keys' are right."""
    cache = _cache(decoder)

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = original(layer, k, v, where)
        return keys, torch.cat([values[:, :, :BLOCK], values[:, :, :-BLOCK]], dim=2)

    around(cache, "append", append)


# -- eight bits -------------------------------------------------------------------------------


def _narrow(decoder: Decoder) -> NarrowCache:
    assert isinstance(decoder.cache, NarrowCache)
    return decoder.cache


def cached_up_to_128(decoder: Decoder) -> None:
    _narrow(decoder).encode = lambda x: up_to_128(x.float())


def cached_by_their_largest(decoder: Decoder) -> None:
    _narrow(decoder).encode = lambda x: by_the_largest(x.float())


def _read(decoder: Decoder, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Keys and values read with the scales [B,Hkv,S,1] that `change` makes of theirs."""
    cache = _narrow(decoder)

    def contents(original: Any, layer: int, n: int) -> tuple[Tensor, Tensor]:
        (k, k_scale), (v, v_scale) = cache.stored()[layer]
        k_scale, v_scale = change(k_scale, v_scale)
        return (
            decoded((k[:, :, :n], k_scale[:, :, :n]), cache.dtype),
            decoded((v[:, :, :n], v_scale[:, :, :n]), cache.dtype),
        )

    around(cache, "contents", contents)


def keys_read_with_the_values_scales(decoder: Decoder) -> None:
    _read(decoder, lambda k, v: (v, v))


def read_with_the_scale_of_the_head_before(decoder: Decoder) -> None:
    _read(decoder, lambda k, v: (k.roll(1, dims=1), v.roll(1, dims=1)))


def read_with_the_scale_of_the_slot_before(decoder: Decoder) -> None:
    _read(decoder, lambda k, v: (k.roll(1, dims=2), v.roll(1, dims=2)))


def _int8_cache(variant: Variant) -> bool:
    return cached(variant) and variant.kv is KV_INT8


def _paged(variant: Variant) -> bool:
    return cached(variant) and variant.cache is PAGED


PLANTED = (
    *planted(
        PAGES,
        _paged,
        block_table_not_updated,
        read_by_the_table_of_the_row_before,
        table_of_the_first_row_for_all,
        table_sorted,
        last_block_left_out_of_the_table,
        last_place_of_a_block_never_used,
        block_of_the_next_token,
        place_counted_from_the_prompts_end,
        freed_twice,
        partly_full_block_given_up,
        block_asked_for_one_token_late,
        first_block_shared_by_all_rows,
        gathered_one_block_behind,
    ),
    *planted(
        SCALES,
        _int8_cache,
        newest_scale_for_all,
        cached_up_to_128,
        cached_by_their_largest,
        keys_read_with_the_values_scales,
        read_with_the_scale_of_the_head_before,
        read_with_the_scale_of_the_slot_before,
    ),
)
