"""What happens inside the one launch? Its phases as a table, and as rows of a Chrome trace.

The backend records them while it is watched (`OneLaunch.watch`): one row per phase, layer and thread, the
work without the wait at the barrier. The wait is the gap to the thread's next row.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd

from variants.backends.one_launch import Span

CATEGORY = "one_launch_phase"  # no reader of traces takes it for an op


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
    part = trace.with_name(f"phases-{trace.name}")
    with gzip.open(part, "wt", encoding="utf-8") as file:
        json.dump(content, file)
    part.replace(trace)
