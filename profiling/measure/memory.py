"""Bytes of a decoder: by formula, by its tensors, and by the allocator."""

from __future__ import annotations

import torch
from torch import Tensor

from profiling.cost.work import kv_bytes_per_token
from profiling.results.record import Memory
from variants.backends.modules import Modules
from variants.decoder import Decoder


def storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the distinct storages behind these tensors: views and ties are counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}
    return sum(storages.values())


def decoder_bytes(decoder: Decoder) -> Memory:
    """Bytes that a decoder holds. `cache_formula_bytes`: 2 L Hkv D per token and row, at the tokens held."""
    cache, trunk = decoder.cache.buffers(), decoder.modules
    model = decoder.model
    stored = decoder.variant.kv.element_bytes(model.config, model.dtype.itemsize) if cache else 0
    per_token = kv_bytes_per_token(model.config, stored)
    return Memory(
        weights_bytes=storage_bytes([*model.parameters(), *model.buffers()]),
        cache_bytes=storage_bytes(cache),
        cache_formula_bytes=per_token * decoder.length * decoder.batch,
        mask_bytes=storage_bytes(trunk.mask.buffers()) if isinstance(trunk, Modules) else 0,
        compiled_step_bytes=sum(sum(warm.bytes.values()) for warm in decoder.executor.log),
        allocated_bytes=torch.cuda.memory_allocated(model.device) if model.device.type == "cuda" else None,
    )
