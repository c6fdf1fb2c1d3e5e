"""Which matrix multiplications did this run really execute?

`with MatmulCounter() as counted: model(...)`, then `counted.macs` and `counted.calls`. It sees the
operations below autograd, so it counts what ran and not what the model's source says, and it is
the second witness for `profiling.cost.work`. Works on the meta device too, where a large model costs nothing.

Formulas come from `torch.utils.flop_counter` (two FLOPs a multiply-accumulate); those that torch lacks
stand below. A matrix-like or foreign operation without a formula is refused: skipping it in silence
would make the witness agree with anything. A new kernel joins by `register_flop_formula`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from profiling.cost.work import FLOPS_PER_MAC

aten = torch.ops.aten


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> int:
    """q [B,H,T,D], k [B,Hkv,S,D], v [B,Hkv,S,Dv]: all T*S pairs, as torch counts the CUDA kernels."""
    B, H, T, D = q.shape
    return FLOPS_PER_MAC * B * H * T * k.shape[2] * (D + v.shape[3])


# each takes the operation's arguments and `out_val`, like torch's own
_MISSING: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _sdpa,
    aten._scaled_dot_product_attention_math_for_mps: _sdpa,
    aten.mv: lambda matrix, vector, **_: FLOPS_PER_MAC * matrix.numel(),
    aten.addmv: lambda bias, matrix, vector, **_: FLOPS_PER_MAC * matrix.numel(),
    aten.dot: lambda a, b, **_: FLOPS_PER_MAC * a.numel(),
    aten._int_mm: lambda a, b, **_: FLOPS_PER_MAC * a.numel() * b.shape[1],
    # x [M,K], weight [N,K] int8, scales [N]
    aten._weight_int8pack_mm: lambda x, weight, scales, **_: FLOPS_PER_MAC * x.shape[0] * weight.numel(),
}

_LOOKS_LIKE_MATMUL = re.compile(r"mm|matmul|linear|attention|convolution|(^|_)(mv|dot|addr|einsum)$")


class MatmulCounter(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Counts executed matrix multiplications while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.macs_by_op: Counter[str] = Counter()
        self.calls_by_op: Counter[str] = Counter()

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(self.macs_by_op.values())

    @property
    def calls(self) -> int:
        """Matrix multiplications (a fused attention is one)."""
        return sum(self.calls_by_op.values())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        name = func._schema.name
        formula = _MISSING.get(packet) or flop_registry.get(packet)
        if formula is None:
            with self:  # a composite operation shows as itself under inference mode; count its parts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            if not name.startswith(("aten::", "prim::")) or _LOOKS_LIKE_MATMUL.search(name.split("::")[1]):
                raise NotImplementedError(f"no formula for {name}: register one with register_flop_formula")
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        self.macs_by_op[name] += formula(*args, **kwargs, out_val=out) // FLOPS_PER_MAC
        self.calls_by_op[name] += 1
        return out
