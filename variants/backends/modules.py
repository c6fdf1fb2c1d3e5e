"""Slot `backend`: what turns a token into logits.

A backend answers `forward` (any number of tokens, eager) and `step` (which executors compile or record and
the runner times: one token in, one token out, nothing from the host).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from variants.model import GPT, Head
from variants.slots.attention import Attention
from variants.slots.cache import Cache
from variants.slots.head import all_positions
from variants.slots.mask import Mask


class Backend(Protocol):
    def step(self, token: Tensor) -> Tensor:
        """One decode step from `token` int64 [B,1], which it overwrites with the greedy argmax.

        Appends to the cache, advances its length, and returns the logits [B,V].
        """
        ...

    def verify(self) -> None:
        """Raises RuntimeError where a step saw itself go wrong; waits for the device. Most cannot."""
        return


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
