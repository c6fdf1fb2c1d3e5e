"""What a record says of one variant."""

from __future__ import annotations

from typing import Literal, NamedTuple

from profiling.results.record.part import Count, Ms, Part, Positive, Size
from profiling.results.record.proof import GateResult
from profiling.results.record.traces import Trace

Status = Literal["planned", "proven", "failed", "not run"]


class StepPrediction(Part, frozen=True):
    """One step, computed before it was timed: bytes, MACs, and the ms that the measured peaks give them.

    None: of a model whose arithmetic is not known here.
    """

    bytes: Size
    macs: Count | None
    memory_ms: Ms
    arithmetic_ms: Ms | None


class Ops(Part, frozen=True):
    """ATen operations that one eager step dispatches."""

    computing_ops: Count
    view_ops: Count


class Memory(Part, frozen=True):
    """Bytes that a decoder holds. `cache_formula_bytes` is 2 L Hkv D per token and row, at the tokens held;
    `allocated_bytes` is what CUDA's allocator says, None elsewhere.
    """

    weights_bytes: Count
    cache_bytes: Count
    cache_formula_bytes: Count
    mask_bytes: Count
    compiled_step_bytes: Count
    allocated_bytes: Count | None


class CompiledStep(Part, frozen=True):
    """What one compiled, recorded or captured step cost to build. `bytes`: what it keeps, by name."""

    seconds: Positive
    bytes: dict[str, Count]


class Difference(NamedTuple):
    """The one slot in which a variant differs from its parent: before -> after."""

    slot: str
    before: str
    after: str


class Entry(Part, frozen=True, kw_only=True):
    """One variant: what it is, whether it is proven here, what it should cost, and what it costs to build.

    `elsewhere`: an engine in a process of its own. `implementation`: which of its code's own ways of
    computing the model takes; of an engine version and settings. Keys of `prediction` and `slots` (that a
    step attends over) are contexts, of `narrow_bytes` (that a narrow model must read) widths.
    """

    parent: str | None
    difference: Difference | None
    owns: list[str]
    removes: str
    pages: str
    precision: str
    elsewhere: bool = False
    status: Status = "planned"
    reason: str = ""
    gate: GateResult | None = None
    compiled_steps: list[CompiledStep] = []
    warm_up_s: Positive | None = None
    prediction: dict[int, StepPrediction] = {}
    ops: Ops | None = None
    memory: Memory | None = None
    slots: dict[int, Size] = {}
    narrow_bytes: dict[int, Size] = {}
    trace: Trace | None = None
    implementation: str = ""
