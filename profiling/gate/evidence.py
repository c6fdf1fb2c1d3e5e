"""How far what a decoder computed is from the truth: in the logits, and in the cache layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

PIECE = 1 << 18  # values compared at once: logits of a whole text in float64 would not stay in any cache


class Mismatch(Exception):
    """The variant does not compute the reference function; the message says where."""


@dataclass(frozen=True)
class Errors:
    """How far a tensor is from the float64 one: root mean square, maximum, and the scale of the truth."""

    rms: float
    max: float
    scale: float

    @staticmethod
    def of(got: Tensor, truth: Tensor) -> Errors:
        n, worst, squares, scale = truth.numel(), 0.0, 0.0, 0.0
        for ours, right in zip(got.flatten().split(PIECE), truth.flatten().split(PIECE), strict=True):
            difference = ours.double() - right
            largest = float(difference.abs().max())
            worst = max(worst, largest if math.isfinite(largest) else math.inf)
            squares += float(difference.dot(difference))
            scale += float(right.dot(right))
        return Errors(rms=math.sqrt(squares / n), max=worst, scale=math.sqrt(scale / n))

    def largest(self, other: Errors) -> Errors:
        """The larger rms, the larger maximum and the larger scale of both."""
        return Errors(max(self.rms, other.rms), max(self.max, other.max), max(self.scale, other.scale))


LOGITS = -1  # in the place of a layer


@dataclass(frozen=True)
class Evidence:
    """What one part of a check compared: the logits, and each layer's keys and values (none: no cache).

    Layer by layer, because rounding adds up on the way: what a fault does in the first layer must not hide
    behind what bfloat16 does to the last.
    """

    by_layer: dict[int, Errors] = field(default_factory=dict)
    where: str = ""
    stressed: str = ""  # by what: weights and cache are made for it, and such parts have budgets apart

    @staticmethod
    def worst(parts: Iterable[Evidence], where: str = "", stressed: str = "") -> Evidence:
        """The worst of several parts, layer by layer."""
        worst: dict[int, Errors] = {}
        for part in parts:
            for layer, errors in part.by_layer.items():
                worst[layer] = worst[layer].largest(errors) if layer in worst else errors
        return Evidence(worst, where, stressed)

    def label(self, layer: int) -> str:
        what = "logits" if layer == LOGITS else f"keys and values of layer {layer}"
        return f"{self.where}, {what}" if self.where else what
