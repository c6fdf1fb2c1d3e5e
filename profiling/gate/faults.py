"""Bugs of a KV cache that give fluent but wrong text with correct shapes, as small edits of a right decoder.

Each function breaks the decoder that it is given; its docstring says what the bug looks like in the wild.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from variants.decoder import Decoder
from variants.slots.narrow_cache import NarrowCache
from variants.slots.paged_cache import PagedCache


@dataclass(frozen=True)
class Fault:
    """`source`: case or article; `variant`: the rung that it breaks; `session`: the use that shows it."""

    source: str
    inject: Callable[[Decoder], None]
    variant: str = "sdpa"
    session: str = "conversation"
    batch: int = 1

    @property
    def name(self) -> str:
        return self.inject.__name__.replace("_", " ")

    @property
    def what(self) -> str:
        return " ".join((self.inject.__doc__ or "").split())


def around(target: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method of one object by `wrapper(original, *args)`."""
    setattr(target, name, partial(wrapper, getattr(target, name)))


def masked(decoder: Decoder, rule: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Replace what queries see by `rule(visible [T,S], queries' positions [T,1], keys' positions [1,S])`."""

    def open_(original: Any, where: Any, slots: int) -> Any:
        visible = original(where, slots)(0)[0, 0]
        keys = torch.arange(slots, device=visible.device)
        rows = rule(visible, (where if isinstance(where, Tensor) else keys[where])[:, None], keys[None])
        return lambda layer: rows[None, None]

    around(decoder.our_modules.mask, "open", open_)


def placed(decoder: Decoder, rule: Callable[[Tensor], Tensor]) -> None:
    """Replace the positions [T] that are embedded by `rule(positions)`; slots and mask stay right."""
    last = decoder.model.config.n_ctx - 1

    def begin(original: Any, tokens: Tensor) -> Any:
        window = original(tokens)
        return window._replace(positions=rule(window.positions).clamp(max=last))

    around(decoder.cache, "begin", begin)


# -- the mask ---------------------------------------------------------------------------------


def mask_aligned_top_left(decoder: Decoder) -> None:
    """`is_causal=True`, or tril without its diagonal, on a warm cache: a lone query sees key 0 only."""
    decoder.our_modules.attention = lambda q, k, v, visible: F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.size(1) != k.size(1)
    )


def mask_off(decoder: Decoder) -> None:
    """The mask is skipped where a cache object is attached: in a prompt the future leaks."""
    masked(decoder, lambda visible, queries, keys: (keys <= queries.max()).expand_as(visible))


def history_hidden_from_a_chunk(decoder: Decoder) -> None:
    """Several tokens on a warm cache get the square mask of a prompt: they see each other only."""
    masked(
        decoder,
        lambda visible, queries, keys: visible & (keys >= queries[0]) if len(queries) > 1 else visible,
    )


def future_visible_in_a_chunk(decoder: Decoder) -> None:
    """Several tokens on a warm cache get the mask of a step: each sees the ones after it."""
    masked(
        decoder,
        lambda visible, queries, keys: visible | ((keys <= queries.max()) & (queries[0] > 0)),
    )


def old_tail_visible_after_rewind(decoder: Decoder) -> None:
    """The mask goes by the longest text ever held, so a rewind leaves the old tail in sight."""
    longest = [0]

    def rewind(original: Any, n: int) -> None:
        longest[0] = max(longest[0], decoder.length)
        original(n)

    around(decoder.cache, "rewind", rewind)
    masked(decoder, lambda visible, queries, keys: visible | (keys < longest[0]))


# -- positions --------------------------------------------------------------------------------


def position_starts_at_0(decoder: Decoder) -> None:
    """`arange(T)`: every new token believes that it stands at the beginning of the text."""
    placed(decoder, lambda positions: positions - positions[0])


def position_counted_twice(decoder: Decoder) -> None:
    """After a prompt of 6 the next offset is 12: the cache's length is added to a position that has it."""
    placed(decoder, lambda positions: positions + positions[0])


def position_of_the_last_prompt(decoder: Decoder) -> None:
    """A second prompt on the same decoder starts at the positions where the first one ended."""
    stale = [0]

    def rewind(original: Any, n: int) -> None:
        stale[0] = decoder.length if n == 0 else stale[0]
        original(n)

    around(decoder.cache, "rewind", rewind)
    placed(decoder, lambda positions: positions + stale[0])


def position_frozen_into_the_recording(decoder: Decoder) -> None:
    """A Python attribute (the position) became a constant of the graph or tape."""
    first: list[Tensor] = []

    def rule(positions: Tensor) -> Tensor:
        if len(positions) > 1:
            return positions
        first.append(positions.clone())
        return first[0]

    placed(decoder, rule)


def positions_wrap_past_the_context(decoder: Decoder) -> None:
    """A ring: generation goes on past the capacity, positions collide and causality is gone."""
    decoder._require_room = lambda held, new: None  # type: ignore[method-assign]
    around(decoder, "bucket", lambda original, n: original(n % decoder.capacity))

    def begin(original: Any, tokens: Tensor) -> Any:
        window = original(tokens)
        wrapped = window.positions % decoder.capacity
        return window._replace(positions=wrapped, where=wrapped)

    around(decoder.cache, "begin", begin)


# -- what is stored ---------------------------------------------------------------------------


def first_token_not_written(decoder: Decoder) -> None:
    """The prompt's first token never reaches the cache; the prefill itself is right."""

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = original(layer, k, v, where)
        if k.size(2) == 1:
            return keys, values
        handed_out = keys.clone(), values.clone()
        keys[:, :, 0] = values[:, :, 0] = 0
        return handed_out

    around(decoder.cache, "append", append)


def new_tokens_not_appended(decoder: Decoder) -> None:
    """The append is skipped in a step: the model attends to the prompt only, and never to what it wrote."""
    prompt = [0]

    def begin(original: Any, tokens: Tensor) -> Any:
        prompt[0] = decoder.length + tokens.size(1) if tokens.size(1) > 1 else prompt[0]
        return original(tokens)

    around(decoder.cache, "begin", begin)
    masked(decoder, lambda visible, queries, keys: visible & (keys < prompt[0]))


def new_before_old(decoder: Decoder) -> None:
    """`torch.cat([new, old])`: a lone query does not mind the order, the mask of a chunk does."""
    cache: Any = decoder.cache

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Any) -> tuple[Tensor, Tensor]:
        cache.k[layer] = torch.cat([k, cache.k[layer]], dim=2)
        cache.v[layer] = torch.cat([v, cache.v[layer]], dim=2)
        return cache.k[layer], cache.v[layer]

    around(cache, "append", append)


