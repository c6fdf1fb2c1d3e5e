"""Where the time of each step goes, on every device, or without one on the host; in parts that sum to it
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

from profiling.analysis.attribution import cpu, device
from profiling.analysis.attribution.cautions import cautions_of
from profiling.analysis.attribution.checks import integrity
from profiling.trace import Steps, Trace, load
from profiling.trace import steps as steps_of
from profiling.trace.devices import by_device
from profiling.trace.names import OP_CATEGORIES

__all__ = ["Attributed", "Attribution", "attribute", "attributed", "cautions_of", "integrity"]
HOST = "cpu"
"""The name of the host in the column `device`."""


@dataclass(frozen=True)
class Attribution:
    """One table shape for every device and for the host.

    `parts`: one row per step, device and part with `ns` (exact) and `us`; device parts as in
    `device.PARTS`, host parts as in `cpu.PARTS`. `intervals`: per step and device `start_ns`, `end_ns`; the
    parts sum to it. `counts`: per step `kernels` (its own device events of that kind), `launches`,
    `graph_launches`, `host_ops`, `syncs` (blocking copies too). `waits`: every wait of a device in a step,
    see `device.waits`, with `step` and `device`; `between`: those from its end to the next one's interval.
    `owner`: the step of each device event by its row label, -1 for none.
    """

    parts: pd.DataFrame
    intervals: pd.DataFrame
    counts: pd.DataFrame
    owner: pd.Series[int]
    waits: pd.DataFrame = field(default_factory=pd.DataFrame)
    between: pd.DataFrame = field(default_factory=pd.DataFrame)

    def parts_us(self, step: int, of: str) -> dict[str, float]:
        """Parts of one step (its row number) on one device, in us."""
        rows = self.parts[(self.parts["step"] == step) & (self.parts["device"] == of)]
        return dict(zip(rows["part"], rows["us"], strict=True))

    def judged(self, of: str) -> list[int]:
        """Steps in which a device did something; without a device, all."""
        rows = self.parts[
            (self.parts["device"] == of) & (self.parts["part"] == "busy") & (self.parts["ns"] > 0)
        ]
        return sorted(rows["step"]) or sorted(set(self.parts.loc[self.parts["device"] == of, "step"]))


def attribute(trace: Trace, steps: Steps, owner: pd.Series[int] | None = None) -> Attribution:
    """Divide every step's time. With device events in the trace: per device; without: on the thread of the
    step marks. `owner`: as another attribution of this trace, moved, has it.
    """
    work = trace.device_events
    owner = pd.Series(device.owners(work, steps), work.index) if owner is None else owner
    tables = _on_devices(work, steps, owner) if len(work) else _on_host(trace, steps)
    parts = tables.pop("parts").assign(us=lambda rows: rows["ns"] / 1000)
    return Attribution(parts, counts=_counts(trace, steps, owner), owner=owner, **tables)


Attributed: TypeAlias = tuple[Trace, Steps, Attribution]


def attributed(path: Path) -> Attributed:
    """A trace file with its steps and where their time goes; UserError where nothing can be read."""
    trace = load(path)
    steps = steps_of(trace)
    return trace, steps, attribute(trace, steps)


def _on_devices(work: pd.DataFrame, steps: Steps, owner: pd.Series[int]) -> dict[str, pd.DataFrame]:
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in ("parts", "intervals", "waits", "between")}
    step = np.arange(len(steps))
    for name, events in by_device(work).items():
        of_step = np.asarray(owner.loc[events.index], np.int64)
        begin, end = device.intervals(events, steps, of_step).T
        waits = device.waits(events, begin, end)
        parts = {"part": list(device.PARTS) * len(step), "ns": device.parts_ns(waits, begin, end).ravel()}
        between = device.waits(events, end[:-1], begin[1:])
        tables["parts"].append(pd.DataFrame({"step": step.repeat(len(device.PARTS)), "device": name} | parts))
        spans = {"step": step, "device": name, "start_ns": begin, "end_ns": end}
        tables["intervals"].append(pd.DataFrame(spans))
        tables["waits"].append(waits.rename(columns={"span": "step"}).assign(device=name))
        tables["between"].append(between.rename(columns={"span": "step"}).assign(device=name))
    return {name: pd.concat(of_devices, ignore_index=True) for name, of_devices in tables.items()}


def _on_host(trace: Trace, steps: Steps) -> dict[str, pd.DataFrame]:
    begin, end, threads = (steps.table[key].to_numpy(np.int64) for key in ("start_ns", "end_ns", "thread"))
    parts = np.zeros((len(steps), len(cpu.PARTS)), np.int64)
    ops = trace.host_ops
    for thread in np.unique(threads).tolist():
        here = threads == thread
        parts[here] = cpu.parts_ns(ops[ops["thread"] == thread], begin[here], end[here])
    step = np.arange(len(steps))
    divided = {"part": list(cpu.PARTS) * len(step), "ns": parts.ravel()}
    spans = {"step": step, "device": HOST, "start_ns": begin, "end_ns": end}
    return {
        "parts": pd.DataFrame({"step": step.repeat(len(cpu.PARTS)), "device": HOST} | divided),
        "intervals": pd.DataFrame(spans),
    }


def _counts(trace: Trace, steps: Steps, owner: pd.Series[int]) -> pd.DataFrame:
    work, calls = trace.device_events, trace.calls
    kernels = owner[(owner >= 0) & (work["kind"] == "kernel")].to_numpy()
    starts = {
        "launches": calls.loc[calls["kind"] == "kernel", "start_ns"],
        "graph_launches": calls.loc[calls["kind"] == "graph", "start_ns"],
        "host_ops": trace.in_categories(OP_CATEGORIES)["ts_ns"],
        "syncs": trace.host_waits["start_ns"],
    }
    counts = pd.DataFrame({"step": range(len(steps)), "kernels": np.bincount(kernels, minlength=len(steps))})
    for what, times in starts.items():
        counts[what] = device.inside(times.to_numpy(), steps)
    return counts
