"""Slot `attention`: softmax(q k^T / sqrt(D)) v, written out or fused.

q [B,H,T,D], k and v [B,Hkv,S,D], visible bool [1,1,T,S] -> [B,H,T,D]. Fewer KV heads than query heads
means consecutive query heads share one (grouped-query attention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from variants.option import Move, Option, anywhere

if TYPE_CHECKING:
    from torch import Tensor

Attention: TypeAlias = "Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]"


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionOption(Option):
    """`build` gives q [B,H,T,D], k and v [B,Hkv,S,D], visible bool [1,1,T,S] -> [B,H,T,D]."""

    build: Callable[[], Attention]
    matmuls: int  # matrix multiplications (or kernels in their place) that one layer launches


def _written_out() -> Attention:
    import torch

    def written_out(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        shared_by = q.size(1) // k.size(1)
        if shared_by > 1:
            k, v = k.repeat_interleave(shared_by, dim=1), v.repeat_interleave(shared_by, dim=1)
        scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        return torch.where(visible, scores, float("-inf")).softmax(dim=-1) @ v

    return written_out


def _fused() -> Attention:
    from torch.nn.functional import scaled_dot_product_attention

    def fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        # The mask is always passed: `is_causal` aligns top-left, so a lone query would see key 0 only.
        return scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.size(1) != k.size(1))

    return fused


WRITTEN_OUT = AttentionOption(name="written out", build=_written_out, matmuls=2, moves=(), why_not=anywhere)
FUSED = AttentionOption(
    name="fused",
    build=_fused,
    matmuls=1,
    moves=(Move("short", True, "one op per layer instead of several"),),
    why_not=anywhere,
)
