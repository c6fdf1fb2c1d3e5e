"""The op tape: one decode step recorded as ATen calls and replayed as straight-line Python.

The CPU counterpart of a CUDA graph: the same operations on the same buffers, without the model's code.
The replay is generated source (an interpreted list was slower than eager); views of buffers that never
move are taken once, at recording time, as a graph would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from variants.executors.capture_rules import check_capturable, refuse_host_sync
from variants.executors.executor import CompiledStep, Step, WarmUp


class OpTape:
    """The recorded ATen operations of one step, replayed without the model's code."""

    def __init__(self) -> None:
        self.log: list[WarmUp] = []

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        tape = record(step, token, restore)
        self.log.append(WarmUp(time.perf_counter() - start))
        return tape.replay


@dataclass
class Call:
    """One recorded operation: what was called, with what, and what came out."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


@dataclass
class Tape:
    """A recorded step. `source` is the generated Python that `replay` runs."""

    calls: list[Call]
    source: str
    run: Callable[[], Tensor]

    def replay(self) -> Tensor:
        with torch.inference_mode():
            return self.run()


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_host_sync(func)
        result = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, args, kwargs or {}, result))
        return result


def record(step: Step, token: Tensor, restore: Callable[[], None]) -> Tape:
    """Record `step(token)` over the buffers it uses. Raises CaptureError naming a host sync."""
    check_capturable(step, token, restore)
    with torch.inference_mode(), _Recorder() as recorder:
        logits = step(token)
    restore()
    return _generate(recorder.calls, logits)


def _tensors(call: Call) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]


class _Writer:
    """Turns calls into source: constants by name, results into registers that are reused once dead."""

    def __init__(self, calls: list[Call], logits: Tensor) -> None:
        self.names: dict[int, str] = {}
        self.constants: dict[str, Any] = {}
        self.lines: list[str] = []
        self.free: list[str] = []
        self.registers = 0
        self.last_use = {id(t): index for index, call in enumerate(calls) for t in _tensors(call)}
        self.last_use[id(logits)] = len(calls)

    def constant(self, value: Any, prefix: str) -> str:
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    def name(self, value: Any) -> str:
        """The source of one argument."""
        if isinstance(value, Tensor):
            if id(value) not in self.names:
                self.names[id(value)] = self.constant(value, "c")
            return self.names[id(value)]
        if isinstance(value, list | tuple):
            inner = ", ".join(self.name(item) for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
        if (
            value is None
            or isinstance(value, bool | int | str)
            or (isinstance(value, float) and isfinite(value))
        ):
            return repr(value)
        return self.constant(value, "v")

    def is_fixed(self, call: Call) -> bool:
        """A view of memory that never moves: taken once, no call at replay.

        The schema alone does not tell: `reshape` and `contiguous` are views in it and copy where they must.
        """
        if not call.func.is_view or not all(self.name(tensor).startswith("c") for tensor in _tensors(call)):
            return False
        memory = {tensor.untyped_storage().data_ptr() for tensor in _tensors(call)}
        views = [leaf for leaf in tree_leaves(call.result) if isinstance(leaf, Tensor)]
        return all(view.untyped_storage().data_ptr() in memory for view in views)

    def write(self, index: int, call: Call) -> None:
        outputs = call.result if isinstance(call.result, list | tuple) else [call.result]
        if self.is_fixed(call):
            for output in outputs:
                self.name(output)
            return
        arguments = [self.name(value) for value in call.args]
        arguments += [f"{key}={self.name(value)}" for key, value in call.kwargs.items()]
        source = f"{self.constant(call.func._op, 'f')}({', '.join(arguments)})"
        fresh = [output for output in outputs if isinstance(output, Tensor) and id(output) not in self.names]
        self._release(index, call)
        if not fresh:
            self.lines.append(source)
            return
        targets = [self._target(output, fresh) for output in outputs]
        several = isinstance(call.result, list | tuple)
        self.lines.append(f"{', '.join(targets)}{',' if several else ''} = {source}")

    def _target(self, output: Any, fresh: list[Tensor]) -> str:
        if (
            not isinstance(output, Tensor)
            or id(output) not in self.last_use
            or all(output is not t for t in fresh)
        ):
            return "_"
        self.names[id(output)] = self.free.pop() if self.free else self._register()
        return self.names[id(output)]

    def _register(self) -> str:
        self.registers += 1
        return f"r{self.registers}"

    def _release(self, index: int, call: Call) -> None:
        dead = {id(tensor) for tensor in _tensors(call) if self.last_use[id(tensor)] == index}
        for key in dead:
            if self.names[key].startswith("r"):
                self.free.append(self.names[key])


def _generate(calls: list[Call], logits: Tensor) -> Tape:
    writer = _Writer(calls, logits)
    for index, call in enumerate(calls):
        writer.write(index, call)
    body = "\n    ".join([*writer.lines, f"return {writer.name(logits)}"])
    source = f"def run():\n    {body}\n"
    namespace = dict(writer.constants)
    exec(compile(source, "<op tape>", "exec"), namespace)
    return Tape(calls, source, namespace["run"])
