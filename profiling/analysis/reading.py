"""What sets the step, read from an attribution by stated rules, or that the trace cannot tell.

The device's time over the judged steps, and between them where steps are marked, falls into: device (busy,
and short waits of work that had been issued), launch (the host had not issued the next work, or was in the
call), sync (the same, where the device ran dry while the host waited for it), host (the same, where one
pause is out of proportion to the others, and time behind the last device event or between the steps),
unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from profiling.analysis.attribution import HOST, Attribution, device, integrity
from profiling.trace import Steps, Trace
from profiling.trace.devices import union_ns

MIN_EVENTS = 8
DEVICE_SHARE = 0.8
DOMINANT_SHARE = 0.5
UNKNOWN_SHARE = 0.25
PAUSE_NS = 1_000_000
PAUSE_FACTOR = 10
LABELS = {
    "launch": "launch-bound",
    "device": "device-bound",
    "sync": "sync-bound",
    "host": "host-bound outside launches",
}


@dataclass(frozen=True)
class Reading:
    """`label`: what sets the step; `rule`: the rule that decided, with its numbers; `shares`: of the
    device's time.
    """

    label: str
    rule: str
    device: str | None = None
    shares: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def main_device(trace: Trace) -> str | None:
    """The device with the most work, None without device events."""
    work = trace.device_events
    if work.empty:
        return None
    lasted = (work["end_ns"] - work["start_ns"]).groupby(work["device"].astype(object)).sum()
    return str(lasted.idxmax())


def read(trace: Trace, steps: Steps, attribution: Attribution) -> Reading:
    """The reading of a trace on its main device."""
    of = main_device(trace)
    problems = integrity(trace, steps, attribution)
    if of is None and trace.cut:
        return Reading("cannot tell", "the file is cut, and what is left of it has no device events")
    if of is None and trace.unknown_devices:
        return Reading("cannot tell", f"the trace has {unknown_rows(trace)}, and no device work that is read")
    if of is None:
        return _without_device(attribution, problems)
    shares = device_shares(trace, steps, attribution, of)
    if problems:
        return Reading("cannot tell", f"the trace is unreliable: {problems[0]}", of, shares, problems)
    events = int((trace.device_events["device"] == of).sum())
    if events < MIN_EVENTS:
        return Reading("too small to judge", f"{events} device events, fewer than {MIN_EVENTS}", of, shares)
    return Reading(*_decide(trace, shares), of, shares)


def unknown_rows(trace: Trace) -> str:
    """What of the trace is a device's work and not understood."""
    count, named = sum(trace.unknown_devices.values()), ", ".join(sorted(trace.unknown_devices)[:3])
    return f"{count} rows of an unknown device ({named})"


def _without_device(attribution: Attribution, problems: list[str]) -> Reading:
    """Says why there is nothing to read, and where the host's time went."""
    parts = attribution.mean_us(HOST)
    total = sum(parts.values())
    shares = {part: value / total for part, value in parts.items()} if total else {}
    listed = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.005)
    why = [
        "the trace has no device events",
        *problems[:1],
        *([f"the host's time: {listed}"] if listed else []),
    ]
    return Reading("no device events", "; ".join(why), HOST, shares, problems)


def _decide(trace: Trace, shares: dict[str, float]) -> tuple[str, str]:
    listed = ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share >= 0.005)
    if not shares:
        return "cannot tell", "no device work could be given to a step"
    if shares["device"] >= DEVICE_SHARE:
        return LABELS["device"], f"device at least {DEVICE_SHARE:.0%} of its time ({listed})"
    if shares["unknown"] >= UNKNOWN_SHARE:
        return "cannot tell", f"unknown at least {UNKNOWN_SHARE:.0%} of the device's time ({listed})"
    for what in ("launch", "sync", "host"):
        if shares[what] >= DOMINANT_SHARE:
            return LABELS[what], f"{what} at least {DOMINANT_SHARE:.0%} of the device's time ({listed})"
    graphs = int((trace.device_events["call_kind"] == "graph").sum())
    replay = (
        f"; {graphs} of {len(trace.device_events)} device events come from replayed graphs" if graphs else ""
    )
    return "mixed", f"no part reaches its threshold ({listed}){replay}"


