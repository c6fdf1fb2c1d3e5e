"""A random model whose next token depends on all of its text, for experiments that show text."""

from __future__ import annotations

import copy

import torch

from variants.model import GPT

SCALE_AT_START = 0.02  # standard deviation of GPT-2's initial matrices


@torch.no_grad()
def attentive(model: GPT) -> GPT:
    """A copy with its blocks' matrices at the scale 1 / sqrt(width).

    At GPT-2's 0.02 a narrow model hardly attends: it repeats its last token whatever stands before, and a
    broken cache would not show in its text.
    """
    model = copy.deepcopy(model)
    for block in model.blocks:
        for name, parameter in block.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2:
                parameter.mul_(model.config.n_embd**-0.5 / SCALE_AT_START)
    return model
