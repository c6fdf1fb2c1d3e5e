"""Linear layers whose weights are stored in eight or four bits, and models made of them.

Both are made from the weights alone and always the same way, and are symmetric: a weight is scale * q. int8
has one scale per output channel, int4 one per group of 64 inputs. On CPU the activations become int8 too, one
scale per row, so that the products are exact integers; this is the definition that faster kernels are proven
against. Norms, biases and embeddings stay as they were.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from variants.model import GPT

GROUP = 64  # inputs that share a scale in int4
BLOCK = 2 * GROUP  # inputs in 64 bytes of int4: the low nibbles are one group, the high nibbles the next


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] -> q int8 [..., K] in -127..127 and scale [..., 1], with x about scale * q."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """x W^T + bias with W int8 [out,in], one float32 scale per output channel."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantise_rows(linear.weight.float())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.flatten())
        self.bias = _own(linear.bias)

    def dequantised(self) -> Tensor:
        """[out,in] in the dtype of the scales."""
        return self.weight * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if x.is_cuda:  # no byte product worth its quantisation there at a few rows: only the weights are int8
            return F.linear(x, self.dequantised(), self.bias)
        q, scale = quantise_rows(x.reshape(-1, x.size(-1)))
        sums = torch._int_mm(q, self.weight.t())
        y = (sums * (scale * self.scale)).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class Int4Linear(nn.Module):
    """x W^T + bias with W in four bits: uint8 [out, in/2], in padded to whole blocks, scale [out, groups]."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inputs = linear.in_features
        padded = F.pad(linear.weight.float(), (0, -self.inputs % BLOCK))
        groups = padded.unflatten(1, (-1, GROUP))
        scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 7
        nibbles = ((groups / scale).round() + 8).to(torch.uint8)
        low, high = nibbles[:, 0::2], nibbles[:, 1::2]
        self.register_buffer("weight", (low | high << 4).flatten(1))
        self.register_buffer("scale", scale.squeeze(-1).contiguous())
        self.bias = _own(linear.bias)

    def dequantised(self) -> Tensor:
        """[out,in] in the dtype of the scales."""
        packed = self.weight.unflatten(1, (-1, GROUP))
        nibbles = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1, 2)
        weight = (nibbles.to(self.scale.dtype) - 8) * self.scale[..., None]
        return weight.flatten(1)[:, : self.inputs]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        q, scale = quantise_rows(x)
        y = F.linear(q.to(x.dtype), self.dequantised()) * scale
        return y if self.bias is None else y + self.bias


def _own(bias: nn.Parameter | None) -> nn.Parameter | None:
    """A copy: a change of the new model's dtype must not reach the old one."""
    return None if bias is None else nn.Parameter(bias.clone(), requires_grad=False)


def quantised(model: GPT, kind: type[Int8Linear] | type[Int4Linear]) -> GPT:
    """A float32 copy whose Linear layers are of this kind; a tied head no longer shares the embedding.

    Made layer by layer: no float32 copy of all weights stands in memory.
    """
    layers = {id(layer): kind(layer) for layer in model.modules() if isinstance(layer, nn.Linear)}
    return copy.deepcopy(model, layers).float()
