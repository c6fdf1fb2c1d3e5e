"""Slot `pages`: which page size the weights lie on.

Reading half a gigabyte of weights through 4 KiB pages misses the TLB all the time; on 2 MiB pages it
hardly does. Linux gives huge pages to memory that asks for them (`madvise`) where
/sys/kernel/mm/transparent_hugepage/enabled is not `never`.
"""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from variants.model import GPT

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGE_BYTES = 2 << 20
ALIGNMENT = 64  # a cache line, and the widest vector


def default_pages(model: GPT) -> GPT:
    """The weights stay where the allocator put them."""
    return model


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


def why_no_huge_pages(device: str) -> str | None:
    """None where weights can lie on huge pages, else the reason."""
    if device != "cpu":
        return "page size of the weights is a CPU question"
    if not hasattr(mmap, "MADV_HUGEPAGE") or not THP.exists():
        return "this system offers no transparent huge pages"
    if "[never]" in THP.read_text():
        return f"transparent huge pages are switched off ({THP} says never)"
    return None


PAGES: dict[str, Callable[[GPT], GPT]] = {"default": default_pages, "huge": huge_pages}
