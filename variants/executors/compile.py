"""Executor `compiled`: torch.compile of the whole step."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule

from variants.executors.executor import TRIAL_STEPS, CompiledStep, Step, WarmUp

# A trace shows generated C++ kernels only if they were built with marks; so the code that is timed has them.
MARKED = {"cpp.enable_kernel_profile": True}
# On a GPU a matrix-vector product reaches the memory's bandwidth only with blocks that are searched for
# (torch/_inductor/decomposition.py says so of its own); without it the hand-written ones win by default.
TUNED = {"coordinate_descent_tuning": True}


class Compiled:
    """torch.compile of the whole step."""

    def __init__(self, **options: Any) -> None:
        self.log: list[WarmUp] = []
        self.options = options

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        backend = partial(
            compile_fx, inner_compile=_without_number, config_patches=MARKED | TUNED | self.options
        )
        compiled = torch.compile(_with_own_code(step), fullgraph=True, dynamic=False, backend=backend)
        for _ in range(TRIAL_STEPS):
            compiled(token)
            restore()
        self.log.append(WarmUp(time.perf_counter() - start))
        return lambda: compiled(token)


def _without_number(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> OutputCode:
    """What torch.compile does by itself, but that the marks of kernels do not name their graph.

    A kernel that two buckets share, and most are, would otherwise be compiled twice, for two seconds each.
    """
    return compile_fx_inner(graph, inputs, **(options | {"graph_id": None}))


def _with_own_code(step: Step) -> Step:
    """The same function with a code object of its own.

    Dynamo keeps compiled graphs per code object, up to a limit: without this every decoder in a process
    would share the cache of `Modules.step`, and the ninth would silently run eager.
    """
    assert isinstance(step, types.MethodType)
    function = step.__func__
    copy = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return types.MethodType(copy, step.__self__)
