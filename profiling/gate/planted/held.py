"""Faults in where a token stands, in what is held, and in what a recording holds on to.

Those that are known from the wild are taken from `profiling.gate.faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.gate import faults
from profiling.gate.faults import around, masked, placed
from profiling.gate.planted.hunt import POSITIONS, RECORDED, STORED, cached, eager, fixed_shape, planted
from profiling.gate.planted.numerics import own_model
from variants.decoder import Decoder
from variants.slots.cache import CONCAT, STATIC
from variants.spec import Variant

# -- positions and masks ----------------------------------------------------------------------


def every_position_one_behind(decoder: Decoder) -> None:
    """Counting from the token before; the first two tokens of a text share a position."""
    placed(decoder, lambda positions: (positions - 1).clamp(min=0))


def newest_token_not_visible(decoder: Decoder) -> None:
    """`<` for `<=`; the first token of a text, which would see nothing, sees itself."""
    masked(decoder, lambda visible, queries, keys: visible & ((keys < queries) | (queries == 0)))


def next_slot_visible(decoder: Decoder) -> None:
    """`<=` for `<` of a length: one slot more than is filled."""
    masked(decoder, lambda visible, queries, keys: visible | (keys == queries + 1))


# -- what is held -----------------------------------------------------------------------------


def newest_keys_first(decoder: Decoder) -> None:
    """New keys stand before the old ones, and values behind: they no longer belong together."""
    cache: Any = decoder.cache

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Any) -> tuple[Tensor, Tensor]:
        before = cache.k[layer]
        keys, values = original(layer, k, v, where)
        cache.k[layer] = torch.cat([k, before], dim=2)
        return (cache.k[layer] if before.size(2) else keys), values

    around(cache, "append", append)


def keys_of_the_layer_before(decoder: Decoder) -> None:
    """An index that is off by one: the second layer reads the first one's keys."""
    seen: dict[int, Tensor] = {}

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Any) -> tuple[Tensor, Tensor]:
        keys, values = original(layer, k, v, where)
        seen[layer] = keys
        return (seen[0] if layer == 1 else keys), values

    around(decoder.cache, "append", append)


def values_stored_as_keys(decoder: Decoder) -> None:
    around(decoder.cache, "append", lambda original, layer, k, v, where: original(layer, v, v, where))


# -- what a recording takes for a constant, and which memory it writes to ---------------------


def _first(is_step: Callable[[Tensor], bool]) -> Callable[[Tensor], Tensor]:
    """What it was given in the first step, in every later one; prompts are left alone."""
    first: list[Tensor] = []

    def frozen(x: Tensor) -> Tensor:
        if not is_step(x):
            return x
        if not first:
            first.append(x.clone())
        return first[0]

    return frozen


def _one_token(x: Tensor) -> bool:
    """Of x [B,H,T,D]."""
    return x.size(2) == 1


def slot_frozen_into_the_recording(decoder: Decoder) -> None:
    """Where a step appends was a number in Python."""
    frozen = _first(lambda where: len(where) == 1)
    around(
        decoder.cache,
        "append",
        lambda original, layer, k, v, where: original(layer, k, v, frozen(where)),
    )


def mask_frozen_into_the_recording(decoder: Decoder) -> None:
    frozen = _first(lambda visible: len(visible) == 1)
    masked(decoder, lambda visible, queries, keys: frozen(visible))


def keys_frozen_into_the_recording(decoder: Decoder) -> None:
    _appended(decoder, lambda frozen, k, v: (frozen(k), v))


def values_frozen_into_the_recording(decoder: Decoder) -> None:
    _appended(decoder, lambda frozen, k, v: (k, frozen(v)))


def _appended(decoder: Decoder, change: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """New keys and values by `change(frozen, k, v)` with a `frozen` per layer."""
    frozen = [_first(_one_token) for _ in range(decoder.model.config.n_layer)]

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Tensor) -> Any:
        return original(layer, *change(frozen[layer], k, v), where)

    around(decoder.cache, "append", append)


