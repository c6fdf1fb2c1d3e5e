"""Faults in the one-launch kernels: a copy of their sources in which every fault can be switched on.

The sources themselves stay free of them. Each edit replaces a text that stands there once, and the copy
computes what that says until the fault is planted; so one build holds all of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from profiling.gate.planted.hunt import LOOPS, MANY_STEPS, NUMERICS, ONE_CONTEXT, SCALES, Planted, timed
from variants.backends.backend import ONE_LAUNCH
from variants.backends.one_launch import library
from variants.decoder import Decoder
from variants.errors import UserError
from variants.spec import Variant

ALL = ("float32", "bfloat16", "int8", "int4")
QUANTISED = ("int8", "int4")
FINE = ("float32",)  # what the rounding of the others would hide


@dataclass(frozen=True)
class Edit:
    """In `wrong`, ON stands for whether this fault is planted, and `odd` for the one position where it is."""

    kind: str
    name: str
    file: str
    right: str
    wrong: str
    precisions: tuple[str, ...] = ALL


EDITS = (
    Edit(
        ONE_CONTEXT,
        "position off by one at one context",
        "step.h",
        "m_.position_table) + position_ * m_.width",
        "m_.position_table) + (position_ - (ON && position_ == odd)) * m_.width",
    ),
    Edit(
        ONE_CONTEXT,
        "written one slot early at one context",
        "step.h",
        "reinterpret_cast<Scalar*>(lane) + position_ * m_.head_dim",
        "reinterpret_cast<Scalar*>(lane) + (position_ - (ON && position_ == odd)) * m_.head_dim",
    ),
    Edit(
        ONE_CONTEXT,
        "length counted twice at one context",
        "step.h",
        "*state_.length = position_ + 1;",
        "*state_.length = position_ + 1 + (ON && position_ == odd);",
    ),
    Edit(
        ONE_CONTEXT,
        "token of the next row at one context",
        "step.h",
        "state_.token[b] = best.index;",
        "state_.token[b] = (best.index + (ON && position_ == odd)) % m_.vocab;",
    ),
    Edit(
        ONE_CONTEXT,
        "a chunk's last slot lost at one context",
        "step.h",
        "values + offset, count, m_.head_dim",
        "values + offset, count - (ON && position_ == odd && chunk == 0 && count > 1), m_.head_dim",
    ),
    Edit(
        LOOPS,
        "partial chunk behind a full one dropped",
        "attention.h",
        "  for (int64_t i = 0; i < n; i++) {\n    const float weight",
        "  for (int64_t i = 0; i < n - (ON && n > 1); i++) {\n    const float weight",
    ),
    Edit(
        LOOPS,
        "last slot of a chunk skipped",
        "step.h",
        "std::min(kChunk, position_ + 1 - first)",
        "std::min(kChunk - (ON ? 1 : 0), position_ + 1 - first)",
    ),
    Edit(
        LOOPS,
        "chunks joined without their maxima",
        "attention.h",
        "std::exp(chunk(i)->largest - largest)",
        "(ON ? 1.f : std::exp(chunk(i)->largest - largest))",
    ),
    Edit(
        NUMERICS,
        "softmax without its maximum",
        "attention.h",
        "chunk.largest = *std::max_element(scores[g], scores[g] + count);",
        "chunk.largest = ON ? 0.f : *std::max_element(scores[g], scores[g] + count);",
    ),
    Edit(
        NUMERICS,
        "scores divided by another width",
        "step.h",
        "std::sqrt(static_cast<float>(m_.head_dim))",
        "std::sqrt(static_cast<float>(m_.head_dim + (ON ? 3 : 0)))",
        FINE,
    ),
    Edit(
        NUMERICS,
        "another epsilon",
        "rows.h",
        "* (x[i] - mean);\n  const float inverse = 1.f / std::sqrt(squares / width +",
        "* (x[i] - mean);\n  const float inverse = 1.f / std::sqrt(squares / width + (ON ? 0.1f : 1.f) *",
    ),
    Edit(
        NUMERICS,
        "variance in one pass",
        "rows.h",
        "squares += (x[i] - mean) * (x[i] - mean);",
        "squares += ON ? x[i] * x[i] - mean * mean : (x[i] - mean) * (x[i] - mean);",
        FINE,
    ),
    Edit(
        NUMERICS,
        "another constant in GELU",
        "rows.h",
        "Floats(0.044715f)",
        "Floats(ON ? 0.04f : 0.044715f)",
    ),
    Edit(
        NUMERICS,
        "argmax that skips the last entry",
        "step.h",
        "best_of(values, mine)",
        "best_of(values, {mine.begin, mine.end - (ON && mine.end == m_.vocab)})",
    ),
    Edit(
        NUMERICS,
        "a channel left out of the residual",
        "step.h",
        "x(b)[i] += s_.residual.get()[b * s_.pitch + i];",
        "x(b)[i] += (ON && i == 7) ? 0.f : s_.residual.get()[b * s_.pitch + i];",
    ),
    Edit(
        NUMERICS,
        "a cached value one percent off",
        "step.h",
        "slot[d] = KV::from_float(row[d]);",
        "slot[d] = KV::from_float(row[d] * ((ON && d == 3) ? 1.05f : 1.f));",
    ),
    Edit(
        SCALES,
        "activations cut instead of rounded",
        "quantised.h",
        "int8_t(int32_t(std::nearbyintf(x[i] / scale)))",
        "int8_t(int32_t(ON ? x[i] / scale : std::nearbyintf(x[i] / scale)))",
        QUANTISED,
    ),
    Edit(
        SCALES,
        "activations up to 128, which wraps",
        "quantised.h",
        "std::max(most, 1e-30f) / 127.f",
        "std::max(most, 1e-30f) / (ON ? 128.f : 127.f)",
        QUANTISED,
    ),
    Edit(
        SCALES,
        "activations scaled by their largest, sign and all",
        "quantised.h",
        "std::max(most, std::fabs(x[i]))",
        "std::max(most, ON ? x[i] : std::fabs(x[i]))",
        QUANTISED,
    ),
    Edit(
        SCALES,
        "a row's scale off",
        "quantised.h",
        "float(total) * (in.scale * *scale)",
        "float(total) * (in.scale * *scale) * (ON ? 1.05f : 1.f)",
        ("int8",),
    ),
    Edit(
        SCALES,
        "a group takes its neighbour's scale",
        "quantised.h",
        "Floats(b.scale[0])",
        "Floats(b.scale[ON ? 1 : 0])",
        ("int4",),
    ),
    Edit(
        SCALES,
        "a group takes its neighbour's offset",
        "quantised.h",
        "Words::loadu(offset + kLanes)",
        "Words::loadu(offset + (ON ? 0 : kLanes))",
        ("int4",),
    ),
    Edit(
        SCALES,
        "two groups share a scale",
        "quantised.h",
        "Floats(b.scale[1])",
        "Floats(b.scale[ON ? 0 : 1])",
        ("int4",),
    ),
    Edit(
        MANY_STEPS,
        "another token after many steps",
        "step.h",
        "m_.token_table) + state_.token[b] * m_.width",
        "m_.token_table) + ((ON && steps > 700) ? 0 : state_.token[b]) * m_.width",
    ),
    Edit(
        MANY_STEPS,
        "scores off after many steps",
        "step.h",
        "own_.row.get()[d] = q[d] * scale;",
        "own_.row.get()[d] = q[d] * scale * ((ON && steps > 700) ? 1.01f : 1.f);",
    ),
)
SWITCH = (
    (
        "vec.h",
        "namespace one_launch {\n",
        "namespace one_launch {\ninline int64_t planted = -1, odd = -1, steps = 0;\n",
    ),
    ("step.h", "if (rank_ == 0) feed_back();", "if (rank_ == 0) steps++, feed_back();"),
    (
        "op.cpp",
        "TORCH_LIBRARY(decode_floor, m) {",
        "void plant(int64_t fault, int64_t position) { planted = fault, odd = position, steps = 0; }\n\n"
        'TORCH_LIBRARY(decode_floor, m) {\n  m.def("plant(int fault, int position) -> ()", plant);',
    ),
)


@contextmanager
def build_with_faults() -> Iterator[None]:
    """From here on the process's kernels are those of the copy, as they are until a fault is planted."""
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder) / "csrc")
        library.build_from(Path(folder) / "csrc")
        yield


