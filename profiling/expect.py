"""What each step should cost, computed before anything is timed: bytes, MACs, ops, and the time they
imply.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.work import (
    FLOPS_PER_MAC,
    kv_read_bytes,
    macs,
    matrix_rows,
    step_work,
    weights_read_bytes,
)
from variants.decoder import Decoder
from variants.kv import kv_element_bytes
from variants.precision import QUANTISED, WEIGHT_BYTES

SCALE_BYTES = 4  # float32, one per output row of int8; those of int4 are part of its width


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computing, self.views = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            self.views += 1
        else:
            self.computing += 1
        return func(*args, **(kwargs or {}))


def step_ops(decoder: Decoder) -> dict[str, int]:
    """ATen operations that one step of this variant's body dispatches, by one untimed eager step.

    On a GPU each computing op is about one launch. The decoder is reset.
    """
    decoder.reset()
    with torch.inference_mode(), _Ops() as ops:
        decoder.body.step(decoder.token)
    decoder.reset()
    return {"computing_ops": ops.computing, "view_ops": ops.views}


def floor_bytes(decoder: Decoder, context: int) -> int:
    """Bytes that one step at this context must read, with weights and cache as this decoder stores them."""
    variant, config, batch = decoder.variant, decoder.model.config, decoder.batch
    width, other = WEIGHT_BYTES[variant.precision], decoder.model.wpe.weight.element_size()
    weights = weights_read_bytes(config, width, batch, other_dtype_bytes=other)
    if variant.precision == "int8":
        weights += SCALE_BYTES * matrix_rows(config)
    if variant.precision in QUANTISED:  # the token table stays as it was, beside the quantised head
        weights += math.ceil(config.n_embd * batch * (other if config.tied_head else other - width))
    return weights + kv_read_bytes(config, context, kv_element_bytes(variant.kv, config, other), batch)


def predict(decoder: Decoder, context: int, ceilings: dict[str, float | None]) -> dict[str, float | int]:
    """Bytes and MACs of one step at this context, and the ms that this machine's ceilings give them."""
    config, batch = decoder.model.config, decoder.batch
    n_bytes = floor_bytes(decoder, context)
    count = macs(config, step_work(decoder.variant, context, decoder.bucket(context))) * batch
    read, rate = ceilings["read_gb_per_s"], ceilings["matmul_flop_per_s"]
    assert read is not None and rate is not None
    return {
        "bytes": n_bytes,
        "macs": count,
        "memory_ms": n_bytes / read / 1e6,
        "arithmetic_ms": FLOPS_PER_MAC * count / rate * 1e3,
    }