def token_frozen_into_the_recording(decoder: Decoder) -> None:
    """The embedding's row, not the embedding of the token, was kept."""
    frozen = _first(lambda x: x.size(1) == 1)
    model = own_model(decoder)
    around(model.wte, "forward", lambda original, tokens: frozen(original(tokens)))


def fed_back_token_frozen_into_the_recording(decoder: Decoder) -> None:
    frozen = _first(lambda token: True)

    def step(original: Any, token: Tensor) -> Tensor:
        logits: Tensor = original(token)
        token.copy_(frozen(token))
        return logits

    around(decoder.backend, "step", step)


def length_frozen_into_the_recording(decoder: Decoder) -> None:
    """After a step the length is set to what Python knew, instead of being counted on the device."""
    cache: Any = decoder.cache

    def advance(original: Any, tokens: Tensor) -> None:
        if tokens.size(1) > 1:
            original(tokens)
        else:
            cache.length.fill_(decoder.length + 1)

    around(cache, "advance", advance)


def length_not_counted_by_the_recording(decoder: Decoder) -> None:
    """Python counts on beside the recording, which does not."""
    around(
        decoder.cache, "advance", lambda original, tokens: original(tokens) if tokens.size(1) > 1 else None
    )


def buffers_replaced_after_the_recording(decoder: Decoder) -> None:
    """A reset allocates anew; the recording goes on writing to the memory that it knows."""
    cache: Any = decoder.cache

    def rewind(original: Any, n: int) -> None:
        original(n)
        if n == 0:
            cache.k, cache.v = ([buffer.clone() for buffer in buffers] for buffers in (cache.k, cache.v))

    around(cache, "rewind", rewind)


def recording_of_another_bucket(decoder: Decoder) -> None:
    """The first one is replayed whatever the context."""
    around(decoder, "bucket", lambda original, n: decoder.buckets[0])


def _concatenated(variant: Variant) -> bool:
    return cached(variant) and variant.cache is CONCAT


def _in_slots(variant: Variant) -> bool:
    return eager(variant) and fixed_shape(variant)


def _handed_out(variant: Variant) -> bool:
    """The cache hands out its own memory."""
    return cached(variant) and variant.cache is STATIC and not variant.kv.narrow


def _recorded(variant: Variant) -> bool:
    return cached(variant) and variant.executor.needs_fixed_shape


def _in_own_memory(variant: Variant) -> bool:
    return _recorded(variant) and variant.cache is STATIC


PLANTED = (
    *planted(
        POSITIONS,
        cached,
        faults.mask_aligned_top_left,
        faults.mask_off,
        faults.history_hidden_from_a_chunk,
        faults.future_visible_in_a_chunk,
        faults.position_starts_at_0,
        faults.position_counted_twice,
        every_position_one_behind,
        newest_token_not_visible,
        next_slot_visible,
    ),
    *planted(
        STORED,
        eager,
        faults.position_of_the_last_prompt,
        faults.another_requests_cache,
        faults.new_tokens_not_appended,
    ),
    *planted(STORED, cached, keys_of_the_layer_before, values_stored_as_keys),
    *planted(STORED, _in_slots, faults.old_tail_visible_after_rewind),
    *planted(STORED, _handed_out, faults.first_token_not_written),
    *planted(STORED, _concatenated, faults.new_before_old, newest_keys_first),
    *planted(
        RECORDED,
        _recorded,
        faults.token_not_copied_before_the_replay,
        faults.position_frozen_into_the_recording,
        slot_frozen_into_the_recording,
        mask_frozen_into_the_recording,
        keys_frozen_into_the_recording,
        values_frozen_into_the_recording,
        token_frozen_into_the_recording,
        fed_back_token_frozen_into_the_recording,
        length_frozen_into_the_recording,
        length_not_counted_by_the_recording,
        recording_of_another_bucket,
    ),
    *planted(RECORDED, _in_own_memory, buffers_replaced_after_the_recording),
)
