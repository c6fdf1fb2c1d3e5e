"""Slot `cache`, option `static`: preallocated keys and values, counted in device memory."""

from __future__ import annotations

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.cache import Cache, Window
from variants.slots.kv import StoredLayer
from variants.slots.mask import Where


class StaticCache(Cache):
    """Preallocated keys and values; a step attends over the first `slots` of `capacity`."""

    def __init__(self, config: GPTConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = (batch, config.n_kv_head, capacity, config.head_dim)
        self.k = [like.new_zeros(shape) for _ in range(config.n_layer)]
        self.v = [like.new_zeros(shape) for _ in range(config.n_layer)]
        self.length = torch.zeros((), dtype=torch.int64, device=like.device)
        self.slots = capacity

    def begin(self, tokens: Tensor) -> Window:
        positions = self.length + torch.arange(tokens.size(1), device=tokens.device)
        return Window(tokens, positions, positions, self.slots)

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        assert isinstance(where, Tensor)
        self.k[layer].index_copy_(2, where, k)
        self.v[layer].index_copy_(2, where, v)
        return self.k[layer][:, :, : self.slots], self.v[layer][:, :, : self.slots]

    def advance(self, tokens: Tensor) -> None:
        self.length.add_(tokens.size(1))

    def rewind(self, n: int) -> None:
        self.length.fill_(n)

    def held(self) -> int:
        return int(self.length)

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        return self.k[layer][:, :, :n], self.v[layer][:, :, :n]

    def poison(self, n: int, noise: float) -> None:
        """Overwrite every slot past the first n with finite noise."""
        for buffer in (*self.k, *self.v):
            buffer[:, :, n:] = noise

    def stored(self) -> list[StoredLayer]:
        """Per layer what is kept for keys and for values, for a kernel that reads them in place."""
        return [((k,), (v,)) for k, v in zip(self.k, self.v, strict=True)]

    def buffers(self) -> list[Tensor]:
        return self.k + self.v
