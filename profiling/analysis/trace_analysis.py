"""What a run keeps of each trace: parts, counts, problems, and the replay predicted from it."""

from __future__ import annotations

from pathlib import Path

from profiling.analysis.attribution import HOST, attribute, integrity
from profiling.analysis.predict import Costs, Prediction, replay
from profiling.analysis.reading import main_device
from profiling.results.record import Counts, Phase, Range, Replay, Trace
from profiling.trace import load, steps


def analyse(
    path: Path, context: int, profiled_ms: list[float], costs: Costs, phases: dict[str, Phase] | None = None
) -> Trace:
    """The trace in `path`, of steps from `context` on that took `profiled_ms`."""
    trace = load(path)
    found = steps(trace)
    attribution = attribute(trace, found)
    device = main_device(trace)
    where = HOST if device is None else device
    parts = attribution.parts[attribution.parts["device"] == where]
    ops = trace.host_ops
    return Trace(
        file=path.name,
        context=context,
        profiled_ms=profiled_ms,
        steps_parts_us=[
            dict(zip(rows["part"], rows["us"].tolist(), strict=True)) for _, rows in parts.groupby("step")
        ],
        counts=Counts(**{name: float(attribution.counts[name].mean()) for name in Counts.__struct_fields__}),
        busy_share_of_events=float((ops["class"] == "compute").mean()) if device is None else 0.0,
        problems=integrity(trace, found, attribution),
        replay=_stored(replay(trace, found, attribution, costs)),
        phases=phases or {},
    )


def _stored(predicted: Prediction | None) -> Replay | None:
    if predicted is None:
        return None
    us = None if predicted.replay_us is None else Range(*predicted.replay_us)
    return Replay(predicted.kind, predicted.step_us, us, predicted.assumptions, dict(predicted.left))