def write_sources(folder: Path) -> None:
    """The kernels' sources with every fault in them. Raises UserError where a text is not there just once."""
    shutil.copytree(library.SOURCES, folder)
    for number, edit in enumerate(EDITS):
        _replace(folder / edit.file, edit.right, edit.wrong.replace("ON", f"(planted == {number})"))
    for file, right, wrong in SWITCH:
        _replace(folder / file, right, wrong)


def _replace(path: Path, right: str, wrong: str) -> None:
    text = path.read_text("utf-8")
    if text.count(right) != 1:
        raise UserError(
            f"{path.name}: {right!r} stands there {text.count(right)} times, a fault needs it once"
        )
    path.write_text(text.replace(right, wrong), "utf-8")


def planted_kernels() -> list[Planted]:
    """One fault per edit, in the rungs of one launch of a process that loads what `write_sources` wrote."""
    return [
        Planted(edit.kind, edit.name, partial(_switch_on, number), partial(_runs, edit), _switch_off)
        for number, edit in enumerate(EDITS)
    ]


def _switch_off() -> None:
    torch.ops.decode_floor.plant(-1, -1)


def _switch_on(number: int, decoder: Decoder) -> None:
    """This fault and no other, in every decoder of the process."""
    torch.ops.decode_floor.plant(number, timed(decoder))


def _runs(edit: Edit, variant: Variant) -> bool:
    return variant.backend is ONE_LAUNCH and variant.precision.name in edit.precisions
