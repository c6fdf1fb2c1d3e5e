"""How far what a decoder computed is from the truth: in the logits, in the cache by layer, in its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from variants.slots.quantised import GROUP, Int4Linear, Int8Linear

WEIGHT_STEPS = {Int8Linear: 127, Int4Linear: 7}  # from 0 to the largest weight that shares a scale
# A step is a float32 number and so is the weight over it: both round, of 127 steps by two units each.
HALF_A_STEP = 0.5 + 4 * 127 * 2.0**-24
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


def why_other_weights(root: nn.Module, stored: nn.Module) -> str | None:
    """None where `stored` holds the weights of `root` (submodules aside), else what is wrong.

    Quantised: |w - dequantised| <= half a step, with the step that the weights themselves ask for.
    """
    if isinstance(stored, Int8Linear | Int4Linear):
        weight = root.weight
        assert isinstance(weight, Tensor)
        off = _steps_off(weight.float(), stored)
        return (
            None
            if off <= HALF_A_STEP
            else f"a weight is stored {off:.3g} steps from what it is, more than half a step"
        )
    for name, tensor in stored.named_parameters(recurse=False):
        if not torch.equal(root.get_parameter(name).to(tensor.dtype), tensor):
            return f"{name} is not what the model has"
    return None


def _steps_off(weight: Tensor, stored: Int8Linear | Int4Linear) -> float:
    """The largest |w - dequantised| of weight [out,in], in steps of its row or group."""
    width = weight.size(1) if isinstance(stored, Int8Linear) else GROUP
    padding = (0, -weight.size(1) % width)
    groups = F.pad(weight, padding).unflatten(1, (-1, width))
    step = groups.abs().amax(dim=-1, keepdim=True) / WEIGHT_STEPS[type(stored)]
    off = (groups - F.pad(stored.dequantised(), padding).unflatten(1, (-1, width))).abs()
    return float((off / step.clamp(min=1e-30)).max())
