"""Typed records as small as a test needs them."""

from __future__ import annotations

from typing import Any

from profiling.results.record import Entry, Model, Peaks, Workload
from variants.config import GPTConfig

PEAKS = Peaks(10.0, 1e10, 1.0, None, 1.0)
MADE = {"command": "python -m experiments.none", "started": "2026-01-01T00:00:00+00:00"}


def entry(**known: Any) -> Entry:
    """A variant of which only this is known."""
    described = {"parent": None, "difference": None, "owns": [], "removes": "", "precision": "float32"}
    return Entry(**{**described, "pages": "default", **known})


def setting(width: int = 8, **workload: Any) -> dict[str, Any]:
    """Model, workload and peaks of a record."""
    shape = GPTConfig(n_layer=1, n_head=1, n_embd=width)
    model = Model("by hand", "float32", shape)
    return {**MADE, "model": model, "workload": Workload(**workload), "peaks": PEAKS}
