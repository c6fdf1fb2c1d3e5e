"""A step on the host thread that runs it: own times by class of op, which sum to the step's window in
integer ns.

Outside every op the interpreter runs: "python". Compiled code shows its kernels only when they were built
with the kernel-profile option; what no event covers inside it is "unknown".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

Int = npt.NDArray[np.int64]
PARTS = ("compute", "overhead", "python", "unknown")


def parts_ns(ops: pd.DataFrame, begin: Int, end: Int) -> Int:
    """Parts [n, len(PARTS)] of the windows [begin, end) [n] on one thread, which are disjoint and in order;
    `ops`: its rows of `Trace.host_ops`, none where nothing was recorded there.

    An op that crosses a window's edge counts with what lies inside, as do the ops in it.
    """
    out = np.zeros((len(begin), len(PARTS)), np.int64)
    if ops.empty:  # which does not make it Python's time
        out[:, PARTS.index("unknown")] = end - begin
        return out
    start, stop = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    first = np.searchsorted(end, start, "right")
    count = np.maximum(np.searchsorted(begin, stop, "left") - first, 0)
    offset = np.cumsum(count) - count
    # A row per op and window that it reaches into; an op's are beside each other.
    op = np.repeat(np.arange(len(ops)), count)
    window = np.arange(len(op)) - offset[op] + first[op]
    lasted = np.minimum(stop[op], end[window]) - np.maximum(start[op], begin[window])
    above = np.searchsorted(ops.index.to_numpy(), ops["parent"].to_numpy())[op]
    nested = (ops["parent"] >= 0).to_numpy()[op]
    parent = (offset[above] + window - first[above])[nested]
    self_ns = lasted.copy()
    np.subtract.at(self_ns, parent, lasted[nested])
    np.add.at(out, (window, pd.Categorical(ops["class"], PARTS).codes[op]), self_ns)
    out[:, PARTS.index("python")] = end - begin
    np.subtract.at(out[:, PARTS.index("python")], window[~nested], lasted[~nested])
    return out
