"""Faults in the one-launch kernels: a copy of their sources in which every fault can be switched on.

The sources themselves stay free of them. Each edit replaces a text that stands there once, and the copy
computes what that says until the fault is planted; so one build holds all of them.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from profiling.gate.planted.hunt import (
    LOOPS,
    MANY_STEPS,
    NUMERICS,
    ONE_CONTEXT,
    PAGES,
    POSITIONS,
    SCALES,
    Planted,
    timed,
)
from variants.backends.backend import ONE_LAUNCH
from variants.backends.one_launch import library
from variants.decoder import Decoder
from variants.errors import UserError
from variants.slots.cache import PAGED
from variants.slots.kv import KV_INT8
from variants.slots.precision import FLOAT32, INT4, INT8, PrecisionOption
from variants.spec import Variant


@dataclass(frozen=True)
class Edit:
    """`text` stands in the sources once, with what is in front of the arrow; the fault is what is behind it.

    There ON stands for whether this fault is planted, and `odd` for the one position where it is.
    """

    kind: str
    fits: Callable[[Variant], bool]  # of the rungs of one launch
    name: str
    text: str

    @property
    def right(self) -> str:
        return re.sub("«(.*?)→.*»", r"\1", self.text, flags=re.DOTALL)

    @property
    def wrong(self) -> str:
        return re.sub("«.*?→(.*)»", r"\1", self.text, flags=re.DOTALL)


def edits(kind: str, fits: Callable[[Variant], bool], *texts: tuple[str, str]) -> list[Edit]:
    """One of each name and text."""
    return [Edit(kind, fits, *text) for text in texts]


def all_rungs(variant: Variant) -> bool:
    return True


def fine(variant: Variant) -> bool:
    """What the rounding of the others would hide."""
    return variant.precision is FLOAT32 and not variant.kv.narrow


def from_numbers(variant: Variant) -> bool:
    """Keys and values are stored as numbers of their own, without a scale."""
    return variant.kv is not KV_INT8


def from_bytes(variant: Variant) -> bool:
    """Keys and values are stored as bytes with a scale."""
    return variant.kv is KV_INT8


def paged(variant: Variant) -> bool:
    return variant.cache is PAGED


def with_precision(*precisions: PrecisionOption) -> Callable[[Variant], bool]:
    return lambda variant: variant.precision in precisions


EDITS = (
    *edits(
        ONE_CONTEXT,
        all_rungs,
        (
            "position off by one at one context",
            "m_.position_table) + «position(row)→(position(row) - (ON && position(row) == odd))» * m_.width",
        ),
        ("length counted twice at one context", "position_ + state_.each«→ + (ON && position_ == odd)»;"),
        (
            "token of the next row at one context",
            "state_.token[b] = «best.index→(best.index + (ON && position_ == odd)) % m_.vocab»;",
        ),
        ("written one slot early at one context", "keys.write(slot«→ - (ON && slot == odd)», placed"),
        (
            "a chunk's last slot lost at one context",
            "query, i), «seen→(seen - (ON && slot == odd && chunk == 0 && seen > 1))», s_.chunk",
        ),
    ),
    *edits(
        LOOPS,
        all_rungs,
        (
            "partial chunk behind a full one dropped",
            "  for (int64_t i = 0; i < n«→ - (ON && n > 1)»; i++) {\n    const float weight",
        ),
        (
            "chunks joined without their maxima",
            "«std::exp(chunk(i)->largest - largest→(ON ? 1.f : std::exp(chunk(i)->largest - largest)»)",
        ),
        ("last slot of a chunk skipped", "std::min(kChunk«→ - (ON ? 1 : 0)», slot + 1 - first)"),
    ),
    *edits(
        NUMERICS,
        all_rungs,
        (
            "softmax without its maximum",
            "chunk.largest = «→ON ? 0.f : »largest_of(scores[g], count);",
        ),
        (
            "another epsilon",
            "mean);\n  const float inverse = 1.f / std::sqrt(squares / width +«→ (ON ? 0.1f : 1.f) *»",
        ),
        ("another constant in GELU", "Floats(«→ON ? 0.04f : »0.044715f)"),
        (
            "argmax that skips the last entry",
            "best_of(values, «mine→{mine.begin, mine.end - (ON && mine.end == m_.vocab)}»)",
        ),
        (
            "a channel left out of the residual",
            "x(row)[i] += «→(ON && i == 7) ? 0.f : »s_.residual.get()[row * s_.pitch + i];",
        ),
    ),
    *edits(
        NUMERICS,
        fine,
        ("scores divided by another width", "std::sqrt(static_cast<float>(m_.head_dim«→ + (ON ? 3 : 0)»))"),
        (
            "variance in one pass",
            "squares += «→ON ? x[i] * x[i] - mean * mean : »(x[i] - mean) * (x[i] - mean);",
        ),
    ),
    *edits(
        NUMERICS,
        from_numbers,
        (
            "a cached value one percent off",
            "to[d] = C::from_float(x[d]«→ * ((ON && d == 3) ? 1.05f : 1.f)»);",
        ),
    ),
    *edits(
        SCALES,
        from_bytes,
        (
            "keys' scales counted twice",
            "keys.scale(scores[g], count);«→ if (ON) keys.scale(scores[g], count);»",
        ),
        ("a cached row takes its neighbour's scale", "x[i] *= scales_[i«→ - (ON && i > 0)»];"),
        (
            "the scale of a new row written one slot early",
            "kScaled<C> ? scales_ + slot«→ - (ON && slot > 0)» : nullptr",
        ),
        (
            "values weighed with the keys' scales",
            "    «values→(ON ? keys : values)».scale(scores[g], count);",
        ),
        (
            "the last slot of a chunk without its scale",
            "for (int64_t i = 0; i < count«→ - (ON ? 1 : 0)»; i++) x[i] *=",
        ),
    ),
    *edits(
        SCALES,
        with_precision(INT8, INT4),
        (
            "activations cut instead of rounded",
            "int8_t(int32_t(«→ON ? x[i] / scale : »std::nearbyintf(x[i] / scale)))",
        ),
        ("activations up to 128, which wraps", "std::max(most, 1e-30f) / «127.f→(ON ? 128.f : 127.f)»"),
        (
            "activations scaled by their largest, sign and all",
            "std::max(most, «→ON ? x[i] : »std::fabs(x[i]))",
        ),
    ),
    *edits(
        SCALES,
        with_precision(INT8),
        ("a row's scale off", "float(total) * (in.scale * *scale)«→ * (ON ? 1.05f : 1.f)»"),
    ),
    *edits(
        SCALES,
        with_precision(INT4),
        ("a group takes its neighbour's scale", "Floats(b.scale[«→ON ? 1 : »0])"),
        ("a group takes its neighbour's offset", "Words::loadu(offset + «kLanes→(ON ? 0 : kLanes)»)"),
        ("two groups share a scale", "Floats(b.scale[«→ON ? 0 : »1])"),
    ),
    *edits(
        PAGES,
        paged,
        ("every row read by the first row's table", "layout.table + «b→(ON ? 0 : b)» * layout.blocks"),
        ("the first head's part of a block for all", "layout_.kv_heads + «kv_head_→(ON ? 0 : kv_head_)») <<"),
        ("last place of a block never used", "layout_.size_log2) + «place→(place - (ON && place == 15))») *"),
        ("block of the token before", "table_[«at→(at - (ON && at > 0))» >> layout_.size_log2]"),
    ),
    *edits(
        POSITIONS,
        all_rungs,
        ("a new token sees the one behind it", "slot + 1«→ + (ON && token + 1 < each_)» - first)"),
        ("new tokens at one place", "position_ + «row % state_.each→(ON ? 0 : row % state_.each)»;"),
        ("row read twice", "(row, values(«row→(row - (ON && several_ && row == 1))»), cols)"),
    ),
    *edits(
        MANY_STEPS,
        all_rungs,
        (
            "another token after many steps",
            "«state_.token[place(row)]→((ON && steps > 700) ? 0 : state_.token[place(row)])» *",
        ),
        ("scores off after many steps", "turned[d] *= scale«→ * ((ON && steps > 700) ? 1.01f : 1.f)»;"),
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
        _replace(folder.iterdir(), edit.right, edit.wrong.replace("ON", f"(planted == {number})"))
    for file, right, wrong in SWITCH:
        _replace([folder / file], right, wrong)


def _replace(files: Iterable[Path], right: str, wrong: str) -> None:
    texts = {path: path.read_text("utf-8") for path in files}
    times = sum(text.count(right) for text in texts.values())
    if times != 1:
        raise UserError(f"{right!r} stands in the sources {times} times, a fault needs it once")
    for path, text in texts.items():
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
    return variant.backend is ONE_LAUNCH and edit.fits(variant)
