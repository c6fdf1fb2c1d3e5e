"""Can the trace be trusted? What makes it unreliable, so that nothing is read from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from profiling.analysis.attribution import device
from profiling.analysis.kinds import batch_size
from profiling.trace import Steps, Trace

if TYPE_CHECKING:
    from profiling.analysis.attribution import Attribution

LOST_SHARE = 0.02
"""More launches than this without a device event: kernels were lost."""
UNLINKED_SHARE = 0.05
IMPOSSIBLE_SHARE = 0.05
EMPTY_SHARE = 0.8
MISSING_WORK_SHARE = 0.25
REPEATED = 3
"""A smaller number of events that comes this often is no loss, which strikes at random."""
LONG_WAIT_NS = 100_000
DRIFT_NS = 10_000
SKEW_NS = 50_000
SKEW_SHARE = 0.05


def integrity(trace: Trace, steps: Steps, attribution: Attribution) -> list[str]:
    """What makes the trace unreliable, one sentence each; with any of these there is no verdict."""
    work, calls = trace.device_events, trace.calls
    launches = calls[calls["kind"].isin(["kernel", "graph"])]
    if work.empty:
        return (
            [f"{len(launches)} launch calls but no device event: the profiler recorded no device activity"]
            if len(launches)
            else []
        )
    problems = [
        _mostly_empty(attribution),
        _clocks(trace, attribution),
        _impossible(trace),
        _lost_launches(trace, steps),
        _graph_under_recorded(trace, steps),
        _steps_with_fewer_kernels(trace, steps, attribution),
    ]
    problems += [_unlinked_inside(work), _missing_work(attribution)]
    return [problem for problem in problems if problem]


def _recorded_launches(trace: Trace, steps: Steps) -> pd.DataFrame:
    """Kernel and graph launches in the steps, without those that went into a graph being captured."""
    calls = trace.calls
    launches = calls[calls["kind"].isin(["kernel", "graph"]) & ~under_capture(calls)]
    return launches[device.inside_any(launches["start_ns"].to_numpy(), steps)]


def under_capture(calls: pd.DataFrame) -> np.ndarray:
    """Per call whether its thread was recording a graph: such launches start no device work."""
    inside = np.zeros(len(calls), np.bool_)
    marks = calls[calls["kind"].isin(["capture_begin", "capture_end"])]
    for thread, rows in marks.groupby("thread"):
        kinds, times = rows["kind"].tolist(), rows["start_ns"].tolist()
        begin = -np.inf if kinds[0] == "capture_end" else None
        on_thread = np.flatnonzero(calls["thread"] == thread)
        starts = calls["start_ns"].to_numpy()[on_thread]
        for kind, time in [*zip(kinds, times, strict=True), ("capture_end", np.inf)]:
            if kind == "capture_begin":
                begin = time
            elif begin is not None:
                first, behind = np.searchsorted(starts, begin), np.searchsorted(starts, time, "right")
                inside[on_thread[first:behind]] = True
                begin = None
    return inside


def _lost_launches(trace: Trace, steps: Steps) -> str | None:
    launches = _recorded_launches(trace, steps)
    lost = int((launches["works"] == 0).sum())
    if lost <= LOST_SHARE * len(launches):
        return None
    of = f"{lost} of {len(launches)}"
    return f"{of} launches in the steps have no device event: kernels are missing in the trace"


def _graph_under_recorded(trace: Trace, steps: Steps) -> str | None:
    """Replays of one graph that show fewer device events than its others."""
    replays = _replays(trace, steps)
    short = []
    for _, rows in replays.groupby("graph"):
        sizes = rows["works"]
        usual = sizes.mode().max()
        times = sizes.value_counts()
        # The same smaller size again and again is another graph here, as are the same nodes anywhere.
        another = times.index[times >= REPEATED]
        fewer = sizes[(sizes < 0.9 * usual) & ~sizes.isin(another) & (rows["alike"] < REPEATED)]
        repeat = max(times[usual], times[another].sum())
        if len(sizes) >= REPEATED and 2 * repeat >= len(sizes) and len(fewer):
            short.append((fewer, int(usual), int(times[usual])))
    if not short:
        return None
    count = sum(len(fewer) for fewer, _, _ in short)
    fewer, most, agree = short[0]
    counts = f"{fewer.min()} to {fewer.max()}"
    return f"{count} graph launches show {counts} device events where {agree} show {most}"


def _replays(trace: Trace, steps: Steps) -> pd.DataFrame:
    """Per graph launch `works`, `graph` (the id of what it replays, or where the trace has none its place in
    a step of its batch size), and `alike`: how many launches show the same nodes in the same order.
    """
    work = trace.device_events
    calls = trace.calls[trace.calls["kind"] == "graph"]
    ids = work[(work["graph"] >= 0) & (work["call_kind"] == "graph")].drop_duplicates("call")
    graph = ids.set_index("call")["graph"].reindex(calls.index)
    step = pd.Series(device.owners_of(calls["start_ns"].to_numpy(), steps), calls.index)
    place = calls.groupby(step).cumcount()
    batch = step.map(_batches(steps))
    named = [
        f"graph {int(g)}" if g >= 0 else f"place {p}, batch {b}"
        for g, p, b in zip(graph, place, batch, strict=True)
    ]
    nodes = work[work["call_kind"] == "graph"]
    each = nodes["name"].cat.codes.to_numpy(np.int64) << 32 | nodes.groupby("call").cumcount().to_numpy()
    together = pd.Series(pd.util.hash_array(each), nodes.index).groupby(nodes["call"]).sum()
    alike = together.map(together.value_counts()).reindex(calls.index, fill_value=0)
    return pd.DataFrame({"works": calls["works"], "graph": named, "alike": alike})


def _batches(steps: Steps) -> pd.Series[int]:
    """Per step the batch size in its name, 0 where it has none: other sizes may take other kernels."""
    return steps.table["name"].map(lambda name: batch_size(str(name)) or 0)


def _steps_with_fewer_kernels(trace: Trace, steps: Steps, attribution: Attribution) -> str | None:
    """Fewer kernels for as many launches, or fewer kernels and single launches in the first steps, where
    profilers drop events.
    """
    counts, batches = attribution.counts, _batches(steps)
    counts = counts[(batches == batches.mode().max()).to_numpy()[counts["step"]]]
    mended = device.owners_of(trace.impossible["call_start_ns"].to_numpy(), steps)
    counts = counts[counts["launches"] + counts["graph_launches"] + counts["kernels"] > 0]
    counts = counts[~counts["step"].isin(mended)]
    if len(counts) < 3:
        return None
    times = counts["kernels"].value_counts()
    usual = int(counts["kernels"].mode().max())
    if 2 * times[usual] < len(counts):
        return None
    typical = counts[counts["kernels"] == usual].iloc[0]
    fewer = counts[(counts["kernels"] < usual) & ~counts["kernels"].isin(times.index[times >= REPEATED])]
    same_calls = (fewer["launches"] == typical["launches"]) & (
        fewer["graph_launches"] == typical["graph_launches"]
    )
    at_head = fewer["step"].to_numpy() == counts["step"].to_numpy()[: len(fewer)]
    single = fewer["launches"] < typical["launches"]  # whole replays are not dropped: there were fewer
    bad = fewer[same_calls | (at_head & single)]
    if bad.empty:
        return None
    listed = ", ".join(str(n) for n in bad["kernels"].head(4))
    of = f"{len(bad)} of {len(counts)}"
    return f"{of} steps show fewer kernels ({listed}) than the others ({usual}): events were dropped"


def _impossible(trace: Trace) -> str | None:
    bad, rest = len(trace.impossible), len(trace.device_events)
    if bad <= IMPOSSIBLE_SHARE * (bad + rest):
        return None
    return f"{bad} of {bad + rest} device events have impossible times"


def _mostly_empty(attribution: Attribution) -> str | None:
    """Steps that show nothing at all, so many that the others are not the loop."""
    counts = attribution.counts
    empty = int((counts["launches"] + counts["graph_launches"] + counts["kernels"] == 0).sum())
    if empty <= EMPTY_SHARE * len(counts):
        return None
    return f"{empty} of {len(counts)} steps show neither launches nor kernels"


def _unlinked_inside(work: pd.DataFrame) -> str | None:
    linked = work["call"] >= 0
    if not linked.any():
        return None
    inside = work[~linked & (work["start_ns"] > work.loc[linked, "start_ns"].iat[0])]
    if len(inside) <= UNLINKED_SHARE * len(work):
        return None
    of = f"{len(inside)} of {len(work)}"
    return f"{of} device events have no launch call although they follow one that has"


def _missing_work(attribution: Attribution) -> str | None:
    """The device shows idle although work had been issued: what kept it busy is not in the trace."""
    waits = attribution.waits
    gaps = waits[(waits["where"] == "gap") & (waits["after_call"] > LONG_WAIT_NS)]
    spans = attribution.intervals
    total = int((spans["end_ns"] - spans["start_ns"]).sum())
    if gaps["after_call"].sum() <= MISSING_WORK_SHARE * total:
        return None
    return (
        f"the device shows {gaps['after_call'].sum() / 1e6:.1f} ms idle although work had been issued: "
        "what it did then is missing in the trace"
    )


def _clocks(trace: Trace, attribution: Attribution) -> str | None:
    drift, skew = trace.clocks.drift_ns, abs(trace.clocks.nearest_ns)
    if drift > DRIFT_NS:
        return f"host and device clocks run apart by at least {drift / 1000:.1f} us within the trace"
    spans = attribution.intervals
    step_ns = float((spans["end_ns"] - spans["start_ns"]).mean()) if len(spans) else 0.0
    if skew > max(SKEW_NS, SKEW_SHARE * step_ns):
        return f"host and device clocks disagree by at least {skew / 1000:.1f} us"
    return None
