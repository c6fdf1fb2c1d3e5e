"""Slot `head`: which positions are turned into logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from variants.option import Move, Option, anywhere

if TYPE_CHECKING:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadOption(Option):
    """`build` gives a function of `lm_head` and the hidden states [B,T,C] -> logits [B,T or 1,V]."""

    build: Callable[[], Head]
    logits: int | None  # positions of a pass that reach lm_head; None: all of them


ALL = HeadOption(name="all positions", build=lambda: all_positions, logits=None, moves=(), why_not=anywhere)
LAST = HeadOption(
    name="last position",
    build=lambda: last_position,
    logits=1,
    moves=(
        Move("short", False, "a step has one position: there is nothing to leave out"),
        Move("ttft", True, "the prompt's other positions no longer go through lm_head"),
    ),
    why_not=anywhere,
)
