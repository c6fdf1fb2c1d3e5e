"""Where the time of each step goes, on every device, or without one on the host; in parts that sum to it
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from profiling.analysis.attribution import cpu, device
from profiling.analysis.attribution.cautions import cautions
from profiling.analysis.attribution.checks import integrity
from profiling.trace import Steps, Trace
from profiling.trace.devices import by_device
from profiling.trace.names import OP_CATEGORIES

__all__ = ["Attribution", "attribute", "cautions", "integrity"]
HOST = "cpu"
"""The name of the host in the column `device`."""


@dataclass(frozen=True)
class Attribution:
    """One table shape for every device and for the host.

    `parts`: one row per step, device and part with `ns` (exact) and `us`; device parts as in
    `device.PARTS`, host parts as in `cpu.PARTS`. `intervals`: per step and device `start_ns`, `end_ns`; the
    parts sum to it. `counts`: per step `kernels` (its own device events of that kind), `launches`,
    `graph_launches`, `host_ops`, `syncs` (blocking copies too). `waits`: every wait of a device, see
    `device.waits`, with `step` and `device`.
    """

    parts: pd.DataFrame
    intervals: pd.DataFrame
    counts: pd.DataFrame
    waits: pd.DataFrame = field(default_factory=pd.DataFrame)

    def parts_us(self, step: int, of: str) -> dict[str, float]:
        """Parts of one step (its row number) on one device, in us."""
        rows = self.parts[(self.parts["step"] == step) & (self.parts["device"] == of)]
        return dict(zip(rows["part"], rows["us"], strict=True))

    def mean_us(self, of: str) -> dict[str, float]:
        """Parts on one device, mean over the steps in which it worked (all steps where it never did), in
        us.
        """
        rows = self.parts[(self.parts["device"] == of) & self.parts["step"].isin(self.judged(of))]
        means = rows.groupby("part", sort=False)["us"].mean()
        return dict(zip(means.index.astype(str), means.tolist(), strict=True))

    def judged(self, of: str) -> list[int]:
        """Steps in which a device did something; without a device, all."""
        rows = self.parts[
            (self.parts["device"] == of) & (self.parts["part"] == "busy") & (self.parts["ns"] > 0)
        ]
        return sorted(rows["step"]) or sorted(set(self.parts.loc[self.parts["device"] == of, "step"]))


def attribute(trace: Trace, steps: Steps) -> Attribution:
    """Divide every step's time. With device events in the trace: per device; without: on the thread of the
    step marks.
    """
    work = trace.device_events
    if len(work):
        parts, spans, waited = _on_devices(work, steps)
    else:
        parts, spans = _on_host(trace, steps)
        waited = pd.DataFrame()
    table = pd.DataFrame(parts, columns=["step", "device", "part", "ns"])
    table["us"] = table["ns"] / 1000
    intervals = pd.DataFrame(spans, columns=["step", "device", "start_ns", "end_ns"])
    return Attribution(table, intervals, _counts(trace, steps), waited)


def _on_devices(work: pd.DataFrame, steps: Steps) -> tuple[list[object], list[object], pd.DataFrame]:
    parts: list[object] = []
    spans: list[object] = []
    waited = []
    for name, every_column in by_device(work).items():
        events = every_column[["start_ns", "end_ns", "call_start_ns", "call_end_ns"]]
        reach = np.maximum.accumulate(events["end_ns"].to_numpy())
        for step, (start, end) in enumerate(device.intervals(events, steps)):
            busy, rows = device.waits(events, reach, start, end)
            parts += [(step, name, part, ns) for part, ns in device.parts_ns(busy, rows).items()]
            spans.append((step, name, start, end))
            waited.append(rows.assign(step=step, device=name))
    return parts, spans, pd.concat(waited, ignore_index=True) if waited else pd.DataFrame()


def _on_host(trace: Trace, steps: Steps) -> tuple[list[object], list[object]]:
    parts: list[object] = []
    spans: list[object] = []
    ops = trace.host_ops
    by_thread = {thread: ops[ops["thread"] == thread] for thread in ops["thread"].unique().tolist()}
    for step, (start, end, thread) in enumerate(steps.windows()):
        divided = cpu.parts_ns(by_thread.get(thread), start, end)
        parts += [(step, HOST, part, ns) for part, ns in divided.items()]
        spans.append((step, HOST, start, end))
    return parts, spans


def _counts(trace: Trace, steps: Steps) -> pd.DataFrame:
    work, calls = trace.device_events, trace.calls
    owner = device.owners(work, steps)
    kernels = owner[(owner >= 0) & (work["kind"] == "kernel").to_numpy()]
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
