"""Slot `cache`, option `paged`: keys and values in blocks, allocated as the text grows.

    row b's token t  ->  block table[b, t // size], place t % size

The block table is in device memory, so a step's shape and arguments never change; the host only hands out
blocks between steps (`reserve`). Attention itself is unchanged: the blocks that a step attends over are
gathered first, which is what paging costs the modules; the one-launch kernels walk the table instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.blocks import SCRATCH, BlockPool, blocks_for
from variants.slots.cache import Cache, Window
from variants.slots.kv import StoredLayer
from variants.slots.mask import Where


class PagedCache(Cache):
    """The rows of one decoder over a pool of blocks, its own unless it is given another one."""

    def __init__(self, config: GPTConfig, batch: int, capacity: int, like: Tensor) -> None:
        blocks = blocks_for(capacity)
        self.pool = BlockPool(config, batch * blocks, like)
        self.rows: list[list[int]] = [[] for _ in range(batch)]
        self.table = torch.full((batch, blocks), SCRATCH, dtype=torch.int64, device=like.device)
        self.length = torch.zeros((), dtype=torch.int64, device=like.device)
        self.slots = capacity

    def share(self, pool: BlockPool) -> None:
        """Take blocks from this pool from now on; for a decoder that has held and recorded nothing."""
        assert not any(self.rows)
        self.pool = pool

    def reserve(self, held: int, new: int) -> None:
        if self.pool.grow(self.rows, held, held + new):
            self._show_blocks()

    def begin(self, tokens: Tensor) -> Window:
        positions = self.length + torch.arange(tokens.size(1), device=tokens.device)
        size = self.pool.size
        self._places = self._rows(self.table[:, positions // size] * size + positions % size)
        self._seen = self._heads(self.table[:, : blocks_for(self.slots, size)])
        return Window(tokens, positions, positions, self.slots)

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        for buffer, new in ((self.pool.k[layer], k), (self.pool.v[layer], v)):
            buffer.flatten(0, 2).index_copy_(0, self._places, new.flatten(0, 2))
        return self._gather(self.pool.k[layer], self.slots), self._gather(self.pool.v[layer], self.slots)

    def advance(self, tokens: Tensor) -> None:
        self.length.add_(tokens.size(1))

    def rewind(self, n: int) -> None:
        for row in self.rows:
            self.pool.release(row, n)
        self._show_blocks()
        self.length.fill_(n)

    def held(self) -> int:
        return int(self.length)

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        self._seen = self._heads(self.table[:, : blocks_for(n, self.pool.size)])
        return self._gather(self.pool.k[layer], n), self._gather(self.pool.v[layer], n)

    def poison(self, n: int, noise: float) -> None:
        """Overwrite every place of the pool but those of the first n tokens of these rows."""
        unused = torch.ones(self.pool.blocks + 1, self.pool.size, dtype=torch.bool, device=self.table.device)
        positions = torch.arange(n, device=self.table.device)
        unused[self.table[:, positions // self.pool.size], positions % self.pool.size] = False
        for buffer in (*self.pool.k, *self.pool.v):
            buffer.transpose(1, 2)[unused] = noise

    def stored(self) -> list[StoredLayer]:
        """Per layer the blocks of keys and of values, for a kernel that walks the table."""
        return [((k,), (v,)) for k, v in zip(self.pool.k, self.pool.v, strict=True)]

    def buffers(self) -> list[Tensor]:
        return [*self.pool.k, *self.pool.v, self.table]

    def adopt(self, tokens: Tensor) -> int:
        """From empty: share the longest prefix of tokens [B,n] that the pool has for each row -> length."""
        rows = [self.pool.adopt(row) for row in tokens]
        held = min(map(len, rows)) * self.pool.size
        self.rows = rows
        self.rewind(held)
        return held

    def publish(self, tokens: Tensor) -> None:
        """Offer the full blocks of these tokens [B,n], which the rows hold, to later sequences."""
        for row, text in zip(self.rows, tokens, strict=True):
            self.pool.publish(row, text)

    def _gather(self, buffer: Tensor, n: int) -> Tensor:
        """The first n tokens' keys or values [B,Hkv,n,D], copied out of the blocks."""
        B, heads, blocks = self._seen.shape
        whole = buffer.flatten(0, 1).index_select(0, self._seen.flatten())
        return whole.view(B, heads, blocks * self.pool.size, -1)[:, :, :n]

    def _heads(self, blocks: Tensor) -> Tensor:
        """Numbers of blocks [B,N] -> where each head's part of them is, counted in such parts [B,Hkv,N]."""
        heads = torch.arange(self.pool.k[0].size(1), device=blocks.device)
        return blocks[:, None] * len(heads) + heads[:, None]

    def _rows(self, places: Tensor) -> Tensor:
        """Places [B,T], size * block + place in it, -> the rows of all heads in the pool [B*Hkv*T]."""
        size = self.pool.size
        return (self._heads(places // size) * size + (places % size)[:, None]).flatten()

    def _show_blocks(self) -> None:
        """The rows' blocks into device memory."""
        width = self.table.size(1)
        self.table.copy_(torch.tensor([row + [SCRATCH] * (width - len(row)) for row in self.rows]))
