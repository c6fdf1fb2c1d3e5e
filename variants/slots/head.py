"""Slot `head`: which positions are turned into logits."""

from __future__ import annotations

from torch import Tensor, nn

from variants.model import Head


def all_positions(lm_head: nn.Module, hidden: Tensor) -> Tensor:
    """[B,T,C] -> [B,T,V]."""
    logits: Tensor = lm_head(hidden)
    return logits


def last_position(lm_head: nn.Module, hidden: Tensor) -> Tensor:
    """[B,T,C] -> [B,1,V]."""
    logits: Tensor = lm_head(hidden[:, -1:])
    return logits


HEADS: dict[str, Head] = {"all positions": all_positions, "last position": last_position}
