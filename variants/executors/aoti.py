"""Executor AOTInductor: the step exported, compiled to a library, and run without Python inside.

Compiled once per graph, machine, compiler and torch version, and kept (`variants.build_cache`): exporting
takes seconds, compiling a minute. The library holds no weights. It is given the model's own tensors, in
place, and so serves any weights of the same shape.
"""

from __future__ import annotations

import tempfile
import time
import types
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from variants import build_cache
from variants.backends.modules import Modules
from variants.executors.compile import MARKED
from variants.executors.executor import TRIAL_STEPS, CompiledStep, Step, WarmUp

Owner = TypeVar("Owner")
Held = dict[str, Tensor | list[Tensor]]  # of a cache or a mask, by attribute
PACKAGE = "step.pt2"
OPTIONS = MARKED | {"aot_inductor.package_constants_in_so": False}


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


@dataclass
class AotStep:
    """A loaded library with all that it points to; calling it runs one step and returns the logits [B,V]."""

    loader: Any
    inputs: list[Tensor]
    weights: dict[str, Tensor]  # the library keeps bare pointers to them
    package: Path

    def __call__(self) -> Tensor:
        logits: Tensor = self.loader.run(self.inputs)[0]
        return logits


def compile_step(step: Step, token: Tensor) -> AotStep:
    """A compiled step equal to `step(token)` over the same buffers."""
    assert isinstance(step, types.MethodType) and isinstance(step.__self__, Modules)
    backend = step.__self__
    inputs = (token, _tensors(backend.cache), _tensors(backend.mask))
    with torch.no_grad():
        exported = torch.export.export(_Pure(backend), inputs, strict=False)
    package = build_cache.folder("aoti", *_identity(exported)) / PACKAGE
    if not package.exists():
        _build(exported, package)
    loader = torch._inductor.aoti_load_package(str(package)).loader
    weights = {name: exported.state_dict[name] for name in loader.get_constant_fqns()}
    loader.load_constants(weights, use_inactive=False, check_full_update=True, user_managed=True)
    return AotStep(loader, tree_leaves(inputs), weights, package)


def _identity(exported: ExportedProgram) -> list[str]:
    """All that the library depends on but the toolchain: operations, shapes, options."""
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    shapes = [str((tuple(n.meta["val"].shape), n.meta["val"].dtype, n.meta["val"].device)) for n in nodes]
    return [exported.graph_module.code, str(exported.graph_signature), *shapes, str(OPTIONS)]


class _Pure(nn.Module):
    """The step as a function of every tensor that it reads or writes but the weights, which are its own."""

    def __init__(self, backend: Modules) -> None:
        super().__init__()
        self.model = backend.model
        self.backend = backend

    def forward(self, token: Tensor, cache: Held, mask: Held) -> Tensor:
        """token int64 [B,1] and the tensors of cache and mask by attribute -> logits [B,V]."""
        b = self.backend
        over = Modules(b.model, _over(b.cache, cache), _over(b.mask, mask), b.attention, b.head)
        return over.step(token)


def _tensors(owner: object) -> Held:
    """The tensors and lists of tensors of an object, by attribute."""
    return {name: value for name, value in vars(owner).items() if isinstance(value, Tensor | list)}


def _over(owner: Owner, tensors: Held) -> Owner:
    """A copy of this cache or mask that works on these tensors."""
    other = copy(owner)
    vars(other).update(tensors)
    return other


def _build(exported: ExportedProgram, package: Path) -> None:
    package.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package.parent) as scratch:
        fresh = Path(scratch) / PACKAGE
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(fresh), inductor_configs=dict(OPTIONS)
        )
        fresh.replace(package)
