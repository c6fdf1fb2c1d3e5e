"""Slot `pages`, option `huge`: tensors on memory that asked for huge pages."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from variants.model import GPT

HUGE_PAGE_BYTES = 2 << 20
ALIGNMENT = 64  # a cache line, and the widest vector


def huge_pages(model: GPT) -> GPT:
    """A copy of the model whose weights lie on memory that asked for huge pages."""
    model = copy.deepcopy(model)
    tensors = [*model.parameters(), *model.buffers()]  # tied weights come once
    for tensor, moved in zip(tensors, on_huge_pages([tensor.data for tensor in tensors]), strict=True):
        tensor.data = moved
    return model


def on_huge_pages(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of CPU tensors, one after the other in one piece of memory that asked for huge pages."""
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    # private: shared memory has a switch of its own (shmem_enabled), which is mostly off
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, sum(sizes) + HUGE_PAGE_BYTES, flags=private)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    starts = accumulate(sizes, initial=-whole.data_ptr() % HUGE_PAGE_BYTES)
    return [
        whole[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        for tensor, start in zip(tensors, starts, strict=False)
    ]
