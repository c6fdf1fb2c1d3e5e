"""Slot `pages`: which page size the weights lie on.

Reading half a gigabyte of weights through 4 KiB pages misses the TLB all the time; on 2 MiB pages it
hardly does. Linux gives huge pages to memory that asks for them (`madvise`) where
/sys/kernel/mm/transparent_hugepage/enabled is not `never`.
"""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from variants.model import GPT

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGE_BYTES = 2 << 20


def default_pages(model: GPT) -> GPT:
    """The weights stay where the allocator put them."""
    return model


def huge_pages(model: GPT) -> GPT:
    """A copy of the model whose weights lie on memory that asked for huge pages."""
    model = copy.deepcopy(model)
    for tensor in (*model.parameters(), *model.buffers()):  # tied weights come once
        tensor.data = on_huge_pages(tensor.data)
    return model


def on_huge_pages(tensor: Tensor) -> Tensor:
    """A copy of a CPU tensor at the start of its own huge page."""
    memory = mmap.mmap(-1, tensor.nbytes + 2 * HUGE_PAGE_BYTES)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    copied = whole[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return copied.copy_(tensor)


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
