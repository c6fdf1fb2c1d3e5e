"""Slot `cache`: where the past is kept.

A cache decides which tokens a forward pass runs (`begin`), takes the new keys and values of a layer and
returns all that the queries may look at (`append`), and counts tokens (`advance`). Growing caches count in
Python; the static cache counts in device memory, so that a recorded step needs no value from the host.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.mask import Where


class Window(NamedTuple):
    """What one forward pass runs and sees."""

    tokens: Tensor  # int64 [B,T']: the new tokens, or the whole text where nothing is cached
    positions: Tensor  # int64 [T']
    where: Where  # the same positions, as the mask takes them
    slots: int  # S, how many keys the attention is given


class Cache(Protocol):
    slots: int  # how many slots a fixed-shape step attends over; growing caches ignore it

    def reserve(self, held: int, new: int) -> None:
        """Make room for `new` tokens after `held`; the host calls it before a pass. Most caches have it."""
        return

    def begin(self, tokens: Tensor) -> Window:
        """New tokens [B,T] -> what to run."""
        ...

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        """New k and v [B,Hkv,T,D] of one layer at `where` -> all keys and values [B,Hkv,S,D]."""
        ...

    def advance(self, tokens: Tensor) -> None:
        """The new tokens [B,T] have been appended in every layer."""
        ...

    def rewind(self, n: int) -> None:
        """Forget all but the first n tokens."""
        ...

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B,Hkv,n,D] of the first n tokens."""
        ...

    def buffers(self) -> list[Tensor]: ...


class NoCache(Cache):
    """Keeps the text and recomputes everything."""

    slots = 0

    def __init__(self, config: GPTConfig, batch: int, capacity: int, like: Tensor) -> None:
        self.text = torch.empty(batch, 0, dtype=torch.int64, device=like.device)

    def begin(self, tokens: Tensor) -> Window:
        text = torch.cat([self.text, tokens], dim=1)
        n = text.size(1)
        return Window(text, torch.arange(n, device=text.device), slice(0, n), n)

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        return k, v

    def advance(self, tokens: Tensor) -> None:
        self.text = torch.cat([self.text, tokens], dim=1)

    def rewind(self, n: int) -> None:
        self.text = self.text[:, :n]

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("the naive decoder keeps no keys and values")

    def buffers(self) -> list[Tensor]:
        return []


class ConcatCache(Cache):
    """The articles' cache: torch.cat per layer and step, old keys first, then the new one."""

    slots = 0

    def __init__(self, config: GPTConfig, batch: int, capacity: int, like: Tensor) -> None:
        empty = like.new_empty(batch, config.n_kv_head, 0, config.head_dim)
        self.k = [empty] * config.n_layer
        self.v = [empty] * config.n_layer
        self.length = 0

    def begin(self, tokens: Tensor) -> Window:
        start, end = self.length, self.length + tokens.size(1)
        return Window(tokens, torch.arange(start, end, device=tokens.device), slice(start, end), end)

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        self.k[layer] = torch.cat([self.k[layer], k], dim=2)
        self.v[layer] = torch.cat([self.v[layer], v], dim=2)
        return self.k[layer], self.v[layer]

    def advance(self, tokens: Tensor) -> None:
        self.length += tokens.size(1)

    def rewind(self, n: int) -> None:
        self.k = [k[:, :, :n] for k in self.k]
        self.v = [v[:, :, :n] for v in self.v]
        self.length = n

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        return self.k[layer][:, :, :n], self.v[layer][:, :, :n]

    def buffers(self) -> list[Tensor]:
        return self.k + self.v


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

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        return self.k[layer][:, :, :n], self.v[layer][:, :, :n]

    def poison(self, n: int, noise: float) -> None:
        """Overwrite every slot past the first n with finite noise."""
        for buffer in (*self.k, *self.v):
            buffer[:, :, n:] = noise

    def buffers(self) -> list[Tensor]:
        return self.k + self.v
