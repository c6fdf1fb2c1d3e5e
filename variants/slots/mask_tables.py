"""Slot `mask`: the three ways to know what a query may see."""

from __future__ import annotations

import torch
from torch import Tensor

from variants.config import GPTConfig
from variants.slots.mask import Visible, Where


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
