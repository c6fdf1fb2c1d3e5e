"""How does a step grow with the bytes that it must read? Points that differ in one thing each."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from msgspec.structs import replace

from profiling.cost.work import kv_read_bytes, parameters
from profiling.measure.footprint import free_bytes
from profiling.measure.runner import Progress, Runner
from profiling.results.folder import RunFolder
from profiling.results.guard import disturbances
from profiling.results.metrics import Measured
from profiling.results.record import GrowthRecord, PointRecord, Workload
from profiling.results.stats import Interval, intercepts, quantiles, robust_interval
from variants.config import PRESETS, GPTConfig
from variants.model import GPT, random_model
from variants.spec import Variant

# Of each parameter the proof holds float32 and float64; keys and values lie in four caches: the text's,
# that of plain eager, ours, and the floor's
NEEDED_BYTES, NEEDED_CACHES = 12, 4


@dataclass(frozen=True)
class Point:
    """What one run varies; `axis` names the field that differs from the base, which has none."""

    model: str
    batch: int
    threads: int
    axis: str = ""

    @property
    def value(self) -> str:
        return str(getattr(self, self.axis)) if self.axis else "base"

    @property
    def label(self) -> str:
        return f"{self.axis} {self.value}".strip()


def points(models: Sequence[str], batches: Sequence[int], threads: Sequence[int]) -> list[Point]:
    """The base, made of the first of each, and the others with one thing changed; model by model."""
    base = Point(models[0], batches[0], threads[0])
    return [
        base,
        *(Point(base.model, batch, base.threads, "batch") for batch in batches[1:]),
        *(Point(base.model, base.batch, count, "threads") for count in threads[1:]),
        *(Point(model, base.batch, base.threads, "model") for model in models[1:]),
    ]


def grow(
    run: RunFolder[GrowthRecord],
    points: Sequence[Point],
    variant: Variant,
    workload: Workload,
    progress: Progress,
) -> dict[Point, Measured]:
    """What was measured of each point; `run` is warned of those that do not fit or are not proven."""
    found: dict[Point, Measured] = {}
    model, name = None, ""
    for point in points:
        if point.model != name:
            model, name = None, point.model  # gone before the next one is made: they are large
        gc.collect()  # what the last point held hangs in reference cycles
        at = replace(workload, contexts=_contexts(point, workload), batch=point.batch)
        if _needed_bytes(PRESETS[name], at) > free_bytes(torch.device("cpu")):
            run.warn(f"{point.label} is left out: memory does not permit the proof of {name}")
            continue
        model = model or random_model(PRESETS[name], workload.seed)
        measured = _measured(run, point, variant, at, model, progress)
        if measured is not None:
            found[point] = measured
    return found


def _contexts(point: Point, workload: Workload) -> tuple[int, ...]:
    """The base at all; a batch at both ends, since what a token of context costs is plainest in many rows."""
    first, last = workload.contexts[:1], workload.contexts[-1:]
    return {"": workload.contexts, "batch": tuple(dict.fromkeys(first + last))}.get(point.axis, first)


def _needed_bytes(config: GPTConfig, workload: Workload) -> int:
    cache = kv_read_bytes(config, workload.buckets(config)[-1], kv_dtype_bytes=4, batch=workload.batch)
    return NEEDED_BYTES * parameters(config) + NEEDED_CACHES * cache


def _measured(
    run: RunFolder[GrowthRecord],
    point: Point,
    variant: Variant,
    workload: Workload,
    model: GPT,
    progress: Progress,
) -> Measured | None:
    """One point in a run folder below `run`. The base is timed as narrow models too."""
    torch.set_num_threads(point.threads)
    folder = RunFolder.create(run.path / "points", PointRecord, point.label)
    runner = Runner(folder, workload, model, [variant])
    runner.progress = lambda what, done, total: progress(f"{point.label}: {what}", done, total)
    runner.describe(point.model)
    (runner.prove if point.axis else runner.prepare)()
    entry = folder.record.variants[variant.name]
    if entry.status != "proven":
        run.warn(f"{point.label}: {entry.status}: {entry.reason}")
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
    """Along each axis that was varied; the base stands first on every one."""
    base, whole = next(iter(measured.items()))
    first = whole.contexts[0]
    made = {"context": [at_context(whole, variant, n, str(n)) for n in whole.contexts]}
    for axis in ("batch", "threads", "model"):
        on_axis = {point: found for point, found in measured.items() if point.axis == axis}
        if on_axis:
            steps = [at_context(found, variant, first, point.value) for point, found in on_axis.items()]
            made[axis] = [at_context(whole, variant, first, str(getattr(base, axis))), *steps]
    made["width"] = [at_width(whole, variant, width) for width in widths(whole, variant)]
    return made


def at_context(found: Measured, variant: str, context: int, value: str) -> Step:
    """The full-size step at one context."""
    steps, reads = found.steps(variant, context), found.memory_floor(variant, context)
    return _step(found, steps, reads, _bytes(found, variant, context), value)


def at_width(found: Measured, variant: str, width: int) -> Step:
    """The step of a narrow model at the smallest context."""
    n_bytes = found.entry(variant).narrow_bytes[width]
    steps, reads = found.steps(variant, found.contexts[0], width), found.own_read(variant, width)
    return _step(found, steps, reads, n_bytes, str(width))


def _step(found: Measured, steps: pd.Series, reads: pd.Series, n_bytes: int, value: str) -> Step:
    step_ms, floor_ms = (quantiles(list(series)).median for series in (steps, reads))
    ratio, excess = found.ratio(steps, reads), found.difference(steps, reads)
    return Step(value, n_bytes, step_ms, floor_ms, ratio, excess)


def widths(found: Measured, variant: str) -> list[int]:
    """Of the narrow models that were timed, ascending."""
    return sorted(found.entry(variant).narrow_bytes)


@dataclass(frozen=True)
class Slope:
    """What a token of context costs in a batch: its bytes, and its time over that of reading them."""

    batch: int
    bytes_per_token: float
    over_bytes: Interval | None


def slopes(variant: str, measured: dict[Point, Measured]) -> list[Slope]:
    """Of the base and of every other batch that was timed at two contexts or more, ascending."""
    found = {point.batch: whole for point, whole in measured.items() if point.axis in ("", "batch")}
    return [
        Slope(batch, _bytes_per_token(whole, variant), slope_over_bytes(whole, variant))
        for batch, whole in sorted(found.items())
        if len(whole.contexts) > 1
    ]


def _bytes_per_token(found: Measured, variant: str) -> float:
    first, last = found.contexts[0], found.contexts[-1]
    return (_bytes(found, variant, last) - _bytes(found, variant, first)) / (last - first)


def _bytes(found: Measured, variant: str, context: int) -> int:
    return found.entry(variant).prediction[context].bytes


def slope_over_bytes(found: Measured, variant: str) -> Interval | None:
    """Time of one more token of context over the time of its bytes at the rate of the memory floor.

    Per round the slope of a line through all contexts, which are two at least. No ratio's logarithm: in a
    disturbed round the slope may be negative.
    """
    contexts = found.contexts
    columns = [*(found.steps(variant, n) for n in contexts), found.memory_floor(variant, contexts[0])]
    rounds = pd.concat(columns, axis=1).dropna().to_numpy()
    _, slopes = intercepts(contexts, rounds[:, :-1])
    expected = _bytes_per_token(found, variant) / _bytes(found, variant, contexts[0]) * rounds[:, -1]
    return robust_interval(slopes / expected)