def another_requests_cache(decoder: Decoder) -> None:
    """A request is handed a warm cache: it attends to the tokens of the one before."""
    decoder.reset = lambda: None  # type: ignore[method-assign]


def query_cached_too(decoder: Decoder) -> None:
    """q is cached and reused in the next step, though it is read exactly once."""
    calls, first = [0], dict[int, Tensor]()

    def attention(original: Any, q: Tensor, *rest: Tensor) -> Any:
        layer = calls[0] % decoder.model.config.n_layer
        calls[0] += 1
        return original(first.setdefault(layer, q) if q.size(2) == 1 else q, *rest)

    around(decoder.modules, "attention", attention)


def cache_rounded_on_the_way(decoder: Decoder) -> None:
    """Keys and values pass through bfloat16 in a decoder that calls itself float32."""
    around(
        decoder.cache,
        "append",
        lambda original, layer, k, v, where: original(layer, k.bfloat16().to(k), v.bfloat16().to(v), where),
    )


def newest_scale_for_all(decoder: Decoder) -> None:
    """int8 cache with one scale per head, overwritten by every token: the old values are read with it."""
    cache = decoder.cache
    assert isinstance(cache, NarrowCache)

    def append(original: Any, layer: int, k: Tensor, v: Tensor, where: Tensor) -> Any:
        original(layer, k, v, where)
        for _, scale in cache.stored()[layer]:
            scale.copy_(scale.index_select(2, where[-1:]).expand_as(scale))
        return cache.contents(layer, cache.slots)

    around(cache, "append", append)


def block_table_not_updated(decoder: Decoder) -> None:
    """Paged cache: blocks handed out after the prompt do not reach the table that the step reads."""
    cache = decoder.cache
    assert isinstance(cache, PagedCache)

    def reserve(original: Any, held: int, new: int) -> None:
        if held == 0:
            original(held, new)
        else:
            cache.pool.grow(cache.rows, held, held + new)

    around(cache, "reserve", reserve)


# -- what is fed ------------------------------------------------------------------------------


def token_not_copied_before_the_replay(decoder: Decoder) -> None:
    """The static input keeps what the last replay left there, whatever token is fed."""
    decoder.step = lambda token: decoder.advance().clone()  # type: ignore[method-assign]


def ragged_rows_padded_on_the_left(decoder: Decoder) -> None:
    """Prompts of different lengths are padded and share positions: the short rows are garbage."""

    def checked(original: Any, tokens: Any, start: int) -> Tensor:
        if not isinstance(tokens, Tensor):
            longest = max(map(len, tokens))
            tokens = torch.tensor([[0] * (longest - len(row)) + list(row) for row in tokens])
        padded: Tensor = original(tokens, start)
        return padded

    around(decoder, "_checked", checked)


FAULTS = (
    Fault("case 1, article 1", mask_aligned_top_left),
    Fault("case 2, article 3", mask_off),
    Fault("case 3", history_hidden_from_a_chunk),
    Fault("case 3", future_visible_in_a_chunk),
    Fault("case 4, articles 1-2", position_starts_at_0),
    Fault("case 5", position_counted_twice),
    Fault("case 6", first_token_not_written),
    Fault("case 7", position_of_the_last_prompt),
    Fault("case 8", old_tail_visible_after_rewind),
    Fault("case 9", ragged_rows_padded_on_the_left, session="ragged", batch=2),
    Fault("case 10, article 3", positions_wrap_past_the_context, session="past the end"),
    Fault("case 11", cache_rounded_on_the_way),
    Fault("case 12, article 2", new_before_old, variant="cat"),
    Fault("case 15", token_not_copied_before_the_replay, variant="tape"),
    Fault("case 15", position_frozen_into_the_recording, variant="tape"),
    Fault("article 3", new_tokens_not_appended),
    Fault("article 3", query_cached_too),
    Fault("article 3", another_requests_cache),
    Fault("paged cache", block_table_not_updated, variant="paged"),
    Fault("int8 cache", newest_scale_for_all, variant="kv-int8"),
)
