"""How does a step grow with the bytes that it must read? Points that differ in one thing each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch

from profiling.footprint import free_bytes
from profiling.metrics import Measured
from profiling.record import RunFolder
from profiling.runner import Progress, Runner
from profiling.stats import Interval, intercepts, mean_interval, quantiles
from profiling.work import parameters
from profiling.workload import Workload
from variants.config import PRESETS
from variants.model import GPT, random_model
from variants.spec import Variant

# For each parameter the proof holds float32 and float64; for each of the model's, one of its own and its copy
NEEDED_BYTES = 12


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
    run: RunFolder, points: Sequence[Point], variant: Variant, workload: Workload, progress: Progress
) -> dict[Point, Measured]:
    """What was measured of each point; `run` is warned of those that do not fit or are not proven."""
    found: dict[Point, Measured] = {}
    model, name = None, ""
    for point in points:
        if point.model != name:
            model, name = None, point.model  # gone before the next one is made: they are large
            config = PRESETS[name]
            if NEEDED_BYTES * parameters(config) > free_bytes(torch.device("cpu")):
                run.warn(f"{name} is left out: memory does not permit its proof")
            else:
                model = random_model(config, workload.seed)
        measured = _measured(run, point, variant, workload, model, progress) if model is not None else None
        if measured is not None:
            found[point] = measured
    return found


def _measured(
    run: RunFolder, point: Point, variant: Variant, workload: Workload, model: GPT, progress: Progress
) -> Measured | None:
    """One point in a run folder below `run`. The base is timed at all contexts, and as narrow models too."""
    label = f"{point.axis} {point.value}".strip()
    torch.set_num_threads(point.threads)
    contexts = workload.contexts[:1] if point.axis else workload.contexts
    folder = RunFolder.create(run.path / "points", "growth", label)
    runner = Runner(folder, replace(workload, contexts=contexts, batch=point.batch), model, [variant])
    runner.progress = lambda what, done, total: progress(f"{label}: {what}", done, total)
    runner.describe(point.model)
    (runner.prove if point.axis else runner.prepare)()
    entry = folder.data["variants"][variant.name]
    if entry["status"] != "proven":
        run.warn(f"{label}: {entry['status']}: {entry['reason']}")
        return None
    runner.measure()
    folder.finish()
    return Measured(folder.data)


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
    n_bytes = found.record["variants"][variant]["prediction"][str(context)]["bytes"]
    return _step(found, found.steps(variant, context), found.memory_floor(variant, context), n_bytes, value)


def at_width(found: Measured, variant: str, width: int) -> Step:
    """The step of a narrow model at the smallest context."""
    n_bytes = found.record["variants"][variant]["narrow_bytes"][str(width)]
    steps, reads = found.steps(variant, found.contexts[0], width), found.own_read(variant, width)
    return _step(found, steps, reads, n_bytes, str(width))


def _step(found: Measured, steps: pd.Series, reads: pd.Series, n_bytes: int, value: str) -> Step:
    step_ms, floor_ms = (quantiles(list(series))["median"] for series in (steps, reads))
    ratio, excess = found.ratio(steps, reads), found.difference(steps, reads)
    return Step(value, n_bytes, step_ms, floor_ms, ratio, excess)


def widths(found: Measured, variant: str) -> list[int]:
    """Of the narrow models that were timed, ascending."""
    return sorted(int(width) for width in found.record["variants"][variant].get("narrow_bytes", {}))


def slope_over_bytes(found: Measured, variant: str) -> Interval | None:
    """Time of one more token of context over the time of its bytes at the rate of the memory floor.

    Per round the slope of a line through all contexts; None where there is one context only. A mean and no
    geometric one: in a disturbed round the slope may be negative.
    """
    contexts = found.contexts
    if len(contexts) < 2:
        return None
    predicted = found.record["variants"][variant]["prediction"]
    first, last = (predicted[str(n)]["bytes"] for n in (contexts[0], contexts[-1]))
    per_token = (last - first) / (contexts[-1] - contexts[0])
    columns = [*(found.steps(variant, n) for n in contexts), found.memory_floor(variant, contexts[0])]
    rounds = pd.concat(columns, axis=1).dropna().to_numpy()
    _, slopes = intercepts(contexts, rounds[:, :-1])
    expected = per_token / first * rounds[:, -1]
    return mean_interval(slopes / expected)
