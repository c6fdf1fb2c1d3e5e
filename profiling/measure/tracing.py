"""Chrome traces of a few marked steps, and what a run keeps of each: parts, counts, problems, and the replay
predicted from it.

The files open in Perfetto, chrome://tracing and TensorBoard's profiler plugin. Their times are never quoted
as the step's time. What happens inside one launch, the backend records while it is watched
(`OneLaunch.watch`): a row per phase, layer and thread, the work without the wait at the barrier, which is the
gap to the thread's next row.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
from torch.profiler import profile, schedule

from profiling.analysis.attribution import HOST, Attributed, attributed, integrity
from profiling.analysis.predict import Costs, Prediction, replay
from profiling.analysis.timeline import median_step
from profiling.measure.cases import Case
from profiling.measure.clock import Clock, activities
from profiling.results.folder import part_of
from profiling.results.record import (
    TRACE_WARM_UP,
    TRACED_STEPS,
    Counts,
    Peaks,
    Phase,
    Range,
    Replay,
    Trace,
)
from profiling.results.record.pictures import Steps
from variants.backends.one_launch.backend import OneLaunch, Span
from variants.decoder import Decoder

LARGE_TRACE_BYTES = 100 << 20
CATEGORY = "one_launch_phase"  # no reader of traces takes it for an op


def trace_steps(decoder: Decoder, path: Path) -> tuple[list[float], list[Span]]:
    """Trace steps from where the decoder stands into `path`.

    Returns their latencies under the profiler, ms, and what the threads of one launch did, if it is one.
    """
    clock = Clock(decoder.model.device)
    plan = schedule(wait=0, warmup=TRACE_WARM_UP, active=TRACED_STEPS, repeat=1)
    part, plain = part_of(path), part_of(path)
    launch = decoder.backend if isinstance(decoder.backend, OneLaunch) else None
    if launch:
        launch.watch(True)
    latencies: list[float] = []
    spans: list[Span] = []
    with profile(
        activities=activities(decoder.model.device),
        schedule=plan,
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(plain)),
    ) as profiler:
        for _ in range(TRACE_WARM_UP + TRACED_STEPS):
            latencies += clock.each_ms(decoder.advance, 1)
            profiler.step()
    part.write_bytes(gzip.compress(plain.read_bytes(), 6))  # the profiler's own way is ten times as slow
    plain.unlink()
    if launch:
        launch.watch(False)
        spans = launch.spans()
        add_phases(part, spans)
    part.replace(path)
    return latencies[TRACE_WARM_UP:], spans


def traced(case: Case, path: Path, peaks: Peaks) -> Trace:
    """Trace a case at its smallest context into `path`; what the record keeps of it."""
    return _traced(case, path, peaks)[0]


def traced_and_drawn(case: Case, path: Path, peaks: Peaks) -> tuple[Trace, Steps | None]:
    """Trace a case into `path`; what the record keeps of it, and its median step as the report draws it."""
    trace, of_file = _traced(case, path, peaks)
    return trace, median_step(*of_file, case.name)


def _traced(case: Case, path: Path, peaks: Peaks) -> tuple[Trace, Attributed]:
    context = case.contexts[0]
    case.load(context)
    profiled_ms, spans = trace_steps(case.decoder, path)
    of_file = attributed(path)
    return analyse(of_file, context, profiled_ms, _replay_costs(peaks), _phases(spans)), of_file


def analyse(
    of_file: Attributed,
    context: int,
    profiled_ms: list[float],
    costs: Costs,
    phases: dict[str, Phase] | None = None,
) -> Trace:
    """What a record keeps of a trace of steps from `context` on; `profiled_ms`: under the profiler."""
    trace, steps, attribution = of_file
    device = trace.main_device
    where = HOST if device is None else device
    parts = attribution.parts[attribution.parts["device"] == where]
    ops = trace.host_ops
    return Trace(
        file=trace.path.name,
        context=context,
        profiled_ms=profiled_ms,
        steps_parts_us=[
            dict(zip(rows["part"], rows["us"].tolist(), strict=True)) for _, rows in parts.groupby("step")
        ],
        counts=Counts(**{name: float(attribution.counts[name].mean()) for name in Counts.__struct_fields__}),
        busy_share_of_events=float((ops["class"] == "compute").mean()) if device is None else 0.0,
        problems=integrity(trace, steps, attribution),
        replay=_replay_record(replay(trace, steps, attribution, costs)),
        phases=phases or {},
    )


def _replay_record(predicted: Prediction | None) -> Replay | None:
    if predicted is None:
        return None
    us = None if predicted.replay_us is None else Range(*predicted.replay_us)
    return Replay(predicted.kind, predicted.step_us, us, predicted.assumptions, dict(predicted.left))


def _phases(spans: list[Span]) -> dict[str, Phase]:
    """The phases inside a launch by name, as the record keeps them: medians over steps, us."""
    if not spans:
        return {}
    table = phase_table(spans)
    times = zip(table.index, table.slowest_us.tolist(), table.waiting_us.tolist(), strict=True)
    return {str(phase): Phase(slowest_us, waiting_us) for phase, slowest_us, waiting_us in times}


def _replay_costs(peaks: Peaks) -> Costs:
    """The replay's constants where this machine measured them. The kernels' own time is in busy already."""
    node_us, kernel_us = peaks.graph_node_us, peaks.graph_kernel_us
    gap_us = None if node_us is None or kernel_us is None else max(0.0, node_us - kernel_us)
    measured = {"tape_op_us": peaks.tape_op_us, "node_gap_us": gap_us}
    known = {name: (value, value, value) for name, value in measured.items() if value is not None}
    return Costs(**known, measured=frozenset(known))


def phase_table(spans: list[Span]) -> pd.DataFrame:
    """Per phase, in the order of a step: medians over the steps in `spans`, summed over a step's layers.

    `slowest_us`: work of the thread that finished last; `waiting_us`: what the mean thread waited for it;
    `share`: of the sum of `slowest_us`.
    """
    table = pd.DataFrame(spans, columns=list(Span._fields))
    table["step"] = (table.phase == "embed").groupby(table.thread).cumsum()
    table["us"] = (table.end_ns - table.start_ns) / 1e3
    of_threads = table.groupby(["step", "layer", "phase"], sort=False).us.agg(["max", "mean"])
    pieces = pd.DataFrame(
        {"slowest_us": of_threads["max"], "waiting_us": of_threads["max"] - of_threads["mean"]}
    )
    per_step = pieces.groupby(["step", "phase"], sort=False).sum()
    phases = per_step.groupby("phase", sort=False).median()
    return phases.assign(share=phases.slowest_us / phases.slowest_us.sum())


def add_phases(trace: Path, spans: list[Span]) -> None:
    """Rewrite a Chrome trace of torch.profiler (gzipped) with one row of phases per thread of the launch.

    Spans outside the trace are left out. Timestamps in the trace count from its `baseTimeNanoseconds`.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        content = json.load(file)
    base_ns = content["baseTimeNanoseconds"]
    timed = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    start_us = min(event["ts"] for event in timed)
    end_us = max(event["ts"] + event["dur"] for event in timed)
    rows = [
        {
            "ph": "X",
            "cat": CATEGORY,
            "name": span.phase,
            "pid": "one launch",
            "tid": span.thread,
            "ts": (span.start_ns - base_ns) / 1e3,
            "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": {"layer": span.layer},
        }
        for span in spans
    ]
    content["traceEvents"] += [row for row in rows if start_us <= row["ts"] <= end_us]
    part = part_of(trace)
    with gzip.open(part, "wt", encoding="utf-8") as file:
        json.dump(content, file)
    part.replace(trace)
