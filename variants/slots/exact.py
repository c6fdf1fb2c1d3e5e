"""A model in float64, the truth of a proof, in little more memory than its weights take.

A copy of eight bytes per parameter is the fastest and is kept while it is small. Beyond, a matrix stays as it
is stored and is widened when a pass comes to it, some rows at a time: one read of the weights more for each
pass, instead of four times their bytes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from variants.model import GPT
from variants.slots.precision import PrecisionOption
from variants.slots.quantised import Int4Linear, Int8Linear

KEPT_BYTES = 2 << 30  # of a float64 copy: GPT-2 medium and larger are widened pass by pass
ROWS = 8192  # of a matrix, widened at once
QUANTISED = (Int8Linear, Int4Linear)


class Widened(nn.Module):
    """A Linear (of fewer bits too) or an Embedding that computes in float64 what its stored weights say."""

    def __init__(self, stored: nn.Module) -> None:
        super().__init__()
        self._stored = (stored,)  # no submodule: a change of the model's dtype must not reach it

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [...] or states float64 [..., in] -> float64 [..., out]."""
        stored: Any = self._stored[0]
        if isinstance(stored, nn.Embedding):
            return F.embedding(x, stored.weight).double()
        weight: Tensor = stored.dequantised() if isinstance(stored, QUANTISED) else stored.weight
        y = torch.cat([F.linear(x, rows.double()) for rows in weight.split(ROWS)], dim=-1)
        if stored.bias is not None:
            y += stored.bias.double()
        return y


def exact_copy(model: GPT, precision: PrecisionOption) -> GPT:
    """The weights as `precision` stores them, in float64: what the gate takes for the truth."""
    exact = copy.deepcopy(precision.build(model))
    in_float64(exact)
    return exact


def in_float64(model: nn.Module) -> None:
    """Make a model that nobody else holds compute in float64."""
    stored = [*model.parameters(), *model.buffers()]
    small = 8 * sum(tensor.numel() for tensor in stored) <= KEPT_BYTES
    for name, module in list(model.named_modules()):
        if small and isinstance(module, QUANTISED):
            model.set_submodule(name, _linear(module))
        elif not small and (isinstance(module, QUANTISED) or type(module) in (nn.Linear, nn.Embedding)):
            model.set_submodule(name, Widened(module))
    model.to(torch.float64)


def _linear(module: Int8Linear | Int4Linear) -> nn.Linear:
    """An ordinary layer of the same weights."""
    weight = module.dequantised()
    linear = nn.Linear(weight.size(1), weight.size(0), bias=module.bias is not None)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.register_parameter("bias", module.bias)
    return linear
