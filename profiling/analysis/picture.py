"""One step as rows of bars: host ops, launch calls, device streams, and the device's waits by cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profiling.analysis.attribution import HOST, Attribution
from profiling.trace import Steps, Trace
from profiling.trace.devices import SPLIT
from profiling.trace.names import LAUNCH_KINDS

MAX_BARS = 4000
"""Per row: beyond it the shortest bars are left out, which are narrower than a pixel."""


def picture(trace: Trace, steps: Steps, attribution: Attribution, device: str | None) -> dict[str, Any]:
    """The median judged step: `name`, `length_us`, `rows` of {`label`, `bars`: [start_us, length_us,
    kind]}; {} without steps.

    Time runs from the earlier of the step's host window and its interval on the device.
    """
    of = device or HOST
    judged = attribution.judged(of)
    if not judged:
        return {}
    spans = attribution.intervals[attribution.intervals["device"] == of].set_index("step")
    lengths = (spans["end_ns"] - spans["start_ns"]).loc[judged].sort_values(kind="stable")
    step = int(lengths.index[len(lengths) // 2])
    window_start, window_end, thread = steps.windows()[step]
    start = min(window_start, int(spans["start_ns"].to_numpy()[list(spans.index).index(step)]))
    end = max(window_end, int(spans["end_ns"].to_numpy()[list(spans.index).index(step)]))
    rows = [_host_row(trace, thread, start, end)]
    if device is not None:
        rows += [_call_row(trace, start, end), *_stream_rows(trace, device, start, end)]
        rows.append(_wait_row(attribution, device, step, start))
    return {
        "name": str(steps.table["name"].iat[step]),
        "length_us": (end - start) / 1000,
        "window_us": [(window_start - start) / 1000, (window_end - start) / 1000],
        "rows": [row for row in rows if row["bars"]],
    }


def _bars(starts: Any, ends: Any, kinds: Any, origin: int, limit: int) -> list[list[Any]]:
    starts, ends = np.maximum(np.asarray(starts), origin), np.minimum(np.asarray(ends), limit)
    kept = np.flatnonzero(ends >= starts)
    if len(kept) > MAX_BARS:
        kept = np.sort(kept[np.argsort((ends - starts)[kept])[-MAX_BARS:]])
    return [
        [(int(starts[i]) - origin) / 1000, (int(ends[i]) - int(starts[i])) / 1000, str(kinds[i])]
        for i in kept
    ]


def _host_row(trace: Trace, thread: int, start: int, end: int) -> dict[str, Any]:
    """The step's thread: outermost ops, or without a device every op by its class, those it calls after
    it.
    """
    ops = trace.host_ops
    ops = ops[(ops["thread"] == thread) & (ops["start_ns"] < end) & (ops["end_ns"] > start)]
    bars = []
    if not trace.device_events.empty:
        ops = ops[ops["parent"] < 0].assign(**{"class": "op"})
    elif len(ops):
        bars.append([0.0, (end - start) / 1000, "python"])
    kinds = ops["class"].to_numpy()
    return {"label": "host ops", "bars": bars + _bars(ops["start_ns"], ops["end_ns"], kinds, start, end)}


def _call_row(trace: Trace, start: int, end: int) -> dict[str, Any]:
    calls = trace.calls
    calls = calls[calls["kind"].isin([*LAUNCH_KINDS, "sync"])]
    calls = calls[(calls["start_ns"] < end) & (calls["end_ns"] > start)]
    kinds = calls["kind"].to_numpy()
    return {"label": "calls", "bars": _bars(calls["start_ns"], calls["end_ns"], kinds, start, end)}


def _stream_rows(trace: Trace, device: str, start: int, end: int) -> list[dict[str, Any]]:
    work = trace.device_events
    work = work[(work["device"] == device) & (work["start_ns"] < end) & (work["end_ns"] > start)]
    return [
        _stream_row(str(stream), rows, start, end) for stream, rows in work.groupby("stream", observed=True)
    ]


def _stream_row(stream: str, rows: pd.DataFrame, start: int, end: int) -> dict[str, Any]:
    kinds = rows["kind"].to_numpy()
    return {"label": f"stream {stream}", "bars": _bars(rows["start_ns"], rows["end_ns"], kinds, start, end)}


def _wait_row(attribution: Attribution, device: str, step: int, origin: int) -> dict[str, Any]:
    """The device's waits, each cut at the start and the end of the call that ended it."""
    waits = attribution.waits
    waits = waits[(waits["device"] == device) & (waits["step"] == step)]
    bars = []
    for wait in waits.to_dict("records"):
        at = wait["start_ns"]
        for part in SPLIT:
            if wait[part]:
                kind = wait["where"] if wait["where"] in ("tail", "empty") else part
                bars.append([(at - origin) / 1000, wait[part] / 1000, kind])
                at += wait[part]
    return {"label": "waits", "bars": bars}
