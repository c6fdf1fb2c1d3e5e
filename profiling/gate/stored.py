"""Whether a module's weights are stored as well as their precision can."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from variants.slots.quantised import GROUP, Int4Linear, Int8Linear

STEPS = {Int8Linear: 127, Int4Linear: 7}  # from 0 to the largest weight that shares a scale
# A step is a float32 number and so is the weight over it: both round, of 127 steps by two units each.
HALF = 0.5 + 4 * 127 * 2.0**-24


def why_not_stored(root: nn.Module, stored: nn.Module) -> str | None:
    """None where `stored` holds the weights of `root` (submodules aside), else what is wrong.

    Quantised: |w - dequantised| <= half a step, with the step that the weights themselves ask for.
    """
    if isinstance(stored, Int8Linear | Int4Linear):
        weight = root.weight
        assert isinstance(weight, Tensor)
        off = _steps_off(weight.float(), stored)
        return (
            None
            if off <= HALF
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
    step = groups.abs().amax(dim=-1, keepdim=True) / STEPS[type(stored)]
    off = (groups - F.pad(stored.dequantised(), padding).unflatten(1, (-1, width))).abs()
    return float((off / step.clamp(min=1e-30)).max())
