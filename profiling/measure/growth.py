"""How does a step grow with the bytes that it must read? Points that differ in one thing each."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from profiling.cost.work import kv_read_bytes, parameters
from profiling.measure.footprint import free_bytes
from profiling.measure.runner import Progress, Runner
from profiling.results.folder import RunFolder
from profiling.results.guard import disturbances
from profiling.results.metrics import Measured
from profiling.results.record import GrowthRecord, PointRecord, Workload
from profiling.results.stats import Interval, intercepts, quantiles, robust_interval
from variants.config import PRESETS, GPTConfig
from variants.ladder import ladder
from variants.model import GPT, random_model
from variants.spec import Variant

# Of each parameter the proof holds float32 and float64; keys and values lie in four caches: the text's,
# that of plain eager, ours, and the floor's
NEEDED_BYTES, NEEDED_CACHES = 12, 4
KV_HEADS = "kv_heads"  # the axis on which a rung is timed beside its children with narrower caches


@dataclass(frozen=True)
class Point:
    """What one run varies; `axis` names the field that differs from the base, which has none.

    `kv_heads`: heads for keys and values, 0 for the model's own.
    """

    model: str
    batch: int
    threads: int
    axis: str = ""
    kv_heads: int = 0

    @property
    def config(self) -> GPTConfig:
        """The model's, with these heads."""
        config = PRESETS[self.model]
        return dataclasses.replace(config, n_kv_head=self.kv_heads) if self.kv_heads else config

    @property
    def value(self) -> str:
        return str(getattr(self, self.axis)) if self.axis else "base"

    @property
    def label(self) -> str:
        return f"{self.axis} {self.value}".strip()


def points(
    models: Sequence[str], batches: Sequence[int], threads: Sequence[int], kv_heads: Sequence[int] = ()
) -> list[Point]:
    """The base, made of the first of each, and the others with one thing changed; model by model.

    All `kv_heads` are points of their own, the model's too: they are timed in several stored forms.
    """
    base = Point(models[0], batches[0], threads[0])
    return [
        base,
        *(Point(base.model, batch, base.threads, "batch") for batch in batches[1:]),
        *(Point(base.model, base.batch, count, "threads") for count in threads[1:]),
        *(Point(base.model, base.batch, base.threads, KV_HEADS, heads) for heads in kv_heads),
        *(Point(model, base.batch, base.threads, "model") for model in models[1:]),
    ]


def grow(
    run: RunFolder[GrowthRecord],
    points: Sequence[Point],
    variant: Variant,
    workload: Workload,
    progress: Progress,
) -> dict[Point, Measured]:
    """The measurements of each point; `run` is warned of those that do not fit or are not proven."""
    by_point: dict[Point, Measured] = {}
    model, config = None, None
    for point in points:
        if point.config != config:
            model, config = None, point.config  # gone before the next one is made: they are large
        gc.collect()  # what the last point held hangs in reference cycles
        at = replace(workload, contexts=_contexts(point, workload), batch=point.batch)
        if _needed_bytes(point.config, at) > free_bytes(torch.device("cpu")):
            run.warn(f"{point.label} is left out: memory does not permit the proof of {point.model}")
            continue
        model = model or random_model(point.config, workload.seed)
        rungs = stored_forms(variant) if point.axis == KV_HEADS else [variant]
        measured = _measured(run, point, rungs, at, model, progress)
        if measured is not None:
            by_point[point] = measured
    return by_point


def stored_forms(variant: Variant) -> list[Variant]:
    """The rung, and its children with narrower caches that run here."""
    others = ladder(variant.precision.dtype).values()
    children = [one for one in others if one.parent and one.parent.name == variant.name and one.kv.narrow]
    return [variant, *(one for one in children if not one.why_not("cpu"))]


def _contexts(point: Point, workload: Workload) -> tuple[int, ...]:
    """All contexts for the base, both ends where a token's cost is asked for, else the first."""
    first, last = workload.contexts[:1], workload.contexts[-1:]
    ends = tuple(dict.fromkeys(first + last))
    return {"": workload.contexts, "batch": ends, KV_HEADS: ends}.get(point.axis, first)


def _needed_bytes(config: GPTConfig, workload: Workload) -> int:
    cache = kv_read_bytes(config, workload.buckets(config)[-1], kv_dtype_bytes=4, batch=workload.batch)
    return NEEDED_BYTES * parameters(config) + NEEDED_CACHES * cache


def _measured(
    run: RunFolder[GrowthRecord],
    point: Point,
    variants: Sequence[Variant],
    workload: Workload,
    model: GPT,
    progress: Progress,
) -> Measured | None:
    """One point in a run folder below `run`. The base is timed as narrow models too."""
    torch.set_num_threads(point.threads)
    folder = RunFolder.create(run.path / "points", PointRecord, point.label)
    runner = Runner(folder, workload, model, list(variants))
    runner.progress = lambda what, done, total: progress(f"{point.label}: {what}", done, total)
    runner.describe(point.model)
    (runner.prove if point.axis else runner.prepare)()
    entries = folder.record.variants
    for name, entry in entries.items():
        if entry.status != "proven":
            run.warn(f"{point.label}: {name}: {entry.status}: {entry.reason}")
    if entries[variants[0].name].status != "proven":
        return None
    runner.measure()
    runner.repeat()
    folder.finish()
    for what in disturbances(folder.record):
        run.warn(f"{point.label}: {what}")
    return Measured(folder.record)


