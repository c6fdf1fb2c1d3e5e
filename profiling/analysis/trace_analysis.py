"""What a run keeps of each trace: parts, counts, problems, and the replay predicted from it."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from profiling.analysis.attribution import HOST, attribute, integrity
from profiling.analysis.predict import Costs, replay
from profiling.analysis.reading import main_device
from profiling.trace import load, steps

COUNTS = ("kernels", "launches", "graph_launches", "host_ops", "syncs")


def analyse(path: Path, profiled_ms: list[float], costs: Costs) -> dict[str, Any]:
    """Per-step means of one trace: `parts_us` sum to the interval, `busy_us` is the part that computes."""
    trace = load(path)
    found = steps(trace)
    attribution = attribute(trace, found)
    device = main_device(trace)
    where = HOST if device is None else device
    parts = attribution.parts[attribution.parts["device"] == where]
    means = {str(part): us for part, us in parts.groupby("part", sort=False)["us"].mean().to_dict().items()}
    prediction = replay(trace, found, attribution, costs)
    ops = trace.host_ops
    return {
        "parts_us": means,
        "steps_parts_us": [rows.set_index("part")["us"].to_dict() for _, rows in parts.groupby("step")],
        "counts": {name: float(attribution.counts[name].mean()) for name in COUNTS},
        "problems": integrity(trace, found, attribution),
        "busy_us": means.get("compute" if device is None else "busy", 0.0),
        "busy_share_of_events": float((ops["class"] == "compute").mean()) if device is None else 0.0,
        "profiled_ms": mean(profiled_ms),
        "replay": None if prediction is None else prediction.as_json(),
    }
