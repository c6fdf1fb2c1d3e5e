"""What has to be known when a trace's numbers are read, and makes none of them wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiling.analysis.attribution import device
from profiling.analysis.attribution.checks import LONG_WAIT_NS, under_capture
from profiling.trace import Steps, Trace
from profiling.trace.names import OVERHEAD_CATEGORIES

if TYPE_CHECKING:
    from profiling.analysis.attribution import Attribution


def cautions_of(trace: Trace, steps: Steps, attribution: Attribution) -> list[str]:
    """What the reader has to know, beyond `trace.warnings` and `steps.notes`; none of it makes the trace
    unreliable.
    """
    work, calls = trace.device_events, trace.calls
    notes: list[str | None] = [_impossible(trace)]
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
    skew = trace.clocks.nearest_ns
    if skew:
        apart, moved = f"{abs(skew) / 1000:.1f} us", "later" if skew > 0 else "earlier"
        notes.append(f"host and device clocks disagree by at least {apart}: the device is read {moved} by it")
    hidden = int(trace.host_waits["hidden"].sum())
    if hidden:
        notes.append(f"{hidden} copies to the host block like a sync")
    notes += [_profiler_overhead(trace, steps), _uneven_steps(attribution), _queued_before(attribution)]
    return [note for note in notes if note]


def _impossible(trace: Trace) -> str | None:
    bad = trace.impossible
    if bad.empty:
        return None
    reasons = ", ".join(f"{n} x {why}" for why, n in bad["reason"].value_counts().items())
    first = bad.iloc[0]
    lasts = (first["end_ns"] - first["start_ns"]) / 1000
    example = f"{str(first['name'])[:60]} at {first['start_ns'] / 1000:g} us for {lasts:g} us"
    return f"{len(bad)} device events have impossible times and are left out: {reasons}, such as {example}"


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
