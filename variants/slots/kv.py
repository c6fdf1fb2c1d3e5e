"""Slot `kv`: how the cached keys and values are stored, where that is not as everything else is.

They are encoded when appended and decoded when read, so every query sees what the cache holds, also during
prefill. int8 is symmetric with one float32 scale per token and head (in K and V each): value = scale * q.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.cache import StaticCache
from variants.slots.mask import Where
from variants.slots.precision import quantise_rows

Parts = tuple[Tensor, ...]  # values [B,Hkv,T,D] and, if scaled, scales [B,Hkv,T,1]

ENCODERS: dict[str, Callable[[Tensor], Parts]] = {
    "bfloat16": lambda x: (x.bfloat16(),),
    "int8": lambda x: quantise_rows(x.float()),
}
# relative rounding unit of a stored value, by which the gate bounds what storing it may cost
KV_ROUNDING = {"bfloat16": 2.0**-8, "int8": 2.0**-7}


def as_stored(x: Tensor, kv: str) -> Tensor:
    """x [B,Hkv,T,D] as it comes back out of a cache that stores it so."""
    return decoded(ENCODERS[kv](x), x.dtype)


def decoded(parts: Parts, dtype: torch.dtype) -> Tensor:
    """[B,Hkv,T,D] in this dtype."""
    values, *scales = parts
    return (values * scales[0]).to(dtype) if scales else values.to(dtype)


def kv_element_bytes(kv: str, config: GPTConfig, otherwise: int) -> float:
    """Bytes per cached value, scales included; `otherwise` is the width of everything else."""
    return {"bfloat16": 2, "int8": 1 + 4 / config.head_dim}.get(kv, otherwise)


class NarrowCache(StaticCache):
    """A static cache whose values take fewer bits than the arithmetic."""

    def __init__(self, config: GPTConfig, batch: int, capacity: int, like: Tensor, kv: str) -> None:
        super().__init__(config, batch, 0, like)
        self.encode, self.dtype, self.slots = ENCODERS[kv], like.dtype, capacity
        empty = self.encode(like.new_zeros(batch, config.n_kv_head, capacity, config.head_dim))
        self.stored: list[tuple[Parts, Parts]] = [
            (tuple(map(torch.zeros_like, empty)), tuple(map(torch.zeros_like, empty)))
            for _ in range(config.n_layer)
        ]

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        assert isinstance(where, Tensor)
        for stored, new in zip(self.stored[layer], (k, v), strict=True):
            for buffer, part in zip(stored, self.encode(new), strict=True):
                buffer.index_copy_(2, where, part)
        return self.contents(layer, self.slots)

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        k, v = self.stored[layer]
        first_k, first_v = (tuple(part[:, :, :n] for part in stored) for stored in (k, v))
        return decoded(first_k, self.dtype), decoded(first_v, self.dtype)

    def poison(self, n: int, noise: float) -> None:
        for part in self.buffers():
            part[:, :, n:] = max(-127.0, min(127.0, noise)) if part.dtype == torch.int8 else noise

    def buffers(self) -> list[Tensor]:
        return [part for k, v in self.stored for part in (*k, *v)]
