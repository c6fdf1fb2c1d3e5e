"""Slot `backend`: what turns a token into logits.

The modules answer `forward` (any number of tokens, eager); every backend answers `step`, which executors
compile or record and the runner times: one token in, one token out, nothing from the host. A backend may take
several tokens at once as well (`extend`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from variants import build_cache
from variants.option import Move, Option, anywhere
from variants.slots.cache import CONCAT, PAGED, STATIC, CacheOption
from variants.slots.kv import AS_PRECISION, KV_BFLOAT16, KV_INT8, KvOption
from variants.slots.precision import PrecisionOption

if TYPE_CHECKING:
    from torch import Tensor

    from variants.backends.modules import Modules
    from variants.model import Model
    from variants.slots.cache import Cache


class Backend(Protocol):
    """What a decode step runs through."""

    def step(self, token: Tensor) -> Tensor:
        """One decode step from `token` int64 [B,1], which it overwrites with the greedy argmax.

        Appends to the cache, advances its length, and returns the logits [B,V].
        """
        ...

    def extend(self, tokens: Tensor, every: bool) -> Tensor | None:
        """As `Trunk.forward`, or None where it leaves so many tokens to the trunk; most leave all."""
        return None

    def verify(self) -> None:
        """Raises RuntimeError where a step saw itself go wrong; waits for the device. Most cannot."""
        return


class Trunk(Backend, Protocol):
    """A model with its cache, for any number of tokens."""

    @property
    def model(self) -> Model:
        """What computes: embeddings, layers and head."""
        ...

    @property
    def cache(self) -> Cache:
        """Where the keys and values of every pass go."""
        ...

    def forward(self, tokens: Tensor, every: bool) -> Tensor:
        """tokens [B,T] int64 -> logits [B,T' or 1,V], of `every` position or at least of the last.

        The cache holds the tokens afterwards.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class BackendOption(Option):
    """`build` takes the trunk, whose model and cache the step shares, and how the weights are stored."""

    build: Callable[[Trunk, PrecisionOption], Backend]
    begin: Callable[[str], None]  # start early, and aside, on what building it for this kind of device needs
    owns: tuple[str, ...]  # slots whose options it does not use in a step: it brings its own
    caches: tuple[CacheOption, ...] | None  # that it reads; None: any
    kvs: tuple[KvOption, ...] | None  # stored so; None: any
    why_not_stored: Callable[[str, CacheOption, KvOption], str | None]  # on this kind of device, or None
    attends_to_bucket: bool  # a step attends to all slots of its bucket; else it stops at the new token


def why_no_one_launch(device: str) -> str | None:
    """None where the one-launch backend can run, else the reason."""
    if device != "cpu":
        return "one launch per step is written for the CPU"
    if sys.platform != "linux":
        return f"the one-launch kernels are built with GCC or Clang on Linux, not on {sys.platform}"
    if build_cache.compiler() is None:
        return "no C++ compiler found: install g++, or name one in CXX, to build the one-launch kernels"
    return None


def why_no_triton(device: str) -> str | None:
    """None where the Triton kernels can run on this kind of device, else the reason."""
    if device != "cuda":
        return "the Triton kernels need a CUDA device; their counterpart here is onelaunch"
    return None if find_spec("triton") else "Triton is not installed"


def why_no_single_launch(device: str) -> str | None:
    """None where a step can be one launch (on a GPU a Triton kernel), else the reason."""
    return (why_no_triton if device == "cuda" else why_no_one_launch)(device)


def stored_anyhow(device: str, cache: CacheOption, kv: KvOption) -> None:
    """The `why_not_stored` of a backend that reads what it takes on every device."""


def _why_not_so_on_a_gpu(device: str, cache: CacheOption, kv: KvOption) -> str | None:
    """One launch is another kernel there."""
    plain = device != "cuda" or (cache is STATIC and not kv.narrow)
    return None if plain else "narrow and paged caches in one launch are written for the CPU"


def why_no_transformers(device: str) -> str | None:
    """None where transformers is installed, else the reason."""
    return None if find_spec("transformers") else "transformers is not installed: pip install transformers"


def _our_modules(trunk: Trunk) -> Modules:
    """The trunk whose weights the kernels know."""
    from variants.backends.modules import Modules

    assert isinstance(trunk, Modules)
    return trunk


def _fused_triton(trunk: Trunk, precision: PrecisionOption) -> Backend:
    from variants.backends.triton_step.steps import TritonStep  # only here: Triton is not everywhere

    modules = _our_modules(trunk)
    return TritonStep(modules.model, modules.static_cache())


def _one_launch(trunk: Trunk, precision: PrecisionOption) -> Backend:
    modules = _our_modules(trunk)
    if modules.model.device.type == "cpu":
        from variants.backends.one_launch.backend import OneLaunch

        return OneLaunch(modules.model, modules.stored_cache(), precision)
    from variants.backends.triton_step.steps import PersistentStep

    return PersistentStep(modules.model, modules.static_cache())


def nothing_ahead(device: str) -> None:
    """Building takes no time worth starting early."""


def _compile_ahead(device: str) -> None:
    """The C++ kernels, for half a minute at first use."""
    if device == "cpu":
        from variants.backends.one_launch import library

        library.begin()


FEWER_LAUNCHES = (
    Move("short", True, "one launch, or few, instead of hundreds"),
    Move("ttft", False, "the prefill is run eagerly"),
)

MODULES = BackendOption(
    name="modules",
    build=lambda trunk, precision: trunk,
    begin=nothing_ahead,
    owns=(),
    caches=None,
    kvs=None,
    why_not_stored=stored_anyhow,
    attends_to_bucket=True,
    moves=(),
    why_not=anywhere,
)
TRANSFORMERS = BackendOption(
    name="transformers",
    build=lambda trunk, precision: trunk,
    begin=nothing_ahead,
    owns=("mask", "head", "attention"),
    caches=(CONCAT, STATIC),
    kvs=(AS_PRECISION,),
    why_not_stored=stored_anyhow,
    attends_to_bucket=True,
    moves=(),
    why_not=why_no_transformers,
)
FUSED_TRITON = BackendOption(
    name="fused Triton",
    build=_fused_triton,
    begin=nothing_ahead,
    owns=("mask", "head", "attention"),
    caches=(STATIC,),
    kvs=(AS_PRECISION,),
    why_not_stored=stored_anyhow,
    attends_to_bucket=False,
    moves=FEWER_LAUNCHES,
    why_not=why_no_triton,
)
ONE_LAUNCH = BackendOption(
    name="one launch",
    build=_one_launch,
    begin=_compile_ahead,
    owns=("mask", "head", "attention"),
    caches=(STATIC, PAGED),
    kvs=(AS_PRECISION, KV_BFLOAT16, KV_INT8),
    why_not_stored=_why_not_so_on_a_gpu,
    attends_to_bucket=False,
    moves=FEWER_LAUNCHES,
    why_not=why_no_single_launch,
)


def shared_settings() -> dict[Callable[[Any], object], object]:
    """What torch keeps for the whole process, by the function that sets it."""
    import torch

    return {
        torch.set_num_threads: torch.get_num_threads(),
        torch.set_default_dtype: torch.get_default_dtype(),
        torch.use_deterministic_algorithms: torch.are_deterministic_algorithms_enabled(),
        torch.set_float32_matmul_precision: torch.get_float32_matmul_precision(),
    }


def keep_settings(shared: dict[Callable[[Any], object], object]) -> None:
    """Put back what was changed of them. Raises RuntimeError then: other rungs are measured under it."""
    changed = [put for put, now in shared_settings().items() if now != shared[put]]
    for put in changed:
        put(shared[put])
    if changed:
        names = ", ".join(f"torch.{put.__name__}" for put in changed)
        raise RuntimeError(f"it changed, by {names}, what all rungs are measured under")
