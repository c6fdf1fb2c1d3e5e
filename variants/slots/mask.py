"""Slot `mask`: how a query knows which keys it may see.

Every option answers `open(where, slots)`: a function from the layer to bool [1,1,T,slots], True where the
query may look. `where` is the queries' positions, as a slice (growing caches) or an int64 tensor [T] (fixed
shapes). Query i of T sees keys up to its own position, so the mask is aligned bottom-right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from variants.config import GPTConfig

Where = slice | Tensor
Visible = Callable[[int], Tensor]


class Mask(Protocol):
    def open(self, where: Where, slots: int) -> Visible: ...

    def buffers(self) -> list[Tensor]:
        """The tensors that this option keeps in memory."""
        ...


class PerLayerFloat:
    """The articles' mask: one float32 triangle per layer, compared with zero at every use."""

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        n = config.n_ctx
        self.tables = [torch.ones(n, n, device=device).tril()[None, None] for _ in range(config.n_layer)]

    def open(self, where: Where, slots: int) -> Visible:
        return lambda layer: self.tables[layer][:, :, where, :slots] != 0

    def buffers(self) -> list[Tensor]:
        return self.tables


class SharedBool:
    """One bool triangle for all layers, looked up once per step."""

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        n = config.n_ctx
        self.table = torch.ones(n, n, dtype=torch.bool, device=device).tril()[None, None]

    def open(self, where: Where, slots: int) -> Visible:
        rows = self.table[:, :, where, :slots]
        return lambda layer: rows

    def buffers(self) -> list[Tensor]:
        return [self.table]


class Computed:
    """Nothing stored but the positions: key position <= query position, compared once per step."""

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        self.positions = torch.arange(config.n_ctx, device=device)

    def open(self, where: Where, slots: int) -> Visible:
        rows = (self.positions[:slots] <= self.positions[where][:, None])[None, None]
        return lambda layer: rows

    def buffers(self) -> list[Tensor]:
        return [self.positions]


MASKS: dict[str, type[PerLayerFloat] | type[SharedBool] | type[Computed]] = {
    "per-layer float32": PerLayerFloat,
    "shared bool": SharedBool,
    "computed": Computed,
}
