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
    def open(self, where: Where, slots: int) -> Visible: ...

    def buffers(self) -> list[Tensor]:
        """The tensors that this option keeps in memory."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskOption(Option):
    build: Callable[[GPTConfig, torch.device], Mask]


def _per_layer(config: GPTConfig, device: torch.device) -> Mask:
    from variants.slots.mask_tables import PerLayerFloat

    return PerLayerFloat(config, device)


def _shared(config: GPTConfig, device: torch.device) -> Mask:
    from variants.slots.mask_tables import SharedBool

    return SharedBool(config, device)


def _computed(config: GPTConfig, device: torch.device) -> Mask:
    from variants.slots.mask_tables import Computed

    return Computed(config, device)


PER_LAYER = MaskOption(name="per-layer float32", build=_per_layer, moves=(), why_not=anywhere)
SHARED = MaskOption(name="shared bool", build=_shared, moves=(), why_not=anywhere)
COMPUTED = MaskOption(name="computed", build=_computed, moves=(), why_not=anywhere)
