"""Can the trace be trusted? What makes it unreliable, and what only has to be known when its numbers are
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from profiling.analysis.attribution import device
from profiling.trace import Steps, Trace
from profiling.trace.devices import NONE, matching
from profiling.trace.names import OVERHEAD_CATEGORIES, WHOLE_DEVICE_SYNC

if TYPE_CHECKING:
    from profiling.analysis.attribution import Attribution

LOST_SHARE = 0.02
"""More launches than this without a device event: kernels were lost."""
UNLINKED_SHARE = 0.05
MISSING_WORK_SHARE = 0.25
LONG_WAIT_NS = 100_000
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
    found = [
        _lost_launches(trace, steps),
        _graph_under_recorded(trace),
        _steps_with_fewer_kernels(attribution),
    ]
    found += [_unlinked_inside(work), _missing_work(attribution)]
    skew = clock_skew_ns(trace)
    spans = attribution.intervals
    step_ns = float((spans["end_ns"] - spans["start_ns"]).mean()) if len(spans) else 0.0
    if skew > max(SKEW_NS, SKEW_SHARE * step_ns):
        found.append(f"host and device clocks disagree by at least {skew / 1000:.1f} us")
    return [problem for problem in found if problem]


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
        on_thread = (calls["thread"] == thread).to_numpy()
        for kind, time in [*zip(kinds, times, strict=True), ("capture_end", np.inf)]:
            if kind == "capture_begin":
                begin = time
            elif begin is not None:
                inside |= on_thread & calls["start_ns"].between(begin, time).to_numpy()
                begin = None
    return inside


def _lost_launches(trace: Trace, steps: Steps) -> str | None:
    launches = _recorded_launches(trace, steps)
    lost = int((launches["works"] == 0).sum())
    if lost <= LOST_SHARE * len(launches):
        return None
    of = f"{lost} of {len(launches)}"
    return f"{of} launches in the steps have no device event: kernels are missing in the trace"


def _graph_under_recorded(trace: Trace) -> str | None:
    sizes = trace.calls.loc[trace.calls["kind"] == "graph", "works"]
    if len(sizes) < 3:
        return None
    usual, times = int(sizes.mode().max()), int((sizes == sizes.mode().max()).sum())
    short = sizes[sizes < 0.9 * usual]
    if 2 * times < len(sizes) or short.empty:
        return None
    shown = f"{short.min()} to {short.max()}"
    return f"{len(short)} graph launches show {shown} device events where {times} show {usual}"


def _steps_with_fewer_kernels(attribution: Attribution) -> str | None:
    """Fewer kernels for as many launches, or fewer of both in the first steps, where profilers drop
    events.
    """
    counts = attribution.counts
    counts = counts[counts["launches"] + counts["graph_launches"] + counts["kernels"] > 0]
    if len(counts) < 3:
        return None
    usual = int(counts["kernels"].mode().max())
    agree = counts["kernels"] == usual
    if 2 * agree.sum() < len(counts):
        return None
    typical = counts[agree].iloc[0]
    fewer = counts[counts["kernels"] < usual]
    same_calls = (fewer["launches"] == typical["launches"]) & (
        fewer["graph_launches"] == typical["graph_launches"]
    )
    at_head = fewer["step"].to_numpy() == counts["step"].to_numpy()[: len(fewer)]
    bad = fewer[same_calls | at_head]
    if bad.empty:
        return None
    listed = ", ".join(str(n) for n in bad["kernels"].head(4))
    of = f"{len(bad)} of {len(counts)}"
    return f"{of} steps show fewer kernels ({listed}) than the others ({usual}): events were dropped"


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


def clock_skew_ns(trace: Trace) -> int:
    """By how much the two clocks disagree at least: work before its launch, or a device sync that ends
    before the work.
    """
    work = trace.device_events
    linked = work[work["call"] >= 0]
    skew = int((linked["call_start_ns"] - linked["start_ns"]).max()) if len(linked) else 0
    syncs = trace.calls[matching(trace.calls["name"], WHOLE_DEVICE_SYNC)]
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    call_ends, ids = work["call_end_ns"].to_numpy(), work["correlation"].to_numpy()
    columns = (syncs[key].tolist() for key in ("start_ns", "end_ns", "correlation"))
    for sync_start, sync_end, sync_id in zip(*columns, strict=True):
        behind = int(np.searchsorted(starts, sync_end))
        near = slice(max(0, behind - 64), behind)
        launched = (call_ends[near] != NONE) & (call_ends[near] <= sync_start)
        launched |= (call_ends[near] == NONE) & (ids[near] >= 0) & (ids[near] < sync_id)
        outlived = ends[near][launched] - sync_end
        skew = max(skew, int(outlived.max(initial=0)))
    return max(skew, 0)


def cautions(trace: Trace, steps: Steps, attribution: Attribution) -> list[str]:
    """What the reader has to know, beyond `trace.warnings` and `steps.notes`; none of it makes the trace
    unreliable.
    """
    work, calls = trace.device_events, trace.calls
    notes: list[str | None] = []
    unlinked = int((work["call"] < 0).sum())
    if unlinked:
        notes.append(
            f"{unlinked} device events have no launch call in the file (launched before the trace began)"
        )
    captured = int(
        (under_capture(calls) & calls["kind"].isin(["kernel", "memcpy", "memset"]).to_numpy()).sum()
    )
    if captured:
        notes.append(f"{captured} launches went into a graph being captured and started no device work")
    silent = calls[calls["kind"].isin(["memcpy", "memset"]) & (calls["works"] == 0) & ~under_capture(calls)]
    if len(silent) and len(work):
        notes.append(f"{len(silent)} copy or fill calls have no device event")
    skew = clock_skew_ns(trace)
    if skew:
        finest = f"{skew / 1000:.1f} us"
        notes.append(f"host and device clocks disagree by at least {finest}: the split is no finer")
    hidden = int(trace.host_waits["hidden"].sum())
    if hidden:
        notes.append(f"{hidden} copies to the host block like a sync")
    notes += [_profiler_overhead(trace, steps), _uneven_steps(attribution), _queued_before(attribution)]
    return [note for note in notes if note]


def _profiler_overhead(trace: Trace, steps: Steps) -> str | None:
    rows = trace.in_categories(OVERHEAD_CATEGORIES)
    inside = rows[device.inside_any(rows["ts_ns"].to_numpy(), steps)]
    if inside.empty:
        return None
    names = ", ".join(sorted(set(inside["name"].astype(str)))[:3])
    return f"the profiler itself took {inside['dur_ns'].sum() / 1000:.1f} us inside the steps ({names})"


def _uneven_steps(attribution: Attribution) -> str | None:
    counts = attribution.counts
    launches = counts["launches"] + counts["graph_launches"]
    empty = int(((launches == 0) & (counts["kernels"] == 0)).sum())
    if 0 < empty < len(counts):
        return f"{empty} of {len(counts)} steps launch nothing; means are over the others"
    if len(counts) > 1 and counts["kernels"].nunique() > 1:
        return f"the steps are not alike: {counts['kernels'].min()} to {counts['kernels'].max()} kernels"
    return None


def _queued_before(attribution: Attribution) -> str | None:
    waits = attribution.waits
    if waits.empty:
        return None
    queued = waits[(waits["where"] == "lead_in") & (waits["after_call"] > LONG_WAIT_NS)]
    if queued.empty:
        return None
    return (
        f"{len(queued)} steps begin with up to {queued['after_call'].max() / 1000:.0f} us in which "
        "issued work did not start: the device was held by work that the trace does not show"
    )
