"""Slot `precision`: how the weights are stored, and the arithmetic that goes with it.

int8 and int4 are made when the model is loaded (`variants.slots.quantised`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from variants.config import DTYPE_BYTES
from variants.option import Move, Option, anywhere

if TYPE_CHECKING:
    from variants.model import GPT

FEWER_BYTES = Move("short", True, "fewer bytes of weights to read")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrecisionOption(Option):
    """`build` gives the model in this precision: itself where nothing changes, else a converted copy."""

    build: Callable[[GPT], GPT]
    dtype: str  # torch's name for the type of activations, norms and embeddings
    bytes_per_weight: float  # as a step reads them, scales included (one per output row: too few to count)
    # relative rounding unit of the arithmetic, by which the gate bounds plain eager itself; of int8 and int4
    # that of the activations, which become int8
    rounding: float

    @property
    def plain(self) -> bool:
        """Whether weights are stored as they are computed with, so that a ladder can start from it."""
        return self.name == self.dtype


def _in_dtype(name: str, model: GPT) -> GPT:
    import torch

    dtype = getattr(torch, name)
    return model if model.dtype == dtype else copy.deepcopy(model).to(dtype)


def _int8(model: GPT) -> GPT:
    from variants.slots.quantised import Int8Linear, quantised

    return quantised(model, Int8Linear)


def _int4(model: GPT) -> GPT:
    from variants.slots.quantised import Int4Linear, quantised

    return quantised(model, Int4Linear)


def why_no_int4(device: str) -> str | None:
    """None where four-bit weights can run on this kind of device, else the reason."""
    return None if device == "cpu" else "four-bit weights are written for the CPU"


FLOAT32 = PrecisionOption(
    name="float32",
    build=partial(_in_dtype, "float32"),
    dtype="float32",
    bytes_per_weight=DTYPE_BYTES["float32"],
    rounding=2.0**-23,
    moves=(),
    why_not=anywhere,
)
BFLOAT16 = PrecisionOption(
    name="bfloat16",
    build=partial(_in_dtype, "bfloat16"),
    dtype="bfloat16",
    bytes_per_weight=DTYPE_BYTES["bfloat16"],
    rounding=2.0**-8,
    moves=(FEWER_BYTES,),
    why_not=anywhere,
)
FLOAT64 = PrecisionOption(
    name="float64",
    build=partial(_in_dtype, "float64"),
    dtype="float64",
    bytes_per_weight=DTYPE_BYTES["float64"],
    rounding=2.0**-52,
    moves=(),
    why_not=anywhere,
)
INT8 = PrecisionOption(
    name="int8",
    build=_int8,
    dtype="float32",
    bytes_per_weight=1,
    rounding=2.0**-7,
    moves=(FEWER_BYTES,),
    why_not=anywhere,
)
INT4 = PrecisionOption(
    name="int4",
    build=_int4,
    dtype="float32",
    bytes_per_weight=0.5 + 4 / 64,  # a float32 scale per group of 64
    rounding=2.0**-7,
    moves=(FEWER_BYTES,),
    why_not=why_no_int4,
)
