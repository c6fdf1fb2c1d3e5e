"""Everything about one trace, from the file to the reading; the object that the command line prints and
compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiling.analysis import top
from profiling.analysis.attribution import Attribution, cautions_of
from profiling.analysis.attribution.device import busy_split_ns
from profiling.analysis.predict import Costs, Prediction, replay
from profiling.analysis.reading import Reading, explained, unknown_rows
from profiling.analysis.sites import Eager, Sites, sites_of
from profiling.trace import Steps, Trace, load, steps
from profiling.trace.devices import by_device
from profiling.trace.names import ANNOTATION_CATEGORIES, CALL_CATEGORY, DEVICE_CATEGORIES, OP_CATEGORIES
from profiling.trace.ranks import by_rank
from profiling.trace.summary import Numbers, file_numbers, window_numbers

_FILE_KEYS = (
    "gpu_events",
    "kernels",
    "launch_calls",
    "graph_launch_calls",
    "gpu_events_without_call",
    "devices",
)
_STEP_KEYS = ("name", "wall_us", "kernel_launch_calls", "graph_launch_calls")

VIEWER_BYTES = 512 << 20
KNOWN_CATEGORIES = DEVICE_CATEGORIES | OP_CATEGORIES | ANNOTATION_CATEGORIES
UNPREDICTABLE = ("cannot tell", "too small to judge", "host-bound outside launches")
"""Readings after which a replay's cost is not predicted: the trace does not carry it, or the pauses are not
the step's.
"""


@dataclass(frozen=True)
class Explanation:
    """One trace and what was found in it. `device`: the one with the most work, None without device
    events. `sites`: where its calls and kernels come from. `rank`: its name where the file holds several.
    """

    trace: Trace
    steps: Steps
    attribution: Attribution
    reading: Reading
    prediction: Prediction | None
    device: str | None
    warnings: list[str]
    sites: Sites
    rank: str = ""


def explain(
    path: str | Path,
    pattern: str | None = None,
    costs: Costs | None = None,
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """The first of `explain_ranks`, which is the only one where the file holds one rank."""
    return explain_ranks(path, pattern, costs, progress)[0]


def explain_ranks(
    path: str | Path,
    pattern: str | None = None,
    costs: Costs | None = None,
    progress: Callable[[float], None] | None = None,
    names_from: Explanation | None = None,
) -> list[Explanation]:
    """Load, part by ranks, divide, check, read and predict. `pattern`: see `profiling.trace.steps`;
    `names_from`: an eager trace of the same model, to name what replays launched. UserError where nothing can
    be read.
    """
    parts = by_rank(load(path, progress))
    eager = (names_from.trace, names_from.attribution, names_from.sites) if names_from else None
    return [_explain(part, pattern, costs, name, list(parts), eager) for name, part in parts.items()]


def _explain(
    trace: Trace,
    pattern: str | None,
    costs: Costs | None,
    rank: str,
    names: list[str],
    eager: Eager | None,
) -> Explanation:
    marks = steps(trace, pattern)
    attribution, reading = explained(trace, marks)
    predictable = reading.label not in UNPREDICTABLE and not reading.problems
    prediction = replay(trace, marks, attribution, costs, reading.mean) if predictable else None
    warnings = [f"{len(names)} ranks are in the file, each read apart: {', '.join(names)}"] if rank else []
    warnings += [*trace.warnings, *_about_the_file(trace), *marks.notes, *reading.problems, *reading.notes]
    places = sites_of(trace, attribution, eager)
    warnings += [*cautions_of(trace, marks, attribution), *places.notes]
    return Explanation(
        trace, marks, attribution, reading, prediction, trace.main_device, warnings, places, rank
    )


def _about_the_file(trace: Trace) -> list[str]:
    notes = [f"{unknown_rows(trace)} are not understood"] if trace.unknown_devices else []
    if trace.json_bytes > VIEWER_BYTES:
        notes.append(
            f"{trace.json_bytes / 2**20:.0f} MB of JSON: viewers may show it empty; profile fewer steps"
        )
    categories = {str(c) for c in trace.events["cat"].cat.categories}
    if not (categories & KNOWN_CATEGORIES or any(CALL_CATEGORY.search(c) for c in categories)):
        notes.append("no event has a category of PyTorch's profiler: this may be another tool's trace")
    return notes


def as_json(explanation: Explanation, name: str, rows: int = 10) -> Numbers:
    """One entry of `files` in `--json`. Times in us; `rows`: length of the lists in `top`."""
    numbers, mean = file_numbers(explanation.trace), explanation.reading.mean
    ordered = {key: numbers.pop(key) for key in _FILE_KEYS}
    for device, work in by_device(explanation.trace.device_events).items():
        split = busy_split_ns(work)
        ordered["devices"][device]["busy_split_us"] = {what: ns / 1000 for what, ns in split.items()}
    return {
        "file": f"{name} {explanation.rank}".strip(),
        "reading": explanation.reading.label,
        "headline": _headline(explanation),
        "rule": explanation.reading.rule,
        "step_us": mean.length_us if mean.steps else None,
        "step_parts_us": mean.parts_us,
        "steps_read": mean.steps,
        **ordered,
        "step_source": explanation.steps.source,
        "steps": _steps(explanation),
        "prediction": explanation.prediction.as_json() if explanation.prediction else None,
        "warnings": explanation.warnings,
        "shares": explanation.reading.shares,
        **numbers,
        "named_share": explanation.sites.share,
        "top": top.lists(
            explanation.trace,
            explanation.steps,
            explanation.attribution,
            explanation.device,
            rows,
            explanation.sites,
            mean.steps,
        ),
    }


def _headline(explanation: Explanation) -> str:
    """What is at stake in a step, and what a replay would save of it; "" without a verdict."""
    said = explanation.reading.headline
    predicted = explanation.prediction
    if not said or predicted is None or predicted.replay_us is None:
        return said
    saved = predicted.step_us - predicted.replay_us[1]
    how = predicted.kind.removeprefix("step as ")
    return f"{said}; {how} would save about {saved:.0f} us" if saved > 0 else said


def _steps(explanation: Explanation) -> list[Numbers]:
    """Per step the main device's parts (without a device: the host's), and every device's own."""
    main = explanation.device or "cpu"
    attribution = explanation.attribution
    counts = attribution.counts.drop(columns="step").to_dict("records")
    spans = attribution.intervals[attribution.intervals["device"] == main].sort_values("step")
    lengths_us = ((spans["end_ns"] - spans["start_ns"]) / 1000).tolist()
    parts: dict[tuple[int, str], dict[str, float]] = {}
    columns = (attribution.parts[key].tolist() for key in ("step", "device", "part", "us"))
    for step, device, part, us in zip(*columns, strict=True):
        parts.setdefault((step, device), {})[part] = us
    out = []
    for step, window in enumerate(window_numbers(explanation.trace, explanation.steps.table)):
        devices = window.pop("devices")
        for device, numbers in devices.items():
            numbers["parts_us"] = parts[step, device]
        entry = {key: window.pop(key) for key in _STEP_KEYS}
        entry |= {"parts_us": parts[step, main], "devices": devices}
        out.append(entry | {"interval_us": lengths_us[step], "counts": counts[step]} | window)
    return out
