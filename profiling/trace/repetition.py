"""The period of a sequence: where a decode loop without marks repeats itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
MIN_REPEATS = 3
MIN_MATCH = 0.95
MIN_SHARE = 0.5
"""Of the sequence: what repeats in a corner of it is not its loop."""
MAX_EXTRA = 0.25
"""Of a period: what a step may hold beside it, such as sampling in every tenth step."""
OPENING = 8
"""Elements by which the beginning of a step is known."""


def find(codes: Int, starts: Int, ends: Int) -> Int | None:
    """Where each repeat of the longest repeating part of `codes` [n] begins, and where the last one ends:
    [count + 1]; None without `MIN_REPEATS` repeats.

    Layers repeat inside a step, so the shortest period is the wrong one: the rarest symbols are tried
    first, since what happens once per step (sampling, the last projection) is spaced by whole steps. The
    phase is put where the host paused longest between the period's elements (`starts`, `ends`, ns), which
    is between two steps. From the longest exact part on, repeats that hold something more are taken in.
    """
    counts = np.bincount(codes)
    for symbol in np.argsort(counts, kind="stable"):
        if counts[symbol] < MIN_REPEATS:
            continue
        at = np.flatnonzero(codes == symbol)
        spacing = np.diff(at)
        period = int(np.bincount(spacing).argmax())
        if (spacing == period).mean() < 0.8:
            continue
        run = _longest_run(codes, period)
        if run is None:
            continue
        first, length = run
        phase = _phase(first, length, period, starts, ends)
        exact = np.arange(phase, first + length + 1, period)
        if len(exact) <= MIN_REPEATS:
            continue
        bounds = _extended(codes, period, exact)
        if bounds[-1] - bounds[0] >= MIN_SHARE * len(codes):
            return bounds
    return None


def _extended(codes: Int, period: int, exact: Int) -> Int:
    """The bounds `exact` of one period each, with those of further repeats before and behind them."""
    pattern = codes[exact[0] : exact[0] + period]
    opening = pattern[: min(OPENING, -(-period // 4))]
    counts = np.bincount(pattern, minlength=int(codes.max()) + 1)
    lengths = range(period, period + int(MAX_EXTRA * period) + 1)

    def opens(at: int) -> bool:
        return at >= 0 and np.array_equal(codes[at : at + len(opening)], opening)

    def repeat(begin: int, end: int) -> bool:
        """Whether codes[begin:end] holds a whole period, and begins as all do."""
        if not opens(begin) or end > len(codes):
            return False
        held = np.bincount(codes[begin:end], minlength=len(counts))
        return int(np.minimum(held, counts).sum()) >= MIN_MATCH * period

    bounds = exact.tolist()
    while not opens(bounds[-1]):
        bounds.pop()
    while end := next((e for n in lengths if opens(e := bounds[-1] + n) and repeat(bounds[-1], e)), None):
        bounds.append(end)
    last = (bounds[-1] + n for n in lengths)  # behind it something else begins, or nothing
    bounds += [e for e in last if repeat(bounds[-1], e) and codes[e - 1] == pattern[-1]][:1]
    while (begin := next((b for n in lengths if repeat(b := bounds[0] - n, bounds[0])), None)) is not None:
        bounds.insert(0, begin)
    return np.array(bounds, np.int64)


def _longest_run(codes: Int, period: int) -> tuple[int, int] | None:
    """Start and length of the longest part in which nearly every element equals the one a period later."""
    same = codes[:-period] == codes[period:]
    whole = len(same) // period
    if whole < MIN_REPEATS - 1:
        return None
    # Sliding mean over one period: the part is good where it stays high.
    sums = np.concatenate([[0], np.cumsum(same)])
    good = (sums[period:] - sums[:-period]) / period >= MIN_MATCH
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good.astype(np.int8), [0]])))
    if not len(edges):
        return None
    begins, stops = edges[::2], edges[1::2]
    best = int(np.argmax(stops - begins))
    first, last = int(begins[best]), int(stops[best]) - 1 + 2 * period
    return first, last - first


def _phase(first: int, length: int, period: int, starts: Int, ends: Int) -> int:
    """First element of a step: the offset in the period before which the host paused longest, on the
    median.
    """
    begin = max(first, 1)  # the very first element has no pause before it
    count = (first + length - begin) // period
    at = np.arange(begin, begin + count * period)
    pause = np.median((starts[at] - ends[at - 1]).reshape(count, period), axis=0)
    best = begin + int(np.argmax(pause))
    return first + (best - first) % period
