"""Slot `cache`: no cache at all, and the cache that is concatenated. Both count tokens in Python."""

from __future__ import annotations

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.cache import Cache, Window
from variants.slots.mask import Where


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

    def held(self) -> int:
        return self.text.size(1)

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

    def held(self) -> int:
        return self.length

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        return self.k[layer][:, :, :n], self.v[layer][:, :, :n]

    def buffers(self) -> list[Tensor]:
        return self.k + self.v
