"""How numbers and names become text, in reports and on the console."""

from __future__ import annotations

import math
from collections.abc import Sequence

from profiling.results.stats import Interval

UNKNOWN = "unknown"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, never an exponent: '43.7', '0.0321', '1336'."""
    if value is None:
        return UNKNOWN
    if value == 0 or not math.isfinite(value):  # the end of an interval that two values leave open
        return f"{value:g}"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else _leading_zeros(abs(value))
    return f"{value:,.{max(0, digits - magnitude)}f}".replace(",", "")


def _leading_zeros(value: float) -> int:
    """0.5 -> 0, 0.05 -> -1; beyond a millionth nobody wants the digits."""
    return max(-5, int(f"{value:e}".split("e")[1]) + 1)


def interval(value: Interval | None, digits: int = 3) -> str:
    """'1.02 [0.99, 1.05]': mean and 95 % confidence interval, all with the decimals of the widest."""
    if value is None:
        return UNKNOWN
    largest = max((abs(x) for x in value if math.isfinite(x)), default=0.0)
    decimals = len(number(largest, digits).partition(".")[2])
    low, mid, high = (f"{x:.{decimals}f}" for x in value)
    return f"{mid} [{low}, {high}]"


def count(value: float | None) -> str:
    """A mean of whole numbers: '1494', '0.5'."""
    return UNKNOWN if value is None else f"{value:.6g}"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def megabytes(value: float | None) -> str:
    """Bytes -> MB of 10^6."""
    return UNKNOWN if value is None else number(value / 1e6)


def code(name: str) -> str:
    """A name as code; a mark in it would end it."""
    return "`" + name.replace("`", "'") + "`"


def joined(names: Sequence[str]) -> str:
    """'`a`, `b` and `c`'."""
    quoted = [code(name) for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def at_commit(commit: str | None) -> str:
    """The words " at commit X", or nothing where it is not known."""
    return f" at commit {commit}" if commit else ""
