"""Slot `mask`: how a query knows which keys it may see.

Every option answers `open(where, slots)`: a function from the layer to bool [1,1,T,slots], True where the
query may look. `where` is the queries' positions, as a slice (growing caches) or an int64 tensor [T] (fixed
shapes). Query i of T sees keys up to its own position, so the mask is aligned bottom-right; in a layer with a
window the last of them only.
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

        ones = torch.ones(config.n_ctx, config.n_ctx, device=device)
        self.tables = [triangle(ones, config.window(layer)) for layer in range(config.n_layer)]

    def open(self, where: Where, slots: int) -> Visible:
        return lambda layer: self.tables[layer][:, :, where, :slots] != 0

    def buffers(self) -> list[Tensor]:
        return self.tables


def triangle(ones: Tensor, window: int | None) -> Tensor:
    """ones [n,n] where query (row) may see key (column), else 0, as [1,1,n,n]."""
    seen = ones.tril()
    return (seen if window is None else seen.triu(1 - window))[None, None]


class SharedBool:
    """One bool triangle for all layers with the same window, looked up once per step."""

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        import torch

        ones = torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool, device=device)
        self.windows = [config.window(layer) for layer in range(config.n_layer)]
        self.tables = {window: triangle(ones, window) for window in dict.fromkeys(self.windows)}

    def open(self, where: Where, slots: int) -> Visible:
        rows = {window: table[:, :, where, :slots] for window, table in self.tables.items()}
        return lambda layer: rows[self.windows[layer]]

    def buffers(self) -> list[Tensor]:
        return list(self.tables.values())


class Computed:
    """Nothing stored but the positions, compared once per step: key position <= query position, and within
    the window.
    """

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        import torch

        self.positions = torch.arange(config.n_ctx, device=device)
        self.windows = [config.window(layer) for layer in range(config.n_layer)]

    def open(self, where: Where, slots: int) -> Visible:
        keys, queries = self.positions[:slots], self.positions[where][:, None]
        past = (keys <= queries)[None, None]
        rows = {
            window: past if window is None else past & (keys > queries - window)
            for window in dict.fromkeys(self.windows)
        }
        return lambda layer: rows[self.windows[layer]]

    def buffers(self) -> list[Tensor]:
        return [self.positions]


PER_LAYER = MaskOption(name="per-layer float32", build=PerLayerFloat, moves=(), why_not=anywhere)
SHARED = MaskOption(name="shared bool", build=SharedBool, moves=(), why_not=anywhere)
COMPUTED = MaskOption(name="computed", build=Computed, moves=(), why_not=anywhere)
