"""Slot `executor`: how a step is run.

An executor turns `step(token)` into a compiled step without arguments that works on the same buffers. Its log
says what each compiled step cost to build: that is the price of the variant.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from variants.executors.aoti import MARKED, compile_step
from variants.executors.cuda_graph import capture
from variants.executors.tape import record

Step = Callable[[Tensor], Tensor]
CompiledStep = Callable[[], Tensor]
TRIAL_STEPS = 3  # the first compiles or records, the next two show that nothing is left to do


@dataclass
class WarmUp:
    """What one compiled step cost. `bytes` counts what it keeps, by name (graph pool, library on disk)."""

    seconds: float
    bytes: dict[str, int] = field(default_factory=dict)


class Executor(Protocol):
    log: list[WarmUp]

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        """A compiled step equal to `step(token)`. `restore` undoes a trial step."""
        ...


class Eager:
    """Python calls every op."""

    def __init__(self) -> None:
        self.log: list[WarmUp] = []

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        return lambda: step(token)


class Compiled:
    """torch.compile of the whole step."""

    def __init__(self, **options: Any) -> None:
        self.log: list[WarmUp] = []
        self.options = options

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        compiled = torch.compile(
            _with_own_code(step), fullgraph=True, dynamic=False, options=MARKED | self.options
        )
        for _ in range(TRIAL_STEPS):
            compiled(token)
            restore()
        self.log.append(WarmUp(time.perf_counter() - start))
        return lambda: compiled(token)


def _with_own_code(step: Step) -> Step:
    """The same function with a code object of its own.

    Dynamo keeps compiled graphs per code object, up to a limit: without this every decoder in a process
    would share the cache of `Modules.step`, and the ninth would silently run eager.
    """
    assert isinstance(step, types.MethodType)
    function = step.__func__
    own = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return types.MethodType(own, step.__self__)


class Aot:
    """AOTInductor: a compiled library, kept between runs, with no Python in the step."""

    def __init__(self) -> None:
        self.log: list[WarmUp] = []

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        compiled_step = compile_step(step, token)
        for _ in range(TRIAL_STEPS):
            compiled_step()
            restore()
        size = {"library": compiled_step.package.stat().st_size}
        self.log.append(WarmUp(time.perf_counter() - start, size))
        return compiled_step


class OpTape:
    """The recorded ATen operations of one step, replayed without the model's code."""

    def __init__(self) -> None:
        self.log: list[WarmUp] = []

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        tape = record(step, token, restore)
        self.log.append(WarmUp(time.perf_counter() - start))
        return tape.replay


class Graphed:
    """A CUDA graph over another executor's compiled step. All buckets share one memory pool."""

    def __init__(self, inner: Executor) -> None:
        self.log: list[WarmUp] = []
        self.inner = inner
        self.pool: Any = None

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = capture(step, self.inner.build(step, token, restore), token, restore, self.pool)
        self.log.append(WarmUp(time.perf_counter() - start, {"graph pool": graph.pool_bytes}))
        return graph.replay


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "eager": Eager,
    "compiled": Compiled,
    "compiled, C++ wrapper": lambda: Compiled(cpp_wrapper=True),
    "AOTInductor": Aot,
    "compiled in a CUDA graph": lambda: Graphed(Compiled()),
    "op tape": OpTape,
    "CUDA graph": lambda: Graphed(Eager()),
}
