"""Slot `mask`: how a query knows which keys it may see.

Every option answers `open(where, slots)`: a function from the layer to bool [1,1,T,slots], True where the
query may look. `where` is the queries' positions, as a slice (growing caches) or an int64 tensor [T] (fixed
shapes). Query i of T sees keys up to its own position, so the mask is aligned bottom-right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from variants.config import GPTConfig
from variants.option import Option, anywhere

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Where: TypeAlias = "slice | Tensor"
Visible: TypeAlias = "Callable[[int], Tensor]"


class Mask(Protocol):
    """What a query may see, by its position."""

    def open(self, where: Where, slots: int) -> Visible:
        """The mask of a pass: a function from the layer to bool [1,1,T,slots]."""
        ...

    def buffers(self) -> list[Tensor]:
        """The tensors that this option keeps in memory."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskOption(Option):
    """`build` takes config and device."""

    build: Callable[[GPTConfig, torch.device], Mask]


class PerLayerFloat:
    """The articles' mask: one float32 triangle per layer, compared with zero at every use."""

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        import torch

        n = config.n_ctx
        self.tables = [torch.ones(n, n, device=device).tril()[None, None] for _ in range(config.n_layer)]

    def open(self, where: Where, slots: int) -> Visible:
        return lambda layer: self.tables[layer][:, :, where, :slots] != 0

    def buffers(self) -> list[Tensor]:
        return self.tables


class SharedBool:
    """One bool triangle for all layers, looked up once per step."""

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        import torch

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
        import torch

        self.positions = torch.arange(config.n_ctx, device=device)

    def open(self, where: Where, slots: int) -> Visible:
        rows = (self.positions[:slots] <= self.positions[where][:, None])[None, None]
        return lambda layer: rows

    def buffers(self) -> list[Tensor]:
        return [self.positions]


PER_LAYER = MaskOption(name="per-layer float32", build=PerLayerFloat, moves=(), why_not=anywhere)
SHARED = MaskOption(name="shared bool", build=SharedBool, moves=(), why_not=anywhere)
COMPUTED = MaskOption(name="computed", build=Computed, moves=(), why_not=anywhere)
