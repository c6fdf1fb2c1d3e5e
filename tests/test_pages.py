"""Slot `pages`: copies on huge pages are equal, and the kernel really gave huge pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from variants.slots.huge_pages import HUGE_PAGE_BYTES, on_huge_pages
from variants.slots.pages import why_no_huge_pages

pytestmark = pytest.mark.skipif(why_no_huge_pages("cpu") is not None, reason=str(why_no_huge_pages("cpu")))


def huge_bytes() -> int:
    """Of this process, as the kernel counts them."""
    match = re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert match is not None
    return int(match[1]) << 10


def test_copies_are_equal_and_lie_on_huge_pages() -> None:
    tensors = [torch.randn(1000, 8193), torch.arange(7), torch.randn(3, 5).bfloat16()]
    before = huge_bytes()
    moved = on_huge_pages(tensors)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, moved, strict=True))
    assert huge_bytes() - before >= 8 * HUGE_PAGE_BYTES  # of 16 that they fill: memory may be scattered
