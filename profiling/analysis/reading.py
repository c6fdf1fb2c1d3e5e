"""What sets the step, read from the causes of the device's time by stated rules, or that none can tell.

Steps of one kind are read together, without those whose length is out of proportion; other kinds are read
apart and named. The device's clock is read where it can stand: a verdict that it could change is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pandas as pd

from profiling.analysis.attribution import HOST, Attribution, attribute, integrity
from profiling.analysis.attribution.causes import CAUSES, causes
from profiling.analysis.attribution.device import busy_split_ns
from profiling.trace import Steps, Trace

MIN_EVENTS, MIN_STEPS, MIN_BUSY_NS = 8, 3, 1_000_000
"""A trace with less of all three is too small."""
KNOWN_NS = 10_000
"""Where the clock can stand within less than a launch takes, its lowest place is as good as any."""
DEVICE_SHARE = 0.8
BUSY_SHARE = 0.5
DOMINANT_SHARE = 0.5
UNKNOWN_SHARE = 0.25
OTHER_BUSY_SHARE = 0.1
"""Of the busy time: with more communication and copies than this, the rule says so."""
LABELS = {
    "launch": "launch-bound",
    "device": "device-bound",
    "sync": "sync-bound",
    "host": "host-bound outside launches",
}
AT_STAKE = {
    "launch": "the device waits for the host's launches for",
    "device": "the device is busy for",
    "sync": "the device waits for the host to come back from waiting for it for",
    "host": "the device waits for what the host does outside launches for",
}
NO_VERDICT = ("cannot tell", "too small to judge", "no device events")
_PREFILLS = re.compile(r"context_(\d+)|_new_(\d+)|(\d+) ctx")
_DECODES = re.compile(r"generation_(\d+)|cached_(\d+)|(\d+) gen")
"""Requests of each phase in the names of vLLM's, SGLang's and TensorRT-LLM's steps."""
_PREFILL_WORD = re.compile(r"(?i)(?:^|[^a-z])(?:prefill|extend|context)(?:[^a-z]|$)")
_DECODE_WORD = re.compile(r"(?i)(?:^|[^a-z])(?:decode|generat\w+|token)(?:[^a-z]|$)")
_BATCH = re.compile(r"bs=(\d+)")
ODD_FACTOR = 2
"""A step this many times as long as the usual one, or as short, is read apart."""
MIN_OF_BATCH = 3


@dataclass(frozen=True)
class Reading:
    """`label`: what sets the step; `rule`: the rule that decided, with its numbers; `shares`: of the
    device's time; `headline`: the microseconds behind the label; `notes`: steps that were read apart.
    """

    label: str
    rule: str
    device: str | None = None
    shares: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    headline: str = ""


def explained(trace: Trace, steps: Steps) -> tuple[Attribution, Reading]:
    """The attribution with the device's clock moved no further than it must be, and the reading, which is the
    same wherever the file's clock stood, or none.
    """
    clocks = trace.clocks
    near = trace.moved(clocks.nearest_ns)
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
    return attribution, replace(reading, label="cannot tell", rule=rule)


def read(trace: Trace, steps: Steps, attribution: Attribution) -> Reading:
    """The reading of a trace on its main device, by the clocks as they are."""
    of = trace.main_device
    problems = integrity(trace, steps, attribution)
    if of is None and trace.cut:
        return Reading("cannot tell", "the file is cut, and what is left of it has no device events")
    if of is None and trace.unknown_devices:
        return Reading("cannot tell", f"the trace has {unknown_rows(trace)}, and no device work that is read")
    if of is None:
        return _without_device(attribution, problems)
    table = causes(trace, attribution, of)
    parted = kinds(steps.table["name"].astype(str)).loc[table.index]
    usual, notes = _usual(table, parted)
    shares = _shares(usual)
    if problems:
        return Reading("cannot tell", f"the trace is unreliable: {problems[0]}", of, shares, problems, notes)
    events = int((trace.device_events["device"] == of).sum())
    if events < MIN_EVENTS and len(table) < MIN_STEPS and table["busy"].sum() < MIN_BUSY_NS:
        return Reading("too small to judge", f"{events} device events, fewer than {MIN_EVENTS}", of, shares)
    label, rule = _decide(shares, _busy(usual))
    rule += _busy_with(trace, of) + _replays(trace) * (label == "mixed")
    return Reading(label, rule, of, shares, problems, notes, _headline(label, shares, usual))


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
        steps = f"{len(apart)} {kind or 'unnamed'} steps of {_length(apart).median() / 1000:.0f} us"
        notes.append(f"{steps} are read apart from {most or 'the others'}: {label}")
    rows = table[parted == most]
    outliers = odd(_length(rows))
    if outliers.any():
        listed = [f"{step} ({ns / 1000:.0f} us)" for step, ns in _length(rows[outliers]).head(4).items()]
        usual_us = _length(rows[~outliers]).median() / 1000
        notes.append(
            f"{outliers.sum()} of {len(rows)} steps are outliers and left out of the reading: "
            f"step {', '.join(listed)}; the others take {usual_us:.0f} us"
        )
    return rows[~outliers], notes


