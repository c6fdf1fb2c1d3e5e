"""Bytes of a decoder: by formula, by its tensors, and by the allocator."""

from __future__ import annotations

import torch
from torch import Tensor

from profiling.measure.expect import step_reads
from profiling.results.record import Memory
from variants.backends.modules import Modules
from variants.decoder import Decoder


def storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the distinct storages behind these tensors: views and ties are counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}
    return sum(storages.values())


def decoder_bytes(decoder: Decoder) -> Memory:
    """Bytes that a decoder holds. `cache_formula_bytes`: what a token leaves behind, for each one held."""
    trunk, model = decoder.modules, decoder.model
    per_token = sum(n for n, _ in step_reads(decoder).cached) if decoder.variant.cache.keeps else 0
    return Memory(
        weights_bytes=storage_bytes([*model.parameters(), *model.buffers()]),
        cache_bytes=storage_bytes(decoder.cache.buffers()),
        cache_formula_bytes=per_token * decoder.length * decoder.batch,
        mask_bytes=storage_bytes(trunk.mask.buffers()) if isinstance(trunk, Modules) else 0,
        compiled_step_bytes=sum(sum(warm.bytes.values()) for warm in decoder.executor.log),
        allocated_bytes=torch.cuda.memory_allocated(model.device) if model.device.type == "cuda" else None,
    )
