"""Triton's interpreter, made to compute what a GPU computes where these kernels need it.

It has no inline assembly; it keeps bfloat16 as bit patterns in uint16 and then truncates instead of rounding,
reads the bits as integers in `tl.dot` and in casts from int8; Triton 3.6 with NumPy 2.4 cannot take a tensor
as a bound of `range`; and every call of a function inside a kernel patches the language modules again, which
took most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from variants.backends.triton_step.assembly import CLOCK, PREFETCH_LINE, PREFETCH_RUN

BUILDER = interpreter.InterpreterBuilder
HANDLE = interpreter.TensorHandle


def _hint(address: Any, size: Any) -> int:
    """Changes no result."""
    return 0


# what inline assembly does, by its text: a function of its operands' values; the clock counts how often it
# was asked
ASSEMBLY: dict[str, Callable[..., Any]] = {
    PREFETCH_RUN.value: _hint,
    PREFETCH_LINE.value: _hint,
    CLOCK.value: count(1).__next__,
}


def to_float32(bits: Any) -> Any:
    """bfloat16 bit patterns, uint16, as the float32 they stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: Any) -> Any:
    """Nearest bfloat16, ties to even, as uint16 bit patterns; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def correct() -> None:
    """Install the corrections; once is enough, again does no harm."""
    if getattr(BUILDER, "corrected", False):
        return
    BUILDER.cast_impl = BUILDER.create_fp_to_fp = _rounding_cast(BUILDER.cast_impl)
    BUILDER.create_dot = _dot_of_values(BUILDER.create_dot)
    BUILDER.create_inline_asm = _known_assembly
    interpreter._patch_lang_tensor = _usable_as_bound(interpreter._patch_lang_tensor)
    interpreter._patch_lang = _once_per_launch(interpreter._patch_lang)
    BUILDER.corrected = True


def _known_assembly(self: Any, text: str, constraints: str, operands: Any, types: Any, *rest: Any) -> Any:
    """The result of a piece of `ASSEMBLY`, of the first of `types`."""
    element = types[0].scalar
    result = ASSEMBLY[text](*(operand.data for operand in operands))
    value = np.asarray(result, interpreter._get_np_dtype(element)).reshape(-1)
    return SimpleNamespace(get_result=lambda number: HANDLE(value, element))


def _rounding_cast(plain: Any) -> Any:
    """Casts to and from bfloat16 that round to the nearest."""

    def cast(self: Any, source: Any, target: Any, *rounding: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if tl.bfloat16 not in (before, after) or before == after:
            return plain(self, source, target)
        values = to_float32(source.data) if before == tl.bfloat16 else source.data.astype(np.float32)
        if after == tl.bfloat16:
            return HANDLE(to_bfloat16(values), after)
        return HANDLE(values.astype(interpreter._get_np_dtype(target)), after)

    return cast


def _dot_of_values(plain: Any) -> Any:
    """`tl.dot` of what bfloat16 bit patterns stand for."""

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            HANDLE(to_float32(t.data), tl.float32) if t.dtype.scalar == tl.bfloat16 else t for t in (a, b)
        )
        return plain(self, a, b, *rest)

    return dot


def _usable_as_bound(plain: Any) -> Any:
    """Tensors of one value that `range` takes."""

    def patch_tensor(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    return patch_tensor


def _once_per_launch(plain: Any) -> Any:
    """Patch the modules that a function sees, each set of them once per launch."""
    patched = set[frozenset[int]]()

    def patch_modules(function: Any) -> Any:
        modules = frozenset(
            id(value) for value in function.__globals__.values() if value is tl or value is tl.core
        )
        if modules in patched:
            return None  # only the launch itself, which comes first, uses the result
        patched.add(modules)
        scope = plain(function)
        restore = scope.restore

        def forget_and_restore() -> None:
            patched.clear()
            restore()

        scope.restore = forget_and_restore
        return scope

    return patch_modules
