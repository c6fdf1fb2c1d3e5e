"""Chrome traces of a few marked steps, and what the profiler itself costs.

The files open in Perfetto, chrome://tracing and TensorBoard's profiler plugin. Their times are never quoted
as the step's time.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from torch.profiler import profile, schedule

from profiling.analysis.phases import add_phases, phase_table
from profiling.analysis.predict import Costs
from profiling.analysis.trace_analysis import analyse
from profiling.measure.cases import Case
from profiling.measure.clock import Clock, activities
from profiling.results.record import Peaks, Phase, Trace
from variants.backends.one_launch import OneLaunch, Span
from variants.decoder import Decoder

WARM_UP_STEPS, TRACED_STEPS = 3, 5  # few: a trace of many steps opens empty in the viewers
LARGE_TRACE_BYTES = 100 << 20


def trace_steps(decoder: Decoder, path: Path) -> tuple[list[float], list[Span]]:
    """Trace steps from where the decoder stands into `path`.

    Returns their latencies under the profiler, ms, and what the threads of one launch did, if it is one.
    """
    clock = Clock(decoder.model.device)
    plan = schedule(wait=0, warmup=WARM_UP_STEPS, active=TRACED_STEPS, repeat=1)
    part, plain = path.with_name("part-" + path.name), path.with_name("plain-" + path.stem)
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
        for _ in range(WARM_UP_STEPS + TRACED_STEPS):
            latencies += clock.each_ms(decoder.advance, 1)
            profiler.step()
    part.write_bytes(gzip.compress(plain.read_bytes(), 6))  # the profiler's own way is ten times as slow
    plain.unlink()
    if launch:
        launch.watch(False)
        spans = launch.spans()
        add_phases(part, spans)
    part.replace(path)
    return latencies[WARM_UP_STEPS:], spans


def traced(case: Case, path: Path, peaks: Peaks) -> Trace:
    """Trace a case at its smallest context into `path`; what the record keeps of it."""
    context = case.contexts[0]
    case.load(context)
    profiled_ms, spans = trace_steps(case.decoder, path)
    return analyse(path, context, profiled_ms, _replay_costs(peaks), _phases(spans))


def _phases(spans: list[Span]) -> dict[str, Phase]:
    """What the record keeps of the phases inside a launch."""
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
