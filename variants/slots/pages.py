"""Slot `pages`: which page size the weights lie on.

Reading half a gigabyte of weights through 4 KiB pages misses the TLB all the time; on 2 MiB pages it
hardly does. Linux gives huge pages to memory that asks for them (`madvise`) where
/sys/kernel/mm/transparent_hugepage/enabled is not `never`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from variants.option import Move, Option, anywhere

if TYPE_CHECKING:
    from variants.model import GPT

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, kw_only=True, eq=False)
class PagesOption(Option):
    """`build` gives the model with its weights on such pages: itself, or a copy."""

    build: Callable[[GPT], GPT]


def _huge(model: GPT) -> GPT:
    from variants.slots.huge_pages import huge_pages

    return huge_pages(model)


def why_no_huge_pages(device: str) -> str | None:
    """None where weights can lie on huge pages, else the reason."""
    if device != "cpu":
        return "page size of the weights is a CPU question"
    if not hasattr(mmap, "MADV_HUGEPAGE") or not THP.exists():
        return "this system offers no transparent huge pages"
    if "[never]" in THP.read_text():
        return f"transparent huge pages are switched off ({THP} says never)"
    return None


DEFAULT = PagesOption(name="default", build=lambda model: model, moves=(), why_not=anywhere)
HUGE = PagesOption(
    name="huge",
    build=_huge,
    moves=(Move("short", True, "fewer TLB misses while the weights are read"),),
    why_not=why_no_huge_pages,
)
