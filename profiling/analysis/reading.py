"""What sets the step, read from the causes of the device's time by stated rules, or that none can tell.

Steps of one kind are read together, without those whose length is out of proportion; other kinds are read
apart and named. The device's clock is read where it can stand: a verdict that it could change is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from profiling.analysis.attribution import HOST, Attribution, attribute, integrity
from profiling.analysis.attribution.causes import CAUSES, PARTS, time_by_cause
from profiling.analysis.attribution.device import busy_split_ns
from profiling.analysis.host import DOMINANT_SHARE, TO_KNOW_SHARE, UNKNOWN_SHARE, at_stake, read_host
from profiling.analysis.kinds import MeanStep, kinds_of, odd
from profiling.trace import Steps, Trace

MIN_EVENTS, MIN_STEPS, MIN_BUSY_NS = 8, 3, 1_000_000
"""A trace with less of all three is too small."""
KNOWN_NS = 10_000
"""Where the clock can stand within less than a launch takes, its lowest place is as good as any."""
DEVICE_SHARE = 0.8
BUSY_SHARE = 0.5
LABELS = {
    "launch": "launch-bound",
    "device": "device-bound",
    "sync": "sync-bound",
    "host": "host-bound outside launches",
}
AT_STAKE = {
    "launch": "the device waits for the host's launches for",
    "device": "the device works, or begins what was issued, for",
    "sync": "the device waits for the host to come back from waiting for it for",
    "host": "the device waits for what the host does outside launches for",
}
NO_VERDICT = ("cannot tell", "too small to judge", "no device events")


@dataclass(frozen=True)
class Reading:
    """`label`: what sets the step; `rule`: the rule that decided, with its numbers; `shares`: of the
    device's time in the `mean` step; `headline`: the microseconds behind the label; `notes`: steps that were
    read apart.
    """

    label: str
    rule: str
    device: str | None = None
    shares: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    headline: str = ""
    mean: MeanStep = field(default_factory=MeanStep)


def explained(trace: Trace, steps: Steps) -> tuple[Attribution, Reading]:
    """The attribution with the device's clock moved no further than it must be, and the reading, which is the
    same wherever the file's clock stood, or none.
    """
    clocks = trace.clocks
    near = trace.near
    attribution = attribute(near, steps)
    if clocks.low_ns is None:
        return attribution, read(near, steps, attribution)
    low = trace.moved(clocks.low_ns)
    other = read(low, steps, attribute(low, steps, attribution.owner))
    if clocks.span_ns is not None and clocks.span_ns <= KNOWN_NS:
        return attribution, other
    reading = read(near, steps, attribution)
    if other.label == reading.label or reading.label in NO_VERDICT:
        return attribution, reading
    apart = (clocks.nearest_ns - clocks.low_ns) / 1000
    rule = f"with the device's clock {apart:.1f} us earlier it reads {other.label}, not {reading.label}"
    return attribution, replace(reading, label="cannot tell", rule=rule, headline="")


def read(trace: Trace, steps: Steps, attribution: Attribution) -> Reading:
    """The reading of a trace on its main device, by the clocks as they are."""
    of = trace.main_device
    problems = integrity(trace, steps, attribution)
    if of is None and trace.cut:
        return Reading("cannot tell", "the file is cut, and what is left of it has no device events")
    if of is None and trace.unknown_devices:
        return Reading("cannot tell", f"the trace has {unknown_rows(trace)}, and no device work that is read")
    if of is None:
        return _without_device(trace, steps, attribution, problems)
    table = time_by_cause(trace, attribution, of)
    parted = kinds_of(steps.table["name"].astype(str)).loc[table.index]
    usual, notes = _usual(table, parted)
    mean, shares = MeanStep.of(usual[list(PARTS)]), _shares(usual)
    unread = Reading("cannot tell", "", of, shares, problems, notes, mean=mean)
    if problems:
        return replace(unread, rule=f"the trace is unreliable: {problems[0]}")
    events = int((trace.device_events["device"] == of).sum())
    if events < MIN_EVENTS and len(table) < MIN_STEPS and table["busy"].sum() < MIN_BUSY_NS:
        few = f"{events} device events, fewer than {MIN_EVENTS}"
        return replace(unread, label="too small to judge", rule=few)
    label, rule = _decide(shares, _busy(usual))
    rule += _busy_with(trace, of) + _replays(trace) * (label == "mixed")
    return replace(unread, label=label, rule=rule, headline=_headline(label, shares, mean.length_us))


def _usual(table: pd.DataFrame, parted: pd.Series[str]) -> tuple[pd.DataFrame, list[str]]:
    """The steps that are read (of the kind with the most, decode before others), and what was read apart."""
    if table.empty:
        return table, []
    counts = parted.value_counts()
    most = max(counts.index, key=lambda kind: (counts[kind], kind.startswith("decode")))
    notes = []
    for kind in counts.index.drop(most):
        apart = table[parted == kind]
        label, _ = _decide(_shares(apart), _busy(apart))
        steps = f"{len(apart)} {kind or 'unnamed'} steps of {_length(apart).mean() / 1000:.0f} us"
        notes.append(f"{steps} are read apart from {most or 'the others'}: {label}")
    rows = table[parted == most]
    outliers = odd(_length(rows))
    if outliers.any():
        listed = [f"{step} ({ns / 1000:.0f} us)" for step, ns in _length(rows[outliers]).head(4).items()]
        usual_us = _length(rows[~outliers]).mean() / 1000
        notes.append(
            f"{outliers.sum()} of {len(rows)} steps are outliers and left out of the reading: "
            f"step {', '.join(listed)}; the others take {usual_us:.0f} us"
        )
    return rows[~outliers], notes


def _length(table: pd.DataFrame) -> pd.Series[int]:
    """Without what the profiler took, which no step takes that is not profiled."""
    return table[list(PARTS)].sum(axis=1)


def _shares(table: pd.DataFrame) -> dict[str, float]:
    """Per cause its share of the device's time in some steps; {} where there is none."""
    ns = dict.fromkeys(CAUSES, 0.0)
    for part, cause in PARTS.items():
        ns[cause] += float(table[part].sum())
    total = sum(ns.values())
    return {cause: part / total for cause, part in ns.items()} if total else {}


