"""What each step should cost, computed before anything is timed: bytes, MACs, ops, and the time they
imply.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiling.cost.work import (
    FLOPS_PER_MAC,
    kv_read_bytes,
    macs,
    macs_beyond_windows,
    step_work,
)
from profiling.results.record import Ops, Peaks, StepPrediction
from variants.backends.plugin import PluginTrunk, process_of
from variants.backends.transformers_model import GrowingLayers, TransformersModel
from variants.decoder import Decoder
from variants.model import GPT

aten = torch.ops.aten
LOOK_UPS = {aten.embedding: 1, aten.index: 1, aten.index_select: 2}  # where their indices stand


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


class StepReads(NamedTuple):
    """What one step must read: tensors from end to end, bytes of rows of other tables, and by layer the bytes
    that a token left in the cache, with how many tokens its attention goes back (None: all).
    """

    whole: list[Tensor]
    rows: int
    cached: list[tuple[int, int | None]]


def step_reads(decoder: Decoder) -> StepReads:
    """Bytes that a step reads as this decoder stores weights and cache: by formula, or watched where
    the model is not ours.

    Weights of a plug-in are what it says, and the model's where it says nothing. What another process holds
    cannot be read where it lies: all its bytes count as rows.
    """
    model, batch = decoder.model, decoder.batch
    if engine := process_of(decoder.modules):
        return StepReads([], engine.step_bytes(0), [(engine.step_bytes(1) - engine.step_bytes(0), None)])
    if isinstance(model, TransformersModel):
        return _watched(model)
    assert isinstance(model, GPT)
    by_row = [model.positions, *([] if _is_head(model.wte, model) else [model.wte.weight])]
    tensors = (*model.parameters(), *model.buffers())
    whole = [tensor for tensor in tensors if all(tensor is not table for table in by_row)]
    position, token = model.positions[0], model.wte.weight[0]
    rows = position.nbytes + (0 if _is_head(model.wte, model) else batch * token.nbytes)
    config, element = model.config, decoder.variant.kv.element_bytes(model.config, model.dtype.itemsize)
    of_layer = kv_read_bytes(config, 1, element) // config.n_layer
    if isinstance(decoder.modules, PluginTrunk) and (weights := decoder.modules.weights()) is not None:
        whole = weights
    return StepReads(whole, rows, [(of_layer, config.window(layer)) for layer in range(config.n_layer)])


def _is_head(table: nn.Embedding, model: GPT) -> bool:
    return table.weight is model.lm_head.weight


class _Reads(TorchDispatchMode):
    """Bytes that operations read of a module's own tensors, by storage: of a table the rows looked up."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages, self.bytes = storages, Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = {_storage(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and _storage(leaf) in self.storages - results:  # a view reads nothing
                at = LOOK_UPS.get(func.overloadpacket)
                share = 1.0 if at is None else _looked_up(args[at]) / leaf.size(0)
                self.bytes[_storage(leaf)] += round(leaf.nbytes * share)
        return result


def _looked_up(indices: Any) -> int:
    """How many different rows these indices name."""
    (one,) = (leaf for leaf in tree_leaves(indices) if isinstance(leaf, Tensor))
    return int(one.unique().numel())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@lru_cache(maxsize=1)
@torch.inference_mode()
def _watched(model: TransformersModel) -> StepReads:
    """What one token of one row reads. A bound from below for more rows, which may choose other experts."""
    tensors = [tensor for tensor in (*model.module.parameters(), *model.module.buffers()) if tensor.nbytes]
    sizes: Counter[int] = Counter()
    for tensor in tensors:
        sizes[_storage(tensor)] += tensor.nbytes
    layers = GrowingLayers()
    with _Reads(set(sizes)) as reads:
        model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), layers.cache, every=False)
    whole = [tensor for tensor in tensors if reads.bytes[_storage(tensor)] >= sizes[_storage(tensor)]]
    rows = sum(n for storage, n in reads.bytes.items() if n < sizes[storage])
    cached = [
        sum(part.nbytes for part in layers.contents(layer, 1)) for layer in range(len(layers.cache.layers))
    ]
    return StepReads(whole, rows, list(zip(cached, model.windows, strict=True)))


def floor_bytes(decoder: Decoder, context: int) -> int:
    """Bytes that one step at this context must read, with weights and cache as this decoder stores them."""
    reads = step_reads(decoder)
    past = [n * (context if window is None else min(context, window - 1)) for n, window in reads.cached]
    return sum(weight.nbytes for weight in reads.whole) + reads.rows + decoder.batch * sum(past)


def predict(decoder: Decoder, context: int, peaks: Peaks) -> StepPrediction:
    """Bytes and MACs of one step at this context, and the ms that this machine's peaks give them.

    MACs are counted from our config; of a model that it does not describe they are unknown.
    """
    model, n_bytes, count = decoder.model, floor_bytes(decoder, context), None
    if not isinstance(model, TransformersModel) or model.described:
        config, work = model.config, step_work(decoder.variant, context, decoder.bucket(context))
        unseen = 0 if decoder.variant.backend.attends_to_bucket else macs_beyond_windows(config, context)
        count = (macs(config, work) - unseen) * decoder.batch
    return StepPrediction(
        bytes=n_bytes,
        macs=count,
        memory_ms=n_bytes / peaks.read_gb_per_s / 1e6,
        arithmetic_ms=None if count is None else FLOPS_PER_MAC * count / peaks.matmul_flop_per_s * 1e3,
    )
