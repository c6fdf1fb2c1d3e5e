"""What would the step cost as one replay? Predicted from an eager trace alone, with its assumptions and an
interval.

A graph replay on a device: lead-in of one launch + busy + (device nodes x node gap) + sync tail. A tape
replay on the host: own time of the compute ops + (recorded ops x cost of one op on the tape). For a trace
that replays graphs already: what is left beside them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
import pandas as pd

from profiling.analysis.attribution import HOST, Attribution
from profiling.analysis.attribution.device import owners_of
from profiling.analysis.kinds import MeanStep
from profiling.trace import Steps, Trace
from profiling.trace.devices import covered_ns, union_ns

Range = tuple[float, float, float]
"""Low, middle and high value, in us."""


@dataclass(frozen=True)
class Costs:
    """Constants of a replay in us as (low, middle, high), and which of them were measured on the device at
    hand.

    The assumed ones are what CUDA and HIP graphs of hundreds of nodes cost on current data-centre devices;
    a run that measures its own passes them in.
    """

    lead_in_us: Range = (5.0, 10.0, 30.0)
    node_gap_us: Range = (0.0, 0.8, 1.6)
    sync_us: Range = (3.0, 8.0, 20.0)
    tape_op_us: Range = (0.5, 1.0, 2.0)
    measured: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Prediction:
    """`step_us`: what the step takes as traced. `replay_us`: (low, mid, high), None where nothing can be
    predicted. `left`: for a trace that replays graphs already, what is beside them, per step in us.
    """

    kind: str
    step_us: float
    replay_us: Range | None
    assumptions: list[str] = field(default_factory=list)
    left: dict[str, float | int | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        out = asdict(self)
        if self.replay_us is not None:
            out["replay_us"] = dict(zip(("low", "mid", "high"), self.replay_us, strict=True))
            out["saved_us"] = self.step_us - self.replay_us[1]
        return out


def replay(
    trace: Trace,
    steps: Steps,
    attribution: Attribution,
    costs: Costs | None = None,
    mean: MeanStep | None = None,
) -> Prediction | None:
    """Cost of the step as one replay, for the device with the most work or, without one, for the host's op
    tape. `mean`: the steps that were read and their length; without it all that can be judged, and their
    lower median.

    None where no step can be judged, or the host's thread shows no ops.
    """
    costs = costs or Costs()
    of = trace.main_device
    judged = mean.steps if mean else attribution.judged(of or HOST)
    step_us = mean.length_us if mean else _usual_interval_us(attribution, of or HOST)
    if of is None:
        return _tape(trace, steps, attribution, costs, judged, step_us)
    busy = attribution.parts
    busy = busy[(busy["device"] == of) & (busy["part"] == "busy") & busy["step"].isin(judged)]
    if busy.empty or not busy["ns"].any():
        return None
    work = trace.device_events[trace.device_events["device"] == of]
    of_steps = work[attribution.owner.loc[work.index].isin(judged)]
    if of_steps.empty:
        return None
    if (of_steps["call_kind"] == "graph").any():
        return Prediction(
            "graphs are replayed already", step_us, None, [], _left(trace, of_steps, len(judged))
        )
    nodes = float(len(of_steps)) / len(judged)
    spread = _spread(busy["us"])
    low, mid, high = (
        costs.lead_in_us[i] + spread[i] + nodes * costs.node_gap_us[i] + costs.sync_us[i] for i in range(3)
    )
    assumptions = [
        "every kernel takes as long in the graph as here, and none is added or fused",
        f"the step's busy time stays; {nodes:.0f} device nodes",
        *_stated(costs, ("lead_in_us", "node_gap_us", "sync_us")),
    ]
    return Prediction("step as one graph replay", step_us, (low, mid, high), assumptions)


def _spread(us: pd.Series[float]) -> Range:
    """Lower quartile, median and upper quartile over the steps; of fewer than four steps the extremes.

    The extremes of many steps are what else ran on the machine.
    """
    low, high = (0.25, 0.75) if len(us) >= 4 else (0.0, 1.0)
    return float(us.quantile(low)), float(us.median()), float(us.quantile(high))


def _stated(costs: Costs, which: tuple[str, ...]) -> list[str]:
    out = []
    for name in which:
        low, mid, high = getattr(costs, name)
        how = "measured" if name in costs.measured else "assumed"
        out.append(f"{name.removesuffix('_us').replace('_', ' ')} {mid:g} us [{low:g}, {high:g}] ({how})")
    return out


def _usual_interval_us(attribution: Attribution, of: str) -> float:
    spans = attribution.intervals
    spans = spans[(spans["device"] == of) & spans["step"].isin(attribution.judged(of))]
    return float((spans["end_ns"] - spans["start_ns"]).quantile(0.5, interpolation="lower")) / 1000


def _left(trace: Trace, work: pd.DataFrame, n_steps: int) -> dict[str, float | int | None]:
    """Beside the graphs: time in the launch calls, waits between replays, kernels outside; means per step."""
    graph, outside = work[work["call_kind"] == "graph"], work[work["call_kind"] != "graph"]
    calls = trace.calls.loc[graph["call"].unique()]
    replays = graph.groupby("call").agg(start=("start_ns", "min"), end=("end_ns", "max")).sort_values("start")
    ends, starts = replays["end"].to_numpy()[:-1], replays["start"].to_numpy()[1:]
    apart = starts > ends
    between = (starts - ends - covered_ns(ends, starts, work))[apart]
    return {
        "graph_launches": len(replays) / n_steps,
        "graph_launch_call_us": float((calls["end_ns"] - calls["start_ns"]).sum()) / 1000 / n_steps,
        "between_replays_us": float(between.mean()) / 1000 if len(between) else None,
        "kernels_outside": float((outside["kind"] == "kernel").sum()) / n_steps,
        "busy_outside_us": union_ns(outside["start_ns"].to_numpy(), outside["end_ns"].to_numpy())
        / 1000
        / n_steps,
    }


def _tape(
    trace: Trace, steps: Steps, attribution: Attribution, costs: Costs, judged: list[int], step_us: float
) -> Prediction | None:
    if not judged:
        return None
    parts = attribution.parts
    compute = parts.loc[(parts["part"] == "compute") & parts["step"].isin(judged), "us"]
    ops = trace.host_ops
    step = owners_of(ops["start_ns"].to_numpy(), steps)
    on_thread = steps.table["thread"].to_numpy()[step] == ops["thread"].to_numpy()
    n_recorded = int((np.isin(step, judged) & on_thread & ops["recorded"].to_numpy()).sum())
    if not n_recorded:
        return None
    n_ops = n_recorded / len(judged)
    spread = _spread(compute)
    low, mid, high = (spread[i] + n_ops * costs.tape_op_us[i] for i in range(3))
    assumptions = [
        "every compute op takes as long on the tape as in this trace, the profiler's own cost included",
        f"own time of compute ops stays; {n_ops:.0f} ops are on the tape",
        *_stated(costs, ("tape_op_us",)),
    ]
    return Prediction("step as one tape replay", step_us, (low, mid, high), assumptions)
