"""Every kernel as an operator of torch.library, which torch.compile, the gate and the profiler see.

Operators carry only tensors and numbers: a kernel's geometry is planned again from `setting` (cached), so
that a graph saved by one process means the same in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from variants.backends.triton_step import kernels, persistent, plan
from variants.backends.triton_step.plan import Geometry, Setting


def _launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    kernel[(programs,)](*arguments, num_warps=plan.WARPS, **options)


def _flags(**options: bool) -> dict[str, bool]:
    """Options of a launch that are set: compilers for other makers' chips refuse the very name of one."""
    return {name: value for name, value in options.items() if value}


def geometry(setting: Sequence[int], epsilon: float) -> Geometry:
    """The compile-time constants that belong to `setting`."""
    return plan.plan(Setting(*setting), epsilon)


@torch.library.custom_op("triton_step::qkv", mutates_args=("x", "q", "k_cache", "v_cache"))
def qkv(
    token: Tensor,
    length: Tensor,
    wte: Tensor,
    wpe: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    setting: Sequence[int],
    epsilon: float,
    first: bool,
    pdl: bool,
) -> None:
    """Norm of x [programs,B,C], projection to q and caches; the `first` of a step puts the embedding in x."""
    g = geometry(setting, epsilon)
    tensors = (token, length, wte, wpe, x, weight, scale, bias, gain, shift, q, k_cache, v_cache)
    _launch(kernels.qkv_kernel, g.programs, *tensors, g, first, pdl, **_flags(launch_pdl=pdl))


@torch.library.custom_op("triton_step::attend", mutates_args=("k_cache", "o", "partial", "weight", "arrived"))
def attend(
    length: Tensor,
    positions: Tensor,
    q_gain: Tensor,
    k_gain: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    o: Tensor,
    partial: Tensor,
    weight: Tensor,
    arrived: Tensor,
    setting: Sequence[int],
    epsilon: float,
    pdl: bool,
) -> None:
    """Attention of q over slots 0..length, into o [B,H*D]. Rotary: q [B,(H+Hkv)*D] holds the new keys too,
    which are turned by the row of `positions` and appended here, behind norms with these gains if there are
    some.
    """
    g = geometry(setting, epsilon)
    tensors = (length, positions, q_gain, k_gain, q, k_cache, v_cache, o, partial, weight, arrived)
    _launch(kernels.attend_kernel, g.batch * g.n_head * g.splits, *tensors, g, pdl, **_flags(launch_pdl=pdl))


@torch.library.custom_op("triton_step::residual", mutates_args=("x",))
def residual(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor,
    setting: Sequence[int],
    epsilon: float,
    down: bool,
    pdl: bool,
) -> None:
    """x [B,C] += y weight^T + bias, with the matrix `down` or `out`."""
    g = geometry(setting, epsilon)
    matrix = g.down if down else g.out
    _launch(
        kernels.residual_kernel,
        g.programs,
        x,
        y,
        weight,
        scale,
        bias,
        matrix,
        g,
        pdl,
        **_flags(launch_pdl=pdl),
    )


@torch.library.custom_op("triton_step::up", mutates_args=("h",))
def up(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    h: Tensor,
    setting: Sequence[int],
    epsilon: float,
    pdl: bool,
) -> None:
    """h [B,F] = activation(norm(x) weight^T + bias), of the gate times the rest where there is one."""
    g = geometry(setting, epsilon)
    tensors = (x, weight, scale, bias, gain, shift, h)
    _launch(kernels.up_kernel, g.programs, *tensors, g, pdl, **_flags(launch_pdl=pdl))


@torch.library.custom_op(
    "triton_step::head", mutates_args=("token", "length", "logits", "value", "index", "counters")
)
def head(
    token: Tensor,
    length: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    logits: Tensor,
    value: Tensor,
    index: Tensor,
    counters: Tensor,
    setting: Sequence[int],
    epsilon: float,
    pdl: bool,
) -> None:
    """logits [B,V] of norm(x); their argmax into token, length + 1 into length."""
    g = geometry(setting, epsilon)
    tensors = (token, length, x, weight, scale, bias, gain, shift, logits, value, index, counters)
    _launch(kernels.head_kernel, g.programs, *tensors, g, pdl, **_flags(launch_pdl=pdl))


@torch.library.custom_op(
    "triton_step::one_step",
    mutates_args=("token", "length", "k_caches", "v_caches", "scratch", "logits", "stamps"),
)
def one_step(
    table: Tensor,
    token: Tensor,
    length: Tensor,
    wte: Tensor,
    wpe: Tensor,
    types: Sequence[Tensor],
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
    scratch: Sequence[Tensor],
    logits: Tensor,
    stamps: Tensor | None,
    setting: Sequence[int],
    epsilon: float,
    polls: int,
    cooperative: bool,
) -> None:
    """The whole step in one launch. Weights and caches are found through the addresses in `table`; a matrix
    and a vector in `types` say what they are made of. `stamps` int64 [programs,10*layers+2]: the clock's."""
    g = geometry(setting, epsilon)
    tensors = (table, token, length, wte, wpe, *types, k_caches[0], *scratch, logits, stamps)
    options = _flags(launch_cooperative_grid=cooperative)
    _launch(persistent.one_step, g.programs, *tensors, g, polls, **options)
