"""Backend `modules`: the model's own modules, for any number of tokens and for one step."""

from __future__ import annotations

from torch import Tensor

from variants.backends.backend import Backend
from variants.model import GPT, Head
from variants.slots.attention import Attention
from variants.slots.cache import Cache
from variants.slots.head import all_positions
from variants.slots.mask import Mask
from variants.slots.paged_cache import PagedCache
from variants.slots.static_cache import StaticCache


class Modules(Backend):
    """The model's modules with one option of cache, mask, attention and head."""

    def __init__(self, model: GPT, cache: Cache, mask: Mask, attention: Attention, head: Head) -> None:
        self.model, self.cache, self.mask, self.attention, self.head = model, cache, mask, attention, head

    def forward(self, tokens: Tensor, every: bool) -> Tensor:
        """tokens [B,T] int64 -> logits [B,T' or 1,V], of `every` position or of those that the head takes.

        The cache holds the tokens afterwards.
        """
        window = self.cache.begin(tokens)
        visible = self.mask.open(window.where, window.slots)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache.append(layer, k, v, window.where)
            return self.attention(q, keys, values, visible(layer))

        head = all_positions if every else self.head
        logits: Tensor = self.model(window.tokens, window.positions, attend, head)
        self.cache.advance(tokens)
        return logits

    def step(self, token: Tensor) -> Tensor:
        logits = self.forward(token, every=False)[:, -1]
        token.copy_(logits.argmax(dim=-1, keepdim=True))
        return logits

    def stored_cache(self) -> StaticCache | PagedCache:
        """The cache of a variant whose backend reads a static or a paged one, which `Variant` has checked."""
        assert isinstance(self.cache, StaticCache | PagedCache)
        return self.cache

    def static_cache(self) -> StaticCache:
        """The cache of a variant whose backend reads a static one, which `Variant` has checked."""
        assert isinstance(self.cache, StaticCache)
        return self.cache