def device_shares(trace: Trace, steps: Steps, attribution: Attribution, of: str) -> dict[str, float]:
    """Shares of one device's time over the judged steps; {} where no step has any of its work.

    Left out: a wait at a step's start in which issued work did not start, since what held the device then is
    an earlier step's work, or is not in the file.
    """
    judged = attribution.judged(of)
    parts = attribution.parts[(attribution.parts["device"] == of) & attribution.parts["step"].isin(judged)]
    waits = attribution.waits[(attribution.waits["device"] == of) & attribution.waits["step"].isin(judged)]
    ns = dict.fromkeys(("device", "launch", "sync", "host", "unknown"), 0.0)
    ns["device"] += int(parts.loc[parts["part"] == "busy", "ns"].sum())
    _add_waits(ns, waits, trace.host_waits)
    if len(judged) > 1:
        _add_between(ns, trace, attribution, of, judged)
    total = sum(ns.values())
    return {what: amount / total for what, amount in ns.items()} if total else {}


def _add_waits(ns: dict[str, float], waits: pd.DataFrame, syncs: pd.DataFrame) -> None:
    """Divide the waits of `Attribution.waits` over the parts of `ns`, in place."""
    ended = waits[waits["where"].isin(["gap", "lead_in"])]
    before = ended["before_call"].to_numpy()
    in_sync = _inside(ended["start_ns"].to_numpy(), syncs)
    usual = float(np.median(before)) if len(before) else 0.0
    pause = ~in_sync & (before >= PAUSE_NS) & (before >= PAUSE_FACTOR * usual)
    during = ended["during_call"].to_numpy()
    ns["sync"] += int((before + during)[in_sync].sum())
    ns["host"] += int(before[pause].sum())
    ns["launch"] += int(before[~in_sync & ~pause].sum() + during[~in_sync].sum())
    ns["device"] += int(ended.loc[ended["where"] == "gap", "after_call"].sum())
    ns["unknown"] += int(ended["unknown"].sum())
    tails = waits[waits["where"] == "tail"]
    length = int((tails["end_ns"] - tails["start_ns"]).sum())
    spans = zip(tails["start_ns"].tolist(), tails["end_ns"].tolist(), strict=True)
    waiting = sum(_overlap(start, end, syncs) for start, end in spans)
    ns["sync"] += waiting
    ns["host"] += length - waiting


def _inside(times: np.ndarray, syncs: pd.DataFrame) -> np.ndarray:
    """Per time whether the host was in one of `syncs`."""
    if syncs.empty:
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(syncs["start_ns"].to_numpy(), times, "right") - 1
    reach = np.maximum.accumulate(syncs["end_ns"].to_numpy())
    return (at >= 0) & (times <= reach[np.maximum(at, 0)])


def _overlap(start: int, end: int, syncs: pd.DataFrame) -> int:
    begins, ends = syncs["start_ns"].to_numpy(), syncs["end_ns"].to_numpy()
    near = (begins < end) & (ends > start)
    return union_ns(np.maximum(begins[near], start), np.minimum(ends[near], end))


def _add_between(
    ns: dict[str, float], trace: Trace, attribution: Attribution, of: str, judged: list[int]
) -> None:
    """Time between one judged step's interval and the next one's: other work there is busy, the rest is the
    host's.
    """
    spans = attribution.intervals
    spans = spans[(spans["device"] == of) & spans["step"].isin(judged)].sort_values("step")
    work = trace.device_events[trace.device_events["device"] == of]
    reach = np.maximum.accumulate(work["end_ns"].to_numpy())
    for end, start in zip(spans["end_ns"].to_numpy()[:-1], spans["start_ns"].to_numpy()[1:], strict=True):
        if start > end:
            busy, _ = device.waits(work, reach, int(end), int(start))
            ns["device"] += busy
            ns["host"] += int(start - end) - busy