# -- from the records to numbers --------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One step beside the memory floor of its own bytes, read in the same rounds."""

    value: str
    bytes: int
    step_ms: float
    floor_ms: float
    ratio: Interval | None
    excess_ms: Interval | None


def steps_by_axis(variant: str, measured: dict[Point, Measured]) -> dict[str, list[Step]]:
    """The steps along each axis that was varied, by its name; the base stands first on every one."""
    base, whole = next(iter(measured.items()))
    first = whole.contexts[0]
    by_axis = {"context": [at_context(whole, variant, n, str(n)) for n in whole.contexts]}
    for axis in ("batch", "threads", "model"):
        on_axis = {point: one for point, one in measured.items() if point.axis == axis}
        if on_axis:
            steps = [at_context(one, variant, first, point.value) for point, one in on_axis.items()]
            by_axis[axis] = [at_context(whole, variant, first, str(getattr(base, axis))), *steps]
    by_axis["width"] = [at_width(whole, variant, width) for width in widths(whole, variant)]
    return by_axis


def at_context(measured: Measured, variant: str, context: int, value: str) -> Step:
    """The full-size step at one context."""
    steps, reads = measured.steps(variant, context), measured.memory_floor(variant, context)
    return _step(measured, steps, reads, _bytes(measured, variant, context), value)


def at_width(measured: Measured, variant: str, width: int) -> Step:
    """The step of a narrow model at the smallest context."""
    n_bytes = measured.entry(variant).narrow_bytes[width]
    steps = measured.steps(variant, measured.contexts[0], width)
    reads = measured.narrow_memory_floor(variant, width)
    return _step(measured, steps, reads, n_bytes, str(width))


def _step(measured: Measured, steps: pd.Series, reads: pd.Series, n_bytes: int, value: str) -> Step:
    step_ms, floor_ms = (quantiles(list(series)).median for series in (steps, reads))
    ratio, excess = measured.ratio(steps, reads), measured.difference(steps, reads)
    return Step(value, n_bytes, step_ms, floor_ms, ratio, excess)


def widths(measured: Measured, variant: str) -> list[int]:
    """Widths of the narrow models that were timed, ascending."""
    return sorted(measured.entry(variant).narrow_bytes)


@dataclass(frozen=True)
class Slope:
    """What a token of context costs in a batch: its bytes, and its time over that of reading them."""

    batch: int
    bytes_per_token: float
    over_bytes: Interval | None


def slopes(variant: str, measured: dict[Point, Measured]) -> list[Slope]:
    """The slopes of the base and of every other batch that was timed at two contexts or more, ascending."""
    by_batch = {point.batch: whole for point, whole in measured.items() if point.axis in ("", "batch")}
    return [
        Slope(batch, _bytes_per_token(whole, variant), slope_over_bytes(whole, variant))
        for batch, whole in sorted(by_batch.items())
        if len(whole.contexts) > 1
    ]


def _bytes_per_token(measured: Measured, variant: str) -> float:
    first, last = measured.contexts[0], measured.contexts[-1]
    return (_bytes(measured, variant, last) - _bytes(measured, variant, first)) / (last - first)


def _bytes(measured: Measured, variant: str, context: int) -> int:
    return measured.entry(variant).prediction[context].bytes


def slope_over_bytes(measured: Measured, variant: str) -> Interval | None:
    """Time of one more token of context over the time of its bytes at the rate of the memory floor.

    Per round the slope of a line through all contexts, which are two at least. No ratio's logarithm: in a
    disturbed round the slope may be negative.
    """
    slopes, expected = _slopes(measured, variant)
    return robust_interval(slopes / expected)


def _slopes(measured: Measured, variant: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By round, ms of a token of context, and of a plain read of its bytes."""
    contexts = measured.contexts
    columns = [*(measured.steps(variant, n) for n in contexts), measured.memory_floor(variant, contexts[0])]
    rounds = pd.concat(columns, axis=1).dropna().to_numpy()
    _, slopes = intercepts(contexts, rounds[:, :-1])
    expected = _bytes_per_token(measured, variant) / _bytes(measured, variant, contexts[0]) * rounds[:, -1]
    return slopes, expected


@dataclass(frozen=True)
class StoredToken:
    """What a token of context costs with so many heads for keys and values, stored so; times in ms."""

    kv_heads: int
    variant: str
    bytes: float
    ms: Interval | None
    read_ms: float
    over_bytes: Interval | None


def stored_tokens(measured: dict[Point, Measured]) -> list[StoredToken]:
    """Every stored form that was timed, heads by heads."""
    tokens = []
    for point, whole in measured.items():
        proven = whole.record.variants.items() if point.axis == KV_HEADS else ()
        for name in (name for name, entry in proven if entry.status == "proven"):
            slopes, expected = _slopes(whole, name)
            tokens.append(
                StoredToken(
                    point.kv_heads,
                    name,
                    _bytes_per_token(whole, name),
                    robust_interval(slopes),
                    float(np.median(expected)),
                    robust_interval(slopes / expected),
                )
            )
    return tokens