def _busy(table: pd.DataFrame) -> float:
    return float(table["busy"].sum() / max(_length(table).sum(), 1))


def unknown_rows(trace: Trace) -> str:
    """What of the trace is a device's work and not understood."""
    count, named = sum(trace.unknown_devices.values()), ", ".join(sorted(trace.unknown_devices)[:3])
    return f"{count} rows of an unknown device ({named})"


def _without_device(trace: Trace, steps: Steps, attribution: Attribution, problems: list[str]) -> Reading:
    """The host's reading; none where launches show that there was a device after all."""
    host = read_host(trace, steps, attribution)
    if problems:
        rule = f"the trace has no device events; {problems[0]}"
        return Reading("no device events", rule, HOST, {}, problems, mean=host.mean)
    return Reading(host.label, host.rule, HOST, host.shares, headline=host.headline, mean=host.mean)


def _decide(shares: dict[str, float], busy: float) -> tuple[str, str]:
    """Label and rule for shares of the device's time, of which it was busy the share `busy`."""
    listed = ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share >= 0.005)
    if not shares:
        return "cannot tell", "no device work could be given to a step"
    if shares["device"] >= DEVICE_SHARE and busy >= BUSY_SHARE:
        return LABELS["device"], f"device at least {DEVICE_SHARE:.0%} of its time ({listed})"
    for what in ("launch", "sync", "host"):
        if shares[what] >= DOMINANT_SHARE:
            return LABELS[what], f"{what} at least {DOMINANT_SHARE:.0%} of the device's time ({listed})"
    for what, means in (("unknown", "no launch call in the file"), ("late", "issued work did not start")):
        if shares[what] >= UNKNOWN_SHARE:
            rule = f"{what} at least {UNKNOWN_SHARE:.0%} of the device's time: {means} ({listed})"
            return "cannot tell", rule
    if shares["device"] >= DEVICE_SHARE:
        rule = f"the device is busy for {busy:.0%} of its time, though the next work was issued ({listed})"
        return "cannot tell", rule
    return "mixed", f"no part reaches its threshold ({listed})"


def _headline(label: str, shares: dict[str, float], step_us: float) -> str:
    cause = next((cause for cause, named in LABELS.items() if named == label), None)
    if cause is None and label != "mixed":
        return ""
    if cause:
        return at_stake(AT_STAKE[cause], shares[cause], step_us)
    waits = {what: share for what, share in shares.items() if share >= TO_KNOW_SHARE and what != "device"}
    listed = ", ".join(f"{what} {share * step_us:.0f} us" for what, share in waits.items())
    return f"{at_stake('the device waits for', 1 - shares['device'], step_us)} ({listed})"


def _busy_with(trace: Trace, of: str) -> str:
    """What else than compute the device is busy with, where it is a share to know of."""
    work = trace.device_events
    ns = busy_split_ns(work[work["device"] == of])
    total = max(sum(ns.values()), 1)
    if ns["compute"] > (1 - TO_KNOW_SHARE) * total:
        return ""
    return "; busy with " + ", ".join(f"{what} {part / total:.0%}" for what, part in ns.items() if part)


def _replays(trace: Trace) -> str:
    kinds_of_call = trace.device_events["call_kind"]
    graphs = int((kinds_of_call == "graph").sum())
    return f"; {graphs} of {len(kinds_of_call)} device events come from replayed graphs" if graphs else ""
