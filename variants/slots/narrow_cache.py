"""Slot `kv`: a static cache whose values are encoded when appended and decoded when read."""

from __future__ import annotations

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.kv import Encode, KvOption, Parts, StoredLayer
from variants.slots.mask import Where
from variants.slots.static_cache import StaticCache


def as_stored(x: Tensor, kv: KvOption) -> Tensor:
    """x [B,Hkv,T,D] as it comes back out of a cache that stores it so."""
    return decoded(kv.encoder()(x), x.dtype)


def decoded(parts: Parts, dtype: torch.dtype) -> Tensor:
    """[B,Hkv,T,D] in this dtype."""
    values, *scales = parts
    return (values * scales[0]).to(dtype) if scales else values.to(dtype)


class NarrowCache(StaticCache):
    """A static cache whose values take fewer bits than the arithmetic."""

    def __init__(self, config: GPTConfig, batch: int, capacity: int, like: Tensor, encode: Encode) -> None:
        super().__init__(config, batch, 0, like)
        self.encode, self.dtype, self.slots = encode, like.dtype, capacity
        empty = self.encode(like.new_zeros(batch, config.n_kv_head, capacity, config.head_dim))
        self.layers: list[StoredLayer] = [
            (tuple(map(torch.zeros_like, empty)), tuple(map(torch.zeros_like, empty)))
            for _ in range(config.n_layer)
        ]

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        assert isinstance(where, Tensor)
        for stored, new in zip(self.layers[layer], (k, v), strict=True):
            for buffer, part in zip(stored, self.encode(new), strict=True):
                buffer.index_copy_(2, where, part)
        return self.contents(layer, self.slots)

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        k, v = self.layers[layer]
        first_k, first_v = (tuple(part[:, :, :n] for part in stored) for stored in (k, v))
        return decoded(first_k, self.dtype), decoded(first_v, self.dtype)

    def poison(self, n: int, noise: float) -> None:
        for part in self.buffers():
            part[:, :, n:] = max(-127.0, min(127.0, noise)) if part.dtype == torch.int8 else noise

    def stored(self) -> list[StoredLayer]:
        return self.layers

    def buffers(self) -> list[Tensor]:
        return [part for k, v in self.layers for part in (*k, *v)]
