"""Slot `executor`: how a step is run.

An executor turns `step(token)` into a compiled step without arguments that works on the same buffers. Its log
says what each compiled step cost to build: that is the price of the variant.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from os import environ
from typing import TYPE_CHECKING, Protocol, TypeAlias

from variants.option import Move, Option, anywhere

if TYPE_CHECKING:
    from torch import Tensor

Step: TypeAlias = "Callable[[Tensor], Tensor]"
CompiledStep: TypeAlias = "Callable[[], Tensor]"
TRIAL_STEPS = 3  # the first compiles or records, the next two show that nothing is left to do


@dataclass
class WarmUp:
    """What one compiled step cost. `bytes` counts what it keeps, by name (graph pool, library on disk)."""

    seconds: float
    bytes: dict[str, int] = field(default_factory=dict)


def compiled_graphs() -> int:
    """Graphs that torch.compile has built in this process. Loading it for a count would take seconds."""
    loaded = sys.modules.get("torch._dynamo.utils")
    return 0 if loaded is None else int(loaded.counters["stats"]["unique_graphs"])


class Executor(Protocol):
    """How a step is run: what makes a compiled step of it. `log`: what each one cost to build."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ExecutorOption(Option):
    """`build` takes nothing; `needs_fixed_shape`: it records tensors, whose shapes must stay."""

    build: Callable[[], Executor]
    needs_fixed_shape: bool
    compiles: bool  # building runs a compiler for many seconds


def why_no_compiler(device: str) -> str | None:
    """None where torch.compile can build (C++ on CPU, Triton on CUDA), else the reason."""
    if device == "mps":
        return "torch.compile of this step is not supported on MPS"
    names = ("cl",) if sys.platform == "win32" else (environ.get("CXX", "c++"), "g++")
    if device == "cuda" or any(map(shutil.which, names)):
        return None
    return f"torch.compile needs a C++ compiler, and none was found: set CXX, or install {names[-1]}"


def why_no_graph(device: str) -> str | None:
    """None where CUDA graphs exist, else the reason, with the counterpart that runs everywhere."""
    return None if device == "cuda" else "needs a CUDA device; its counterpart here is tape"


def why_no_compiled_graph(device: str) -> str | None:
    """None where a CUDA graph can hold the compiled step, else the reason, with its counterpart."""
    return None if device == "cuda" else "needs a CUDA device; its counterpart here is compile"


def _compiled() -> Executor:
    from variants.executors.compile import Compiled

    return Compiled()


def _compiled_cpp() -> Executor:
    from variants.executors.compile import Compiled

    return Compiled(cpp_wrapper=True)


def _aot() -> Executor:
    from variants.executors.aoti import Aot

    return Aot()


def _tape() -> Executor:
    from variants.executors.tape import OpTape

    return OpTape()


def _graph() -> Executor:
    from variants.executors.cuda_graph import Graphed

    return Graphed(Eager())


def _compiled_graph() -> Executor:
    from variants.executors.cuda_graph import Graphed

    return Graphed(_compiled())


PREFILL_STAYS = Move("ttft", False, "the prefill is run eagerly")
LESS_HOST = (Move("short", True, "less Python, fewer launches or ops"), PREFILL_STAYS)

EAGER = ExecutorOption(
    name="eager", build=Eager, needs_fixed_shape=False, compiles=False, moves=(), why_not=anywhere
)
COMPILED = ExecutorOption(
    name="compiled",
    build=_compiled,
    needs_fixed_shape=True,
    compiles=True,
    moves=LESS_HOST,
    why_not=why_no_compiler,
)
COMPILED_CPP = ExecutorOption(
    name="compiled, C++ wrapper",
    build=_compiled_cpp,
    needs_fixed_shape=True,
    compiles=True,
    moves=LESS_HOST,
    why_not=why_no_compiler,
)
COMPILED_GRAPH = ExecutorOption(
    name="compiled in a CUDA graph",
    build=_compiled_graph,
    needs_fixed_shape=True,
    compiles=True,
    moves=LESS_HOST,
    why_not=why_no_compiled_graph,
)
AOT = ExecutorOption(
    name="AOTInductor",
    build=_aot,
    needs_fixed_shape=True,
    compiles=True,
    moves=LESS_HOST,
    why_not=why_no_compiler,
)
TAPE = ExecutorOption(
    name="op tape",
    build=_tape,
    needs_fixed_shape=True,
    compiles=False,
    moves=(Move("short", True, "the model's Python is gone"), PREFILL_STAYS),
    why_not=anywhere,
)
GRAPH = ExecutorOption(
    name="CUDA graph",
    build=_graph,
    needs_fixed_shape=True,
    compiles=False,
    moves=LESS_HOST,
    why_not=why_no_graph,
)
