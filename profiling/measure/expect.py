"""What each step should cost, computed before anything is timed: bytes, MACs, ops, and the time they
imply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.cost.work import (
    FLOPS_PER_MAC,
    kv_read_bytes,
    macs,
    step_work,
)
from profiling.results.record import Ops, Peaks, StepPrediction
from variants.backends.plugin import PluginTrunk
from variants.decoder import Decoder
from variants.model import GPT


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


def step_ops(decoder: Decoder) -> Ops:
    """ATen operations that one step of this variant's backend dispatches, by one untimed eager step.

    On a GPU each computing op is about one launch. The decoder is reset.
    """
    decoder.reset()
    if isinstance(decoder.modules, PluginTrunk):  # which may know no step without a prompt
        decoder.prefill(decoder.token)
    with torch.inference_mode(), _Ops() as ops:
        decoder.backend.step(decoder.token)
    decoder.reset()
    return Ops(computing_ops=ops.computing, view_ops=ops.views)


def weights_read_whole(decoder: Decoder) -> list[Tensor]:
    """The weights that a step reads from end to end: no position table, no token table that is no head.

    Those of a plug-in are what it says, and the model's where it says nothing.
    """
    trunk, model = decoder.modules, _gpt(decoder)
    if isinstance(trunk, PluginTrunk) and (own := trunk.weights()) is not None:
        return own
    by_row = [model.positions, *([] if _is_head(model.wte, model) else [model.wte.weight])]
    tensors = (*model.parameters(), *model.buffers())
    return [tensor for tensor in tensors if all(tensor is not table for table in by_row)]


def _gpt(decoder: Decoder) -> GPT:
    """The model as this decoder stores it, or was given it."""
    assert isinstance(decoder.model, GPT)
    return decoder.model


def _is_head(table: nn.Embedding, model: GPT) -> bool:
    return table.weight is model.lm_head.weight


def floor_bytes(decoder: Decoder, context: int) -> int:
    """Bytes that one step at this context must read, with weights and cache as this decoder stores them."""
    variant, model, batch = decoder.variant, _gpt(decoder), decoder.batch
    position, token = model.positions[0], model.wte.weight[0]
    rows = position.nbytes + (0 if _is_head(model.wte, model) else batch * token.nbytes)
    element = variant.kv.element_bytes(model.config, model.dtype.itemsize)
    cache = kv_read_bytes(model.config, context, element, batch)
    return sum(weight.nbytes for weight in weights_read_whole(decoder)) + rows + cache


def predict(decoder: Decoder, context: int, peaks: Peaks) -> StepPrediction:
    """Bytes and MACs of one step at this context, and the ms that this machine's peaks give them."""
    config, batch = decoder.model.config, decoder.batch
    n_bytes = floor_bytes(decoder, context)
    count = macs(config, step_work(decoder.variant, context, decoder.bucket(context))) * batch
    return StepPrediction(
        bytes=n_bytes,
        macs=count,
        memory_ms=n_bytes / peaks.read_gb_per_s / 1e6,
        arithmetic_ms=FLOPS_PER_MAC * count / peaks.matmul_flop_per_s * 1e3,
    )
