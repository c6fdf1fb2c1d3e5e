"""Slot `precision`: how the weights are stored."""

from __future__ import annotations

import copy

import torch

from variants.model import GPT

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def convert(model: GPT, precision: str) -> GPT:
    """The model in this precision: itself where nothing changes, else a converted copy."""
    dtype = DTYPES[precision]
    return model if model.dtype == dtype else copy.deepcopy(model).to(dtype)
