"""What the device's time goes to, step by step, in the words of the verdict.

Device: busy, and the first moments in which issued work had not started. Launch: the host had not issued the
next work, or was in the call. Sync: the same, where the device ran dry while the host waited for it. Host: a
pause out of proportion to the others, and time behind the last work of the trace. Late: issued work that does
not start for longer than a launch takes. Profiler: the host was held by the profiler's own work. Unknown: no
launch call in the file. A wait is judged by the launch that ended it, in this step or in the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace import Trace
from profiling.trace.devices import covered_ns
from profiling.trace.names import OVERHEAD_CATEGORIES

if TYPE_CHECKING:
    from profiling.analysis.attribution import Attribution

Int = npt.NDArray[np.int64]
PARTS = {
    "busy": "device",
    "starting": "device",
    "not_issued": "launch",
    "in_call": "launch",
    "sync": "sync",
    "host": "host",
    "late": "late",
    "unknown": "unknown",
}
"""Part of a step's time -> its cause; what the profiler took is none of them."""
CAUSES = tuple(dict.fromkeys(PARTS.values()))
LATENCY_NS = 10_000
"""From a launch call's end to the start of its work: on an idle device it takes no longer."""
PAUSE_NS, GRAPH_PAUSE_NS, PAUSE_FACTOR = 1_000_000, 100_000, 10
"""A wait this long, and so many times the usual one, is no launch's; a graph, of which a step launches few,
takes less.
"""


def time_by_cause(trace: Trace, attribution: Attribution, of: str) -> pd.DataFrame:
    """Per judged step of a device ns of each of `PARTS`, and `profiler`; rows by step.

    A step's time runs to the beginning of the next one's. Left out of it: a wait at its start in which issued
    work did not start, since what held the device then is an earlier step's, or is not in the file.
    """
    judged = attribution.judged(of)
    spans = attribution.intervals[attribution.intervals["device"] == of].set_index("step")
    following = spans["start_ns"].shift(-1).fillna(spans["end_ns"]).astype(np.int64)
    length = np.maximum(following, spans["end_ns"]) - spans["start_ns"]
    waits = pd.concat([attribution.waits, attribution.between], ignore_index=True)
    waits = waits[(waits["device"] == of) & waits["step"].isin(judged)]
    divided = _divide(waits, trace)
    out = divided.groupby(waits["step"]).sum().reindex(judged, fill_value=0)
    lasted = (waits["end_ns"] - waits["start_ns"]).groupby(waits["step"]).sum()
    busy = length.loc[judged] - lasted.reindex(judged, fill_value=0)
    return out.assign(busy=busy)[[*PARTS, "profiler"]]


def _divide(waits: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """Per wait ns of each of `PARTS` but `busy`, and `profiler`."""
    start, before, during, after, unknown = (
        waits[key].to_numpy() for key in ("start_ns", "before_call", "during_call", "after_call", "unknown")
    )
    last = (waits["ender"] < 0).to_numpy()
    before, unknown = np.where(last, unknown, before), np.where(last, 0, unknown)
    overhead = trace.in_categories(OVERHEAD_CATEGORIES)
    overhead = pd.DataFrame({"start_ns": overhead["ts_ns"], "end_ns": overhead["ts_ns"] + overhead["dur_ns"]})
    profiler = covered_ns(start, start + before, overhead)
    profiler_in_call = covered_ns(start + before, start + before + during, overhead)
    own_before, own_during = before - profiler, during - profiler_in_call
    waited = np.minimum(covered_ns(start, start + before, trace.host_waits), own_before)
    # Step marks cut a wait into pieces, which are judged as the one that a launch ended.
    ender = waits["ender"].to_numpy()
    whole = pd.DataFrame({"start": start, "host": own_before - waited}).groupby(ender)
    began, paused = whole["start"].transform("min").to_numpy(), whole["host"].transform("sum").to_numpy()
    pause = _is_pause(paused, trace.device_events["call_kind"].to_numpy()[ender], last) | last
    ran_dry = covered_ns(began - 1, began, trace.host_waits) > 0
    sync = np.where(pause, waited, np.where(ran_dry, own_before + own_during, 0))
    host = np.where(pause, own_before - waited, 0)
    early = np.minimum(after, LATENCY_NS)
    at_start = (waits["where"] == "lead_in").to_numpy()
    return pd.DataFrame(
        {
            "starting": np.where(at_start, 0, early),
            "not_issued": np.where(pause | ran_dry, 0, own_before),
            "in_call": np.where(ran_dry & ~pause, 0, own_during),
            "sync": sync,
            "host": host,
            "late": np.where(at_start, 0, after - early),
            "unknown": unknown,
            "profiler": profiler + profiler_in_call,
        },
        index=waits.index,
    )


def _is_pause(
    paused: Int, called: npt.NDArray[np.object_], last: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Per wait whether it is out of proportion to those that single launches usually end."""
    graph = called == "graph"
    usual = float(np.median(paused[~graph & ~last])) if (~graph & ~last).any() else 0.0
    return paused >= np.maximum(np.where(graph, GRAPH_PAUSE_NS, PAUSE_NS), PAUSE_FACTOR * usual)
