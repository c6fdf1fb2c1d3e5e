"""The period of a sequence: where a decode loop without marks repeats itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MIN_REPEATS = 3
MIN_MATCH = 0.95
MIN_SHARE = 0.5
"""Of the sequence: what repeats in a corner of it is not its loop."""


def find(
    codes: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[int, int, int] | None:
    """(first, period, count) of the longest repeating part of `codes` [n], None without `MIN_REPEATS`
    repeats.

    Layers repeat inside a step, so the shortest period is the wrong one: the rarest symbols are tried
    first, since what happens once per step (sampling, the last projection) is spaced by whole steps. The
    phase is put where the host paused longest between the period's elements (`starts`, `ends`, ns), which
    is between two steps.
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
        if run is not None:
            first, length = run
            first = _phase(first, length, period, starts, ends)
            count = (run[0] + run[1] - first) // period
            if count >= MIN_REPEATS and count * period >= MIN_SHARE * len(codes):
                return first, period, count
    return None


def _longest_run(codes: npt.NDArray[np.int64], period: int) -> tuple[int, int] | None:
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


def _phase(
    first: int, length: int, period: int, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> int:
    """First element of a step: the offset in the period before which the host paused longest, on the
    median.
    """
    begin = max(first, 1)  # the very first element has no pause before it
    count = (first + length - begin) // period
    at = np.arange(begin, begin + count * period)
    pause = np.median((starts[at] - ends[at - 1]).reshape(count, period), axis=0)
    best = begin + int(np.argmax(pause))
    return first + (best - first) % period
