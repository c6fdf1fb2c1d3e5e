"""Faults that are wrong in one region only, each for every rung that has what it breaks.

`profiling.gate.faults` has the bugs that are known from the wild, with the text that they give. These are
here to be caught: each is wrong at one context, in numerics that random weights never exercise, in a loop's
last slots, in a stored scale, or after many steps, so that a gate which does not look there passes it. Nearly
all are written with tensors, so that a recording of a step holds them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiling.gate import Gate
from variants.backends.backend import MODULES
from variants.decoder import Decoder
from variants.model import Model
from variants.spec import Variant

ONE_CONTEXT, NUMERICS, LOOPS = "one context", "numerics", "loops over slots"
SCALES, MANY_STEPS = "stored scales", "many steps"
POSITIONS, STORED = "positions and masks", "what is held"
RECORDED, PAGES = "recorded constants", "page tables"
# What needs the full-size model; all else shows in the small one.
MADE_FOR = {ONE_CONTEXT: ("every slot", "contexts"), SCALES: ("numerics", "weights")}
FROM_THE_END = 14  # slots: a context that a run would time, away from prompts' ends and from the buckets'
Inject = Callable[[Decoder], None]


def _nothing_left() -> None:
    """Remove nothing: the fault ends with its decoder."""


@dataclass(frozen=True)
class Planted:
    """`fits`: whether a variant has what it breaks; `remove` takes it from where it outlives its decoder."""

    kind: str
    name: str
    inject: Inject
    fits: Callable[[Variant], bool]
    remove: Callable[[], None] = _nothing_left


def planted(kind: str, fits: Callable[[Variant], bool], *injects: Inject) -> list[Planted]:
    """One of each function, named like it."""
    return [Planted(kind, inject.__name__.replace("_", " "), inject, fits) for inject in injects]


def cached(variant: Variant) -> bool:
    """A step through our modules that reads a cache."""
    return variant.backend is MODULES and variant.cache.keeps


def fixed_shape(variant: Variant) -> bool:
    """A step through our modules whose cache has slots, so that a key can be written to a wrong one."""
    return cached(variant) and variant.cache.fixed_shape


def eager(variant: Variant) -> bool:
    """A cached step that runs Python each time: a recording would hold one state of what is counted."""
    return cached(variant) and not variant.executor.needs_fixed_shape


def timed(decoder: Decoder) -> int:
    """The context that `gate_for` times."""
    return decoder.capacity - FROM_THE_END


def gate_for(model: Model, precision: str, steps: int, seed: int) -> Gate:
    """Of decoders that hold the model's whole context, and time one of its last ones."""
    capacity = model.config.n_ctx
    timed = (capacity - FROM_THE_END,)
    return Gate(model, precision, capacity=capacity, contexts=timed, steps=steps, forced=steps, seed=seed)


def first_to_catch(variant: Variant, gate: Gate, fault: Planted | None) -> tuple[str, str]:
    """(check that fails first on a decoder with this fault, why), or ("", "") where none does.

    Checks that are made for its kind come first, then those of the small model, which take less.
    """
    checks = [(judge, name) for judge in (gate.small, gate) for name in judge.checks]
    if fault is not None:
        checks.sort(key=lambda check: check[1] not in MADE_FOR.get(fault.kind, ()))
    decoders: dict[Gate, Decoder] = {}
    try:
        for judge, name in checks:
            if judge not in decoders:
                decoders[judge] = _decoder(variant, judge)
                if fault is not None:
                    fault.inject(decoders[judge])
            result = judge.check_only(decoders[judge], name)
            if result.status == "fail":
                return name, result.reason
    finally:
        if fault is not None:
            fault.remove()
    return "", ""


def _decoder(variant: Variant, judge: Gate) -> Decoder:
    capacity = judge.capacity or judge.model.config.n_ctx
    buckets = capacity * 2 // 3, capacity
    return Decoder.of(variant, judge.model, batch=judge.batch, capacity=capacity, buckets=buckets)
