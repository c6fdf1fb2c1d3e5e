"""A step on the host thread that runs it: own times by class of op, which sum to the step's window in
integer ns.

Outside every op the interpreter runs: "python". Compiled code shows its kernels only when they were built
with the kernel-profile option; what no event covers inside it is "unknown".
"""

from __future__ import annotations

import numpy as np
import pandas as pd

PARTS = ("compute", "overhead", "python", "unknown")


def parts_ns(ops: pd.DataFrame | None, start: int, end: int) -> dict[str, int]:
    """Parts of the window [start, end) on one thread; `ops`: its rows of `Trace.host_ops`, None where it
    has none.

    An op that crosses the window's edge counts with what lies inside, as do the ops in it.
    """
    if ops is None:  # nothing was recorded there, which does not make it Python's time
        return dict.fromkeys(PARTS, 0) | {"unknown": end - start}
    behind = int(np.searchsorted(ops["start_ns"].to_numpy(), end, "left"))
    candidates = ops.iloc[:behind]
    inside = candidates[candidates["end_ns"] > start]
    lasted = np.minimum(inside["end_ns"].to_numpy(), end) - np.maximum(inside["start_ns"].to_numpy(), start)
    position = dict(zip(inside.index.tolist(), range(len(inside)), strict=True))
    above = np.array([position.get(row, -1) for row in inside["parent"].tolist()], np.int64)
    nested = above >= 0
    own = lasted - np.bincount(above[nested], lasted[nested], len(inside)).astype(np.int64)
    classes = inside["class"].to_numpy()
    out = {part: int(own[classes == part].sum()) for part in PARTS}
    return out | {"python": int(end - start - lasted[~nested].sum())}
