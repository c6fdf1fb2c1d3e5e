"""Slot `attention`: softmax(q k^T / sqrt(D)) v, written out or fused.

q [B,H,T,D], k and v [B,Hkv,S,D], visible bool [1,1,T,S] -> [B,H,T,D]. Fewer KV heads than query heads
means consecutive query heads share one (grouped-query attention).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def written_out(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    shared_by = q.size(1) // k.size(1)
    if shared_by > 1:
        k, v = k.repeat_interleave(shared_by, dim=1), v.repeat_interleave(shared_by, dim=1)
    scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
    return torch.where(visible, scores, float("-inf")).softmax(dim=-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    # The mask is always passed: `is_causal` aligns top-left, so a lone query would see key 0 only.
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.size(1) != k.size(1))


ATTENTIONS: dict[str, Attention] = {"written out": written_out, "fused": fused}
