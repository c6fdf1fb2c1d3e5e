"""What sets the step where no device shows: the host's computing, its dispatch, Python, or waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiling.analysis.attribution import Attribution
from profiling.analysis.kinds import odd
from profiling.trace import Steps, Trace
from profiling.trace.devices import covered_ns, matching
from profiling.trace.names import PYTHON_CATEGORIES, WAITING_FRAME

DOMINANT_SHARE = 0.5
"""From this share on a part sets the step."""
UNKNOWN_SHARE = 0.25
"""From this share on that is not known nothing is read."""
TO_KNOW_SHARE = 0.1
"""From this share on a part is named though it does not set the step."""
LABELS = {
    "compute": "host compute-bound",
    "overhead": "host dispatch-bound",
    "python": "host Python-bound",
    "waiting": "host waiting",
}
AT_STAKE = {
    "compute": "the host computes inside ops for",
    "overhead": "the host is in views, allocation and dispatch for",
    "python": "the host is in Python between ops for",
    "waiting": "the host waits for",
}


@dataclass(frozen=True)
class HostReading:
    """`label`, `rule` with its numbers, `shares` of the host's time, and `headline`, the us behind it."""

    label: str
    rule: str
    shares: dict[str, float]
    headline: str = ""


def read_host(trace: Trace, steps: Steps, attribution: Attribution) -> HostReading:
    """The reading of steps on their own thread, without those of a length out of proportion."""
    parts = attribution.parts.pivot(index="step", columns="part", values="ns")
    if parts.empty:
        return HostReading("no device events", "the trace has no device events and no steps", {})
    waiting = np.minimum(_waiting_ns(trace, steps), parts["python"])
    parts = parts.assign(python=parts["python"] - waiting, waiting=waiting)
    apart = odd(parts.sum(axis=1))
    usual = parts[~apart]
    total = max(float(usual.to_numpy().sum()), 1.0)
    shares = {what: float(usual[what].sum()) / total for what in (*LABELS, "unknown")}
    cause = next((what for what in LABELS if shares[what] >= DOMINANT_SHARE), None)
    unknown = cause is None and shares["unknown"] >= UNKNOWN_SHARE
    if cause:
        label, why = LABELS[cause], f"{cause} at least {DOMINANT_SHARE:.0%} of the host's time"
    elif unknown:
        label, why = "no device events", f"no event covers {shares['unknown']:.0%} of the host's time"
    else:
        label, why = "host mixed", "no part reaches its threshold"
    listed = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.005)
    left = f"; {apart.sum()} steps of another length are left out" if apart.any() else ""
    step_us = float(usual.sum(axis=1).median()) / 1000
    headline = "" if unknown else at_stake(AT_STAKE[cause] if cause else "", cause, shares, step_us)
    return HostReading(label, f"no device events; {why} ({listed}){left}", shares, headline)


def at_stake(said: str, cause: str | None, shares: dict[str, float], step_us: float) -> str:
    """The microseconds of a step behind a label: of its cause, or where none dominates of all that are a
    share to know of.
    """
    if cause:
        return f"{said} {shares[cause]:.0%} of a step, {shares[cause] * step_us:.0f} of {step_us:.0f} us"
    large = {what: share for what, share in shares.items() if share >= TO_KNOW_SHARE}
    return f"of a step of {step_us:.0f} us, " + ", ".join(
        f"{what} {share * step_us:.0f} us" for what, share in large.items()
    )


def _waiting_ns(trace: Trace, steps: Steps) -> pd.Series[int]:
    """Per step what frames of waiting cover of it on its thread."""
    frames = trace.in_categories(PYTHON_CATEGORIES)
    frames = frames[matching(frames["name"], WAITING_FRAME)]
    table = steps.table
    out = np.zeros(len(table), np.int64)
    for thread, rows in frames.groupby("thread"):
        own = (table["thread"] == thread).to_numpy()
        begin, end = (table.loc[own, key].to_numpy(np.int64) for key in ("start_ns", "end_ns"))
        spans = pd.DataFrame({"start_ns": rows["ts_ns"], "end_ns": rows["ts_ns"] + rows["dur_ns"]})
        out[own] = covered_ns(begin, end, spans)
    return pd.Series(out, range(len(table)))
