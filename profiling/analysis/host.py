"""What sets the step where no device shows: the host's computing, its dispatch, Python, or waiting."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from profiling.analysis.attribution import Attribution
from profiling.analysis.kinds import MeanStep, odd
from profiling.trace import Steps, Trace
from profiling.trace.devices import covered_ns, matching
from profiling.trace.names import OP_CATEGORIES, PYTHON_CATEGORIES, WAITING_FRAME

DOMINANT_SHARE = 0.5
"""From this share on a part sets the step."""
UNKNOWN_SHARE = 0.25
"""From this share on that is not known nothing is read."""
TO_KNOW_SHARE = 0.1
"""From this share on a part is named though it does not set the step."""
SILENCE_NS = 1_000_000
"""Between two ops Python takes less: a longer pause without a frame may be anything."""
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
    """`label`, `rule` with its numbers, `shares` of the host's time in the `mean` step, and `headline`, the
    us behind the label.
    """

    label: str
    rule: str
    shares: dict[str, float]
    headline: str = ""
    mean: MeanStep = field(default_factory=MeanStep)


def read_host(trace: Trace, steps: Steps, attribution: Attribution) -> HostReading:
    """The reading of steps on their own thread, without those of a length out of proportion."""
    parts = attribution.parts.pivot(index="step", columns="part", values="ns")
    if parts.empty:
        return HostReading("no device events", "the trace has no device events and no steps", {})
    waiting = np.minimum(_waiting_ns(trace, steps), parts["python"])
    silent = np.minimum(_silent_ns(trace, steps), parts["python"] - waiting)
    parts = parts.assign(waiting=waiting, unknown=parts["unknown"] + silent)
    parts = parts.assign(python=parts["python"] - waiting - silent)
    apart = odd(parts.sum(axis=1))
    mean = MeanStep.of(parts.loc[~apart, [*LABELS, "unknown"]])
    shares = {part: us / max(mean.length_us, 1e-3) for part, us in mean.parts_us.items()}
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
    headline = "" if unknown else _headline(cause, mean)
    rule = f"{why} ({listed}), and the trace has no device events{left}"
    return HostReading(label, rule, shares, headline, mean)


def _headline(cause: str | None, mean: MeanStep) -> str:
    """The microseconds of a step behind a label; where none dominates, of each part to know of."""
    if cause:
        return at_stake(AT_STAKE[cause], mean.parts_us[cause] / mean.length_us, mean.length_us)
    large = {part: us for part, us in mean.parts_us.items() if us >= TO_KNOW_SHARE * mean.length_us}
    listed = ", ".join(f"{part} {us:.0f} us" for part, us in large.items())
    return f"of a step of {mean.length_us:.0f} us, {listed}"


def at_stake(said: str, share: float, step_us: float) -> str:
    """What is said of a share of each step, with its microseconds."""
    return f"{said} {share:.0%} of each step: {share * step_us:.0f} of {step_us:.0f} us"


def _waiting_ns(trace: Trace, steps: Steps) -> pd.Series[int]:
    """Per step what frames of waiting cover of it on its thread, without the ops inside them."""
    ops = trace.in_categories(OP_CATEGORIES)
    frames = trace.in_categories(PYTHON_CATEGORIES)
    waits = frames[matching(frames["name"], WAITING_FRAME)]
    return _covered_ns(pd.concat([waits, ops]), steps) - _covered_ns(ops, steps)


def _silent_ns(trace: Trace, steps: Steps) -> pd.Series[int]:
    """Per step what pauses of at least `SILENCE_NS` cover of it on its thread, in which it shows neither an
    op nor a Python frame: the interpreter may have run, slept or waited.
    """
    events = trace.in_categories(PYTHON_CATEGORIES | OP_CATEGORIES).sort_values("ts_ns")
    of_threads = steps.table.groupby("thread")
    return _covered_ns(pd.concat([_pauses(events, rows) for _, rows in of_threads]), steps)


def _pauses(events: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """`thread`, `ts_ns` and `dur_ns` of the long pauses between events, by start, of one thread from its
    first step to the end of its last; `table`: those steps.
    """
    thread = table["thread"].iat[0]
    rows = events[events["thread"] == thread]
    start, reach = rows["ts_ns"].to_numpy(), (rows["ts_ns"] + rows["dur_ns"]).cummax().to_numpy()
    begin, end = np.append(table["start_ns"].min(), reach), np.append(start, table["end_ns"].max())
    pauses = pd.DataFrame({"thread": thread, "ts_ns": begin, "dur_ns": end - begin})
    return pauses[pauses["dur_ns"] >= SILENCE_NS]


def _covered_ns(events: pd.DataFrame, steps: Steps) -> pd.Series[int]:
    """Per step what some events cover of it on its thread."""
    table = steps.table
    out = np.zeros(len(table), np.int64)
    for thread, rows in table.groupby("thread"):
        begin, end = (rows[key].to_numpy(np.int64) for key in ("start_ns", "end_ns"))
        here = events[events["thread"] == thread]
        spans = pd.DataFrame({"start_ns": here["ts_ns"], "end_ns": here["ts_ns"] + here["dur_ns"]})
        out[rows.index] = covered_ns(begin, end, spans)
    return pd.Series(out, table.index)