def _length(table: pd.DataFrame) -> pd.Series[int]:
    """Without what the profiler took, which no step takes that is not profiled."""
    return table[list(CAUSES)].drop(columns="profiler").sum(axis=1)


def _shares(table: pd.DataFrame) -> dict[str, float]:
    """Of the device's time in some steps; {} where there is none."""
    sums = table[list(CAUSES)].drop(columns="profiler").sum()
    total = float(sums.sum())
    return {str(cause): float(ns) / total for cause, ns in sums.items()} if total else {}


def _busy(table: pd.DataFrame) -> float:
    return float(table["busy"].sum() / max(_length(table).sum(), 1))


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


def _headline(label: str, shares: dict[str, float], usual: pd.DataFrame) -> str:
    cause = next((cause for cause, named in LABELS.items() if named == label), None)
    if cause is None:
        return ""
    step_us = float(_length(usual).median()) / 1000
    of = f"{shares[cause]:.0%} of a step, {shares[cause] * step_us:.0f} of {step_us:.0f} us"
    return f"{AT_STAKE[cause]} {of}"


def _busy_with(trace: Trace, of: str) -> str:
    """What else than compute the device is busy with, where it is a share to know of."""
    work = trace.device_events
    ns = busy_split_ns(work[work["device"] == of])
    total = max(sum(ns.values()), 1)
    if ns["compute"] > (1 - OTHER_BUSY_SHARE) * total:
        return ""
    return "; busy with " + ", ".join(f"{what} {part / total:.0%}" for what, part in ns.items() if part)


def _replays(trace: Trace) -> str:
    kinds_of_call = trace.device_events["call_kind"]
    graphs = int((kinds_of_call == "graph").sum())
    return f"; {graphs} of {len(kinds_of_call)} device events come from replayed graphs" if graphs else ""


def phase(name: str) -> str:
    """ "prefill", "decode", both, or "" where a step's name does not say."""
    prefill, decode = _requests(_PREFILLS, name), _requests(_DECODES, name)
    if prefill is None and decode is None:
        found = (_PREFILL_WORD.search(name) is not None, _DECODE_WORD.search(name) is not None)
    else:
        found = (bool(prefill), bool(decode))
    return " and ".join(word for word, there in zip(("prefill", "decode"), found, strict=True) if there)


def _requests(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.search(name)
    return next(int(n) for n in found.groups() if n is not None) if found else None


def kinds(names: pd.Series[str]) -> pd.Series[str]:
    """Per step what it is read with: its phase, and its batch size where each has enough steps."""
    phases = names.map(phase)
    batch = names.map(lambda name: _batch(name) or 0)
    counts = batch.groupby([phases, batch]).transform("size")
    split = counts.groupby(phases).transform("min") >= MIN_OF_BATCH
    several = batch.groupby(phases).transform("nunique") > 1
    sized = phases + " of " + batch.astype(str)
    return phases.where(~(split & several & (batch > 0)), sized)


def _batch(name: str) -> int | None:
    found = _BATCH.search(name)
    return int(found[1]) if found else _requests(_DECODES, name)


def odd(length_ns: pd.Series[int]) -> pd.Series[bool]:
    """Per step of one kind whether its length is out of proportion to the (lower) median."""
    usual = float(length_ns.quantile(0.5, interpolation="lower"))
    return (length_ns > ODD_FACTOR * usual) | (ODD_FACTOR * length_ns < usual)
