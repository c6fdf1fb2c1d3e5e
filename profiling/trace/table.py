"""From parsed events to columns: one row per complete event, times in integer nanoseconds, names as codes.

Columns are built piece by piece and the parsed objects dropped, since millions of small dictionaries cost
far more than the table. A time is an integer, a float or a string of microseconds; whatever is exact in the
file is exact here.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.names import CALL_CATEGORY, DEVICE_CATEGORIES
from profiling.trace.source import Source

Int = npt.NDArray[np.int64]
_LIMIT_US = 9.0e15
"""About 285 years of microseconds: beyond it nanoseconds leave int64, and nothing real is there."""
_NO_ARGS: dict[str, Any] = {}


class Codes(dict[Any, int]):
    """Gives every distinct value the next free code."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def column(self, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        try:
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        except TypeError:  # a value that cannot be a key, such as a list where a name should be
            return np.fromiter(
                (self[v if isinstance(v, str | int) else str(v)] for v in values), np.int32, len(values)
            )


def values_of(events: list[dict[str, Any]], key: str, default: Any = None) -> list[Any]:
    """One key of every event; the fast way where every event has it."""
    try:
        return list(map(itemgetter(key), events))
    except KeyError:
        return [event.get(key, default) for event in events]


def nanoseconds(values: list[Any]) -> tuple[Int, npt.NDArray[np.bool_]]:
    """Microseconds of any JSON type as int64 nanoseconds, and which of them are real times."""
    array = np.array(values) if set(map(type, values)) <= {int, float} else np.array(values, dtype=object)
    if array.dtype.kind == "i":
        good = np.abs(array.astype(np.float64)) < _LIMIT_US
        return np.where(good, array, 0).astype(np.int64) * 1000, good
    if array.dtype.kind == "f":
        good = np.isfinite(array) & (np.abs(array) < _LIMIT_US)
        kept = np.where(good, array, 0.0)
        whole = np.floor(kept)  # split first: the product of a large time and 1000 is not exact
        return whole.astype(np.int64) * 1000 + np.rint((kept - whole) * 1000).astype(np.int64), good
    exact = [_exact_ns(v) for v in values]
    return (
        np.array([0 if ns is None else ns for ns in exact], np.int64),
        np.array([ns is not None for ns in exact], np.bool_),
    )


