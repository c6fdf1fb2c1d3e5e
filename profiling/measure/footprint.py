"""How many bytes does a decoder hold at a context, by its own storages and by CUDA's allocator?

The allocator's numbers are differences, so that all hangs on the baseline: one that is taken before the first
matrix multiplication counts the library's workspace as cache.
"""

from __future__ import annotations

import psutil
import torch

from profiling.measure.memory import storage_bytes
from profiling.results.record import CacheSizes
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.model import GPT
from variants.option import declared
from variants.slots.mask import MaskOption
from variants.spec import Variant


def cache_bytes(variant: Variant, model: GPT, batch: int, context: int) -> CacheSizes:
    """Bytes of the cache with `context` tokens held: tensors; on CUDA requested and allocated, else None.

    The past is loaded, its last token comes from a real step, as in a generation.
    """
    config, device = model.config, model.device
    decoder = Decoder.of(variant, model, batch=batch)
    tokens = torch.zeros(batch, context - 1, dtype=torch.int64, device=device)
    past = torch.zeros((), dtype=model.dtype, device=device)
    past = past.expand(batch, config.n_kv_head, context - 1, config.head_dim)
    empty = storage_bytes(decoder.cache.buffers()) if variant.fixed_shape else 0
    before = _allocator(device)
    decoder.load(tokens, [(past, past)] * config.n_layer)
    decoder.advance()
    after = _allocator(device)
    tensors = storage_bytes(decoder.cache.buffers())
    grown = {key: after[key] - before[key] + empty for key in after} if after and before else {}
    return CacheSizes(tensors, grown.get("requested"), grown.get("allocated"))


def warm_up_bytes(variant: Variant, model: GPT, batch: int, context: int) -> int | None:
    """Bytes that the process's first step requests beyond the second's: a library's workspace, no cache.

    Call it before any matrix multiplication. None without a CUDA device.
    """
    if model.device.type != "cuda":
        return None
    first, second = (cache_bytes(variant, model, batch, context).requested for _ in range(2))
    assert first is not None and second is not None
    return first - second


def mask_bytes(config: GPTConfig, device: torch.device) -> dict[str, int]:
    """Bytes that each option of the slot `mask` keeps, by its name."""
    masks = declared(MaskOption)
    return {name: storage_bytes(mask.build(config, device).buffers()) for name, mask in masks.items()}


def graph_pool_bytes(variant: Variant, model: GPT, batch: int) -> int | None:
    """Bytes that the captured graph of this variant keeps; None where no graph can be captured."""
    if variant.why_not(model.device.type):
        return None
    log = Decoder.of(variant, model, batch=batch).warm_up()
    return sum(sum(warm_up.bytes.values()) for warm_up in log)


def free_bytes(device: torch.device) -> int:
    """Bytes of memory that can be taken now: the device's own, or the system's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return int(psutil.virtual_memory().available)  # with what the page cache would give back


def _allocator(device: torch.device) -> dict[str, int] | None:
    """Bytes that CUDA's allocator has handed out: as requested, and as blocks."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "requested": stats["requested_bytes.all.current"],
        "allocated": stats["allocated_bytes.all.current"],
    }
