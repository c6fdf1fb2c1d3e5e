"""Faults at one context, in loops over slots, and after many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.gate.faults import around, masked, placed
from profiling.gate.planted.hunt import (
    LOOPS,
    MANY_STEPS,
    ONE_CONTEXT,
    cached,
    eager,
    fixed_shape,
    planted,
    timed,
)
from variants.decoder import Decoder
from variants.slots.cache import PAGED
from variants.spec import Variant

CHUNK = 256  # slots that kernels take at once
MANY = 700  # steps, after which something wears out


# -- one context ------------------------------------------------------------------------------


def a_slot_lost_at_one_context(decoder: Decoder) -> None:
    at = timed(decoder)
    masked(decoder, lambda visible, queries, keys: visible & ~((queries == at) & (keys == 3)))


def newest_slot_hidden_at_one_context(decoder: Decoder) -> None:
    at = timed(decoder)
    masked(decoder, lambda visible, queries, keys: visible & ~((queries == at) & (keys == at)))


def a_slot_lost_at_a_buckets_last_place(decoder: Decoder) -> None:
    last = decoder.buckets[0] - 1
    masked(decoder, lambda visible, queries, keys: visible & ~((queries == last) & (keys == 0)))


def first_slot_lost_in_the_second_bucket(decoder: Decoder) -> None:
    first = decoder.buckets[0]
    masked(decoder, lambda visible, queries, keys: visible & ~((queries == first) & (keys == 0)))


def position_off_by_one_at_one_context(decoder: Decoder) -> None:
    at = timed(decoder)
    placed(decoder, lambda positions: positions - (positions == at).long())


def a_key_scaled_at_one_context(decoder: Decoder) -> None:
    at = timed(decoder)

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Any) -> Any:
        positions = where if isinstance(where, Tensor) else torch.arange(where.start, where.stop)
        return original(layer, k * (1 + 0.05 * (positions == at))[:, None].to(k), v, where)

    around(decoder.cache, "append", append)


def written_one_slot_early_at_one_context(decoder: Decoder) -> None:
    at = timed(decoder)

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Tensor) -> Any:
        return original(layer, k, v, where - (where == at).long())

    around(decoder.cache, "append", append)


def another_token_fed_back_at_one_context(decoder: Decoder) -> None:
    at, size = timed(decoder), decoder.model.config.vocab_size
    cache: Any = decoder.cache  # whose length is a number or a tensor

    def step(original: Any, token: Tensor) -> Tensor:
        before = torch.as_tensor(cache.length).clone()
        logits: Tensor = original(token)
        token.copy_(torch.where(before == at, (token + 1) % size, token))
        return logits

    around(decoder.backend, "step", step)


# -- loops over slots -------------------------------------------------------------------------


def first_slot_skipped(decoder: Decoder) -> None:
    masked(decoder, lambda visible, queries, keys: visible & ((keys > 0) | (queries == 0)))


def last_slot_of_a_chunk_skipped(decoder: Decoder) -> None:
    masked(
        decoder, lambda visible, queries, keys: visible & ((keys % CHUNK != CHUNK - 1) | (queries == keys))
    )


def partial_chunk_behind_a_full_one_dropped(decoder: Decoder) -> None:
    """The queries' own slot is kept, else nothing would be left to see."""
    masked(decoder, lambda visible, queries, keys: visible & ((keys < CHUNK) | (queries == keys)))


def slot_after_a_chunk_counted_as_the_next_texts(decoder: Decoder) -> None:
    masked(decoder, lambda visible, queries, keys: visible | ((keys == queries + 1) & (queries % 16 == 15)))


# -- after many steps -------------------------------------------------------------------------


def _worn_out(decoder: Decoder) -> Callable[[], bool]:
    """Whether MANY steps were made."""
    steps = [0]

    def advance(original: Any) -> Tensor:
        steps[0] += 1
        logits: Tensor = original()
        return logits

    around(decoder, "advance", advance)
    return lambda: steps[0] > MANY


def a_slot_lost_after_many_steps(decoder: Decoder) -> None:
    worn = _worn_out(decoder)
    masked(decoder, lambda visible, queries, keys: visible & ~((keys == 1) & worn()))


def a_value_rounded_after_many_steps(decoder: Decoder) -> None:
    worn = _worn_out(decoder)

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Any) -> Any:
        return original(layer, k, v * 1.01 if worn() else v, where)

    around(decoder.cache, "append", append)


def the_token_stays_after_many_steps(decoder: Decoder) -> None:
    worn = _worn_out(decoder)

    def step(original: Any, token: Tensor) -> Tensor:
        logits: Tensor = original(token.zero_() if worn() else token)
        return logits

    around(decoder.backend, "step", step)


def _own_place(variant: Variant) -> bool:
    """A slot is written where it is told; the place in a page comes from a table."""
    return fixed_shape(variant) and variant.cache is not PAGED


PLANTED = (
    *planted(
        ONE_CONTEXT,
        cached,
        a_slot_lost_at_one_context,
        newest_slot_hidden_at_one_context,
        a_slot_lost_at_a_buckets_last_place,
        first_slot_lost_in_the_second_bucket,
        position_off_by_one_at_one_context,
        a_key_scaled_at_one_context,
        another_token_fed_back_at_one_context,
    ),
    *planted(ONE_CONTEXT, _own_place, written_one_slot_early_at_one_context),
    *planted(
        LOOPS,
        cached,
        first_slot_skipped,
        last_slot_of_a_chunk_skipped,
        partial_chunk_behind_a_full_one_dropped,
    ),
    *planted(LOOPS, fixed_shape, slot_after_a_chunk_counted_as_the_next_texts),
    *planted(
        MANY_STEPS,
        eager,
        a_slot_lost_after_many_steps,
        a_value_rounded_after_many_steps,
        the_token_stays_after_many_steps,
    ),
)
