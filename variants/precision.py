"""Slot `precision`: how the weights are stored."""

from __future__ import annotations

import copy

import torch

from variants.model import GPT

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
# bytes per weight as a step reads them
WEIGHT_BYTES: dict[str, float] = {"float64": 8, "float32": 4, "bfloat16": 2}
# relative rounding unit of the arithmetic, by which the gate bounds plain eager itself
ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-8}


def convert(model: GPT, precision: str) -> GPT:
    """The model in this precision: itself where nothing changes, else a converted copy."""
    dtype = DTYPES[precision]
    return model if model.dtype == dtype else copy.deepcopy(model).to(dtype)


def exact_copy(model: GPT, precision: str) -> GPT:
    """The weights as `precision` stores them, in float64: what the gate takes for the truth."""
    return copy.deepcopy(convert(model, precision)).to(torch.float64)