def _exact_ns(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        microseconds = Decimal(value.strip() if isinstance(value, str) else value)
        if not microseconds.is_finite() or abs(microseconds) >= _LIMIT_US:
            return None
        return int((microseconds * 1000).to_integral_value())
    except (InvalidOperation, ValueError):
        return None


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if type(args) is dict else _NO_ARGS


def _integers(values: list[Any]) -> Int:
    """Correlation ids as int64, -1 where there is none."""
    if set(map(type, values)) <= {int} and max(values, default=0) < 2**63 and min(values, default=0) >= -1:
        return np.array(values, np.int64)
    return np.array([_integer(value) for value in values], np.int64)


def _integer(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else -1


class Builder:
    """Collects columns from pieces of parsed events."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.total = 0
        self.names, self.categories, self.pids, self.tids = Codes(), Codes(), Codes(), Codes()
        self.devices, self.streams = Codes(), Codes()
        self.columns: dict[str, list[npt.NDArray[Any]]] = {
            key: []
            for key in ("name", "cat", "pid", "tid", "ts_ns", "dur_ns", "device", "stream", "correlation")
        }
        self.open_spans: dict[tuple[Any, Any], list[dict[str, Any]]] = {}

    def add(self, events: list[Any]) -> None:
        self.total += len(events)
        if set(map(type, events)) != {dict}:
            self.source.skip("not an event", sum(type(e) is not dict for e in events))
            events = [e for e in events if type(e) is dict]
        phases = values_of(events, "ph")
        complete = [e for e, phase in zip(events, phases, strict=True) if phase == "X"]
        if "B" in phases or "E" in phases:
            spans = [e for e, phase in zip(events, phases, strict=True) if phase in ("B", "E")]
            complete.extend(self._close_spans(spans))
        if complete:
            self._add_complete(complete)

    def _close_spans(self, spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Begin and end events (phases B and E) of one thread, paired innermost first, as complete ones."""
        closed = []
        for event in spans:
            stack = self.open_spans.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
            if event["ph"] == "B":
                stack.append(event)
            elif stack:
                begin = stack.pop()
                (start, end), good = nanoseconds([begin.get("ts"), event.get("ts")])
                if good.all():
                    closed.append({**begin, "dur": str(Decimal(int(end - start)) / 1000)})
        return closed

    def _add_complete(self, events: list[dict[str, Any]]) -> None:
        ts, ts_good = nanoseconds(values_of(events, "ts"))
        dur, dur_good = nanoseconds(values_of(events, "dur"))
        good = ts_good & dur_good & (dur >= 0)
        if not good.all():
            self.source.skip("event without a usable ts", int((~ts_good).sum()))
            self.source.skip("event without a usable dur", int((ts_good & ~(dur_good & (dur >= 0))).sum()))
            events = [e for e, keep in zip(events, good, strict=True) if keep]
            ts, dur = ts[good], dur[good]
        cat = self.categories.column(values_of(events, "cat"))
        names = values_of(events, "name", "")
        if set(map(type, names)) != {str}:
            names = list(map(str, names))
        columns: dict[str, npt.NDArray[Any]] = {
            "name": self.names.column(names),
            "cat": cat,
            "pid": self.pids.column(values_of(events, "pid", "")),
            "tid": self.tids.column(values_of(events, "tid", "")),
            "ts_ns": ts,
            "dur_ns": dur,
            **self._from_args(events, cat),
        }
        for key, column in columns.items():
            self.columns[key].append(column)

    def _from_args(
        self, events: list[dict[str, Any]], cat: npt.NDArray[np.int32]
    ) -> dict[str, npt.NDArray[Any]]:
        """Device, stream and correlation: of device events and of calls only. `args.stream` alone means
        nothing.
        """
        kinds = [str(c).lower() for c in self.categories]
        on_device = np.array([k in DEVICE_CATEGORIES for k in kinds], np.bool_)[cat]
        is_call = np.array([CALL_CATEGORY.search(k) is not None for k in kinds], np.bool_)[cat]
        linked, work = np.flatnonzero(on_device | is_call), np.flatnonzero(on_device)
        correlation = np.full(len(events), -1, np.int64)
        device, stream = np.full(len(events), -1, np.int32), np.full(len(events), -1, np.int32)
        correlation[linked] = _integers([_args(events[i]).get("correlation", -1) for i in linked.tolist()])
        of_work = [(events[i], _args(events[i])) for i in work.tolist()]
        device[work] = self.devices.column([str(a.get("device", e.get("pid"))) for e, a in of_work])
        stream[work] = self.streams.column([str(a.get("stream", e.get("tid"))) for e, a in of_work])
        return {"device": device, "stream": stream, "correlation": correlation}

    def frame(self) -> pd.DataFrame:
        """Columns as in `profiling.trace.Trace.events`, in file order."""
        joined = {
            key: np.concatenate(parts) if parts else np.empty(0, np.int64)
            for key, parts in self.columns.items()
        }
        unclosed = sum(map(len, self.open_spans.values()))
        self.source.skip("begin event without an end", unclosed)
        lowered = Codes()
        recode = np.array(
            [lowered["" if c is None else str(c).lower()] for c in self.categories] or [0], np.int32
        )
        threads = Codes()
        pairs = list(zip(joined["pid"].tolist(), joined["tid"].tolist(), strict=True))
        return pd.DataFrame(
            {
                "cat": _categorical(recode[joined["cat"].astype(np.int64)], lowered),
                "name": _categorical(joined["name"], self.names),
                "ts_ns": joined["ts_ns"].astype(np.int64),
                "dur_ns": joined["dur_ns"].astype(np.int64),
                "pid": _categorical(joined["pid"], self.pids),
                "tid": _categorical(joined["tid"], self.tids),
                "thread": threads.column(pairs),
                "device": _categorical(joined["device"], self.devices),
                "stream": _categorical(joined["stream"], self.streams),
                "correlation": joined["correlation"].astype(np.int64),
            }
        )


def _categorical(codes: npt.NDArray[Any], values: Codes) -> pd.Categorical:
    names = ["" if v is None else v for v in values]
    return pd.Categorical.from_codes(codes.astype(np.int32), categories=pd.Index(names, dtype=object))
