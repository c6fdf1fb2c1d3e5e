"""Rotary positions as a table of cosines and sines.

It stands where GPT-2 has its table of positions: a buffer of the model, made in float32 as `transformers`
makes it and converted with the model. Modules, C++ and Triton read one row of the same numbers per step, and
no rounding of an angle enters the gate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from variants.config import GPTConfig, Rope


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """x [B,T,H,D] with the pairs (d, d + D/2) turned by turn [T,2,D/2]: cosines, then sines."""
    cos, sin = turn[:, None, 0], turn[:, None, 1]
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def rope_tables(config: GPTConfig) -> Tensor:
    """The tables of a model's different rotary positions, row by row beside each other: float32
    [n_ctx, tables, 2, head_dim/2].
    """
    return torch.stack([rope_table(rope, config.n_ctx, config.head_dim) for rope in config.ropes], dim=1)


def rope_table(rope: Rope, positions: int, head_dim: int) -> Tensor:
    """Cosines and sines of the first positions, float32 [positions, 2, head_dim/2]."""
    angles = torch.arange(positions).float()[:, None] * _frequencies(rope, head_dim)
    return torch.stack([angles.cos(), angles.sin()], dim=1) * _attention_factor(rope)


def _frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Angle per position of each pair, float32 [D/2]: `ROPE_INIT_FUNCTIONS` of transformers 5.24."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    if rope.kind == "default":
        return plain
    stretched = plain / rope.factor
    if rope.kind == "linear":
        return stretched
    share = _plain_share_llama3(rope, plain) if rope.kind == "llama3" else _plain_share_yarn(rope, head_dim)
    return stretched * (1 - share) + plain * share


def _plain_share_llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Share of each plain frequency that stays, float32 [D/2]: all of what turns often within `trained`."""
    turns = rope.trained * plain / (2 * math.pi)
    return ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)


def _plain_share_yarn(rope: Rope, head_dim: int) -> Tensor:
    """Share of each plain frequency that stays, float32 [D/2]: YaRN's ramp from the pairs that turn
    beta_fast times to those that turn beta_slow times (Peng et al. 2023)."""

    def pair(turns: float) -> float:
        return head_dim * math.log(rope.trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first = max(math.floor(pair(rope.beta_fast)), 0)
    last = min(math.ceil(pair(rope.beta_slow)), head_dim - 1)
    ramp = (torch.arange(head_dim // 2).float() - first) / max(last - first, 0.001)
    return 1 - ramp.clamp(0, 1)


def _attention_factor(rope: Rope) -> float:
    if rope.kind != "yarn":
        return 1.0
    return 0.1 * math.log(rope.factor) + 1 if rope.attention_factor is None else rope.attention_factor
