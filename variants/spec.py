"""What a variant is: an option of the decoder's slots, one slot away from its parent.

Torch-free, so that `--help` and `--list` stay fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

# slot -> the options that exist; the file of the slot holds the code of each
SLOTS: dict[str, tuple[str, ...]] = {
    "cache": ("none", "concat", "static", "paged"),
    "mask": ("per-layer float32", "shared bool", "computed"),
    "head": ("all positions", "last position"),
    "attention": ("written out", "fused"),
    "precision": ("float64", "float32", "bfloat16", "int8", "int4"),
    "kv": ("as precision", "bfloat16", "int8"),
    "pages": ("default", "huge"),
    "executor": (
        "eager",
        "compiled",
        "compiled, C++ wrapper",
        "compiled in a CUDA graph",
        "AOTInductor",
        "op tape",
        "CUDA graph",
    ),
    "backend": ("modules", "fused Triton", "one launch"),
}

# caches whose tensors never change shape: the only ones that a recorded step can run over
FIXED_SHAPE_CACHES = ("static", "paged")

# a backend that brings its own attention, mask or head ignores these slots; the report says so
BACKEND_OWNS: dict[str, tuple[str, ...]] = {
    "modules": (),
    "fused Triton": ("mask", "head", "attention"),
    "one launch": ("mask", "head", "attention"),
}


@dataclass(frozen=True)
class Variant:
    """One option of all slots. `removes` says what the changed slot should take out of a step."""

    name: str
    removes: str
    cache: str = "none"
    mask: str = "per-layer float32"
    head: str = "all positions"
    attention: str = "written out"
    precision: str = "float32"
    kv: str = "as precision"
    pages: str = "default"
    executor: str = "eager"
    backend: str = "modules"
    parent: Variant | None = None

    def __post_init__(self) -> None:
        for slot, known in SLOTS.items():
            if self.slot(slot) not in known:
                raise ValueError(f"{self.name}: {slot} has no option {self.slot(slot)!r}; known: {known}")
        if not self.fixed_shape and (self.executor != "eager" or self.backend != "modules"):
            raise ValueError(
                f"{self.name}: executor {self.executor!r} and backend {self.backend!r} need a step of fixed "
                f"shape, which cache {self.cache!r} does not give"
            )
        if (self.kv != "as precision" or self.cache == "paged") and self.backend != "modules":
            raise ValueError(
                f"{self.name}: backend {self.backend!r} reads a static cache that is stored as precision"
            )
        if self.kv != "as precision" and self.cache != "static":
            raise ValueError(f"{self.name}: kv {self.kv!r} is written for cache 'static', not {self.cache!r}")

    @property
    def fixed_shape(self) -> bool:
        """Whether a step's tensors have the same shape at every context."""
        return self.cache in FIXED_SHAPE_CACHES

    def slot(self, name: str) -> str:
        return str(getattr(self, name))

    def then(self, name: str, removes: str, **change: str) -> Variant:
        """The variant one slot further. Raises ValueError unless exactly one slot really changes."""
        changed = {slot: new for slot, new in change.items() if self.slot(slot) != new}
        if len(change) != 1 or changed != change:
            raise ValueError(f"{name}: a rung changes exactly one slot of {self.name}, got {change}")
        return replace(self, name=name, removes=removes, parent=self, **change)

    @property
    def difference(self) -> tuple[str, str, str] | None:
        """(slot, before, after) against the parent, computed and never described by hand."""
        if self.parent is None:
            return None
        ((slot, before, after),) = (
            (slot, self.parent.slot(slot), self.slot(slot))
            for slot in SLOTS
            if self.parent.slot(slot) != self.slot(slot)
        )
        return slot, before, after

    @property
    def owned_slots(self) -> tuple[str, ...]:
        """Slots that the backend fills itself."""
        return BACKEND_OWNS[self.backend]

    def ancestors(self) -> Iterator[Variant]:
        """Parent first, root last."""
        variant = self.parent
        while variant is not None:
            yield variant
            variant = variant.parent


assert set(SLOTS) <= {field.name for field in fields(Variant)}
