"""The longest lists of a trace: what the device is busy with, what it waits for and what the host did then,
and where the host waits for it.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.analysis.attribution import Attribution
from profiling.analysis.attribution.device import COMMUNICATION, owners_of
from profiling.analysis.sites import Sites
from profiling.trace import Steps, Trace
from profiling.trace.devices import SPLIT, of_categories
from profiling.trace.names import CALL_CATEGORY, OP_CATEGORIES, PYTHON_CATEGORIES

Row = dict[str, Any]  # as `--json` prints it
LISTS = ("kernels", "host_ops", "gaps", "families", "outside_graphs", "host_waits")
COVERS = 0.5
"""An op or frame explains a gap if it covers this share of it; of those that do, the shortest."""
NODES = "next graph node"
MAX_SITES = 3
FAMILIES = {
    "communication": COMMUNICATION,
    "norm": re.compile(r"(?i).*(?:(?:rms|layer_?|batch_?|group_?|_)norm|bn_(?:fw|bw)_)"),
    "rotary": re.compile(r"(?i).*(?:rotary|rope)"),
    "attention": re.compile(r"(?i).*(?:flash|fmha|attention|attn|paged|mla_|softmax_warp)"),
    "mixture of experts": re.compile(r"(?i).*(?:moe|expert|topk_?gating|grouped_?gemm)"),
    "matrix product": re.compile(r"(?i).*(?:gemm|gemv|bmm_|cutlass|cublas|nvjet|matmul|splitk|Cijk_)"),
    "sampling": re.compile(r"(?i).*(?:argmax|top_?[kp]|sampl|sort|multinomial|softmax|penalt)"),
    "data movement": re.compile(r"(?i).*(?:memcpy|memset|copy|CatArray|fill|gather|scatter|index|and_cache)"),
    "reduction": re.compile(r"(?i).*(?:reduce|triton_(?:red|per)_|sum_kernel|mean_kernel)"),
    "elementwise": re.compile(r"(?i).*(?:elementwise|triton_poi_|act_and_mul|silu|gelu|relu|activation)"),
}
"""Families by kernels' names, the first that matches: of vendors' libraries, ATen, Inductor, engines."""
_EQUAL = ["where", "waited_for", "after", "before"]


def lists(
    trace: Trace,
    steps: Steps,
    attribution: Attribution,
    device: str | None,
    rows: int,
    sites: Sites,
    judged: list[int],
) -> dict[str, list[Row]]:
    """The lists of `--json`, `rows` entries each; times in us. Kernels and host ops over the whole trace, the
    others over the steps `judged`: `outside_graphs` is what no graph took where the steps replay some,
    `host_waits` where the host waits for the device, which no graph can hold.
    """
    out: dict[str, list[Row]] = {key: [] for key in LISTS} | {"host_ops": host_ops(trace, rows)}
    if device is None:
        return out
    n = max(len(judged), 1)
    work = trace.device_events.join(sites.work)
    work = work[(work["device"] == device) & attribution.owner.isin(judged)]
    graph = work["call_kind"] == "graph"
    waits = trace.near.host_waits.join(sites.calls)
    waits = waits[np.isin(owners_of(waits["start_ns"].to_numpy(), steps), judged)]
    return out | {
        "kernels": kernels(trace, device, rows),
        "gaps": gaps(trace, attribution, device, rows, judged),
        "families": families(work, n, rows),
        "outside_graphs": places(work[~graph], n, rows) if graph.any() else [],
        "host_waits": places(waits, n, rows),
    }


def kernels(trace: Trace, device: str, rows: int) -> list[Row]:
    """Device events by name, by summed time: `name`, `count`, `total_us`, `mean_us`."""
    work = trace.device_events
    work = work[work["device"] == device]
    return _by_name(work["name"], work["end_ns"] - work["start_ns"], rows, "total_us")


def host_ops(trace: Trace, rows: int) -> list[Row]:
    """Host ops by name, by own time (without the ops they call): `name`, `count`, `self_us`, `mean_us`."""
    ops = trace.host_ops
    return _by_name(ops["name"], ops["self_ns"], rows, "self_us")


def _by_name(names: pd.Series[Any], ns: pd.Series[int], rows: int, what: str) -> list[Row]:
    return [
        {"name": str(name), "count": n, what: total / 1000, "mean_us": total / 1000 / n}
        for name, n, total in _largest(ns, names, rows)
    ]


def family(kernel: str) -> str:
    """Family of a kernel by its name, "other" for none."""
    return next((name for name, pattern in FAMILIES.items() if pattern.match(kernel)), "other")


def families(work: pd.DataFrame, n_steps: int, rows: int) -> list[Row]:
    """Device events of some steps by family, most time first: `family`, per step `count` and `us` (their
    sum), and `sites`, the places with most of that time as `places` has them.

    `work`: rows of `Trace.device_events` with `op` and `module`.
    """
    names = work["name"].cat.remove_unused_categories().cat  # of all events' names few are kernels'
    of = np.array([family(str(name)) for name in names.categories], dtype=object)[names.codes.to_numpy()]
    return [
        {
            "family": name,
            "count": count / n_steps,
            "us": ns / 1000 / n_steps,
            "sites": places(work[of == name], n_steps, MAX_SITES),
        }
        for name, count, ns in _largest(_lasted(work), of, rows)
    ]


def places(work: pd.DataFrame, n_steps: int, rows: int) -> list[Row]:
    """Device events or calls of some steps by where they come from, most time first: `op`, `module` (None
    where unknown), the `name` with most of the time, and per step `count` and `us`.
    """
    lasted = _lasted(work)
    out: list[Row] = []
    for (op, module), count, ns in _largest(lasted, [work["op"], work["module"]], rows):
        here = (work["op"] == op) & (work["module"] == module)
        by_name = lasted[here].groupby(work.loc[here, "name"].astype(object)).sum()
        row: Row = {"op": op or None, "module": module or None, "name": str(by_name.idxmax())}
        out.append(row | {"count": count / n_steps, "us": ns / 1000 / n_steps})
    return out


def _largest(ns: pd.Series[int], by: Any, rows: int) -> list[tuple[Any, int, int]]:
    """(key, events, ns) of the groups with most time; equal ones by key."""
    groups = ns.groupby(by, observed=True).agg(["size", "sum"])
    groups = groups.sort_values("sum", ascending=False, kind="stable").head(rows)
    return list(zip(groups.index.tolist(), groups["size"].tolist(), groups["sum"].tolist(), strict=True))


def _lasted(rows: pd.DataFrame) -> pd.Series[int]:
    return rows["end_ns"] - rows["start_ns"]


def gaps(trace: Trace, attribution: Attribution, device: str, rows: int, judged: list[int]) -> list[Row]:
    """Waits of a device in the steps `judged`, equal ones together, by what they sum to: `count`, `total_us`,
    and of the longest one `step`, `where`, `start_us`, `length_us`, `waited_for` (the largest part), `after`
    and `before` (the device events around it), and what the host did: `call`, `op`, `frame`, None where
    nothing covers it.

    Equal are waits between events of the same names, that waited for the same.
    """
    waits = attribution.waits
    waits = waits[(waits["device"] == device) & waits["step"].isin(judged)]
    waits = waits.assign(length=waits["end_ns"] - waits["start_ns"], **_around(trace, waits, device))
    longest = waits.sort_values("length", ascending=False, kind="stable")
    equal = longest.groupby(_EQUAL, sort=False)["length"]
    longest = longest.assign(count=equal.transform("size"), total=equal.transform("sum"))
    longest = longest.drop_duplicates(_EQUAL).sort_values("total", ascending=False, kind="stable")
    host = _HostTimeline(trace)
    work_calls, threads = trace.device_events["call"].to_numpy(), trace.calls["thread"].to_numpy()
    out = []
    for gap in longest.head(rows).to_dict("records"):
        call = int(work_calls[gap["ender"]]) if gap["ender"] >= 0 else -1
        thread = int(threads[call]) if call >= 0 else None
        out.append(
            {
                "count": gap["count"],
                "total_us": gap["total"] / 1000,
                "step": gap["step"],
                "where": gap["where"],
                "start_us": gap["start_ns"] / 1000,
                "length_us": gap["length"] / 1000,
                "waited_for": gap["waited_for"],
                "after": gap["after"] or None,
                "before": gap["before"] or None,
                **host.doing(gap["start_ns"], gap["end_ns"], thread),
            }
        )
    return out


def _around(trace: Trace, waits: pd.DataFrame, device: str) -> dict[str, npt.NDArray[np.object_]]:
    """Per wait `waited_for`, and the names of the device events that ran before and `after` it, "" for none.

    Between two nodes of one replay it is the graph that has the device wait, whatever the host did.
    """
    work = trace.near.device_events  # on the clock of the waits
    work = work[work["device"] == device]
    names, calls = work["name"].astype(object).to_numpy(), work["call"].to_numpy()
    graph = (work["call_kind"] == "graph").to_numpy()
    ender = waits["ender"].to_numpy()
    ended = ender >= 0
    next_one = np.searchsorted(work.index.to_numpy(), np.maximum(ender, 0))
    last_one = np.searchsorted(work["start_ns"].to_numpy(), waits["start_ns"].to_numpy()) - 1
    ran = last_one >= 0
    last_one = np.maximum(last_one, 0)
    parts = np.array(SPLIT, dtype=object)[np.argmax(waits[list(SPLIT)].to_numpy(), axis=1)]
    inside = ended & ran & graph[next_one] & (calls[next_one] == calls[last_one])
    waited_for = np.select([inside, (waits["where"] == "tail").to_numpy()], [NODES, "end of step"], parts)
    return {
        "waited_for": waited_for.astype(object),
        "after": np.where(ran, names[last_one], ""),
        "before": np.where(ended, names[next_one], ""),
    }


class _HostTimeline:
    """Finds what one host thread did in an interval."""

    def __init__(self, trace: Trace) -> None:
        self.kinds = {
            "call": of_categories(trace.events, CALL_CATEGORY),
            "op": trace.in_categories(OP_CATEGORIES),
        }
        self.kinds["frame"] = trace.in_categories(PYTHON_CATEGORIES)
        self.main = max(trace.calls["thread"].mode().tolist(), default=-1)

    def doing(self, start: int, end: int, thread: int | None) -> dict[str, str | None]:
        """The shortest call, op and Python frame that cover at least `COVERS` of [start, end) ns."""
        return {
            kind: self._covering(rows, start, end, self.main if thread is None else thread)
            for kind, rows in self.kinds.items()
        }

    def _covering(self, rows: pd.DataFrame, start: int, end: int, thread: int) -> str | None:
        begins, lasted = rows["ts_ns"].to_numpy(), rows["dur_ns"].to_numpy()
        covered = np.minimum(begins + lasted, end) - np.maximum(begins, start)
        good = np.flatnonzero((covered >= COVERS * (end - start)) & (rows["thread"].to_numpy() == thread))
        return str(rows["name"].iloc[good[np.argmin(lasted[good])]]) if len(good) else None
