"""From the text of events to columns: a row per complete event, times in integer ns, names as codes.

Of an event only what is used becomes an object, and columns are built piece by piece: millions of small
dictionaries cost far more. A time is an integer, a float or a string of microseconds; what is exact stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.names import (
    CALL_CATEGORY,
    DEVICE_ARGUMENTS,
    DEVICE_CATEGORIES,
    DEVICE_PROCESS,
    KNOWN_CATEGORY,
)
from profiling.trace.source import Source

Int = npt.NDArray[np.int64]
_LIMIT_US = 9.0e15  # about 285 years: beyond it nanoseconds leave int64, and nothing real is there


class Event(msgspec.Struct, gc=False):
    """What is read of an event; of any type, since traces write numbers as text and leave things out."""

    ph: Any = None
    cat: Any = None
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """What is read of the arguments of a call, of device work, or of a name for a process or thread."""

    correlation: Any = -1
    device: Any = None
    stream: Any = None
    graph: Any = msgspec.field(name="graph id", default=None)
    name: Any = ""
    labels: Any = ""


parse_events = msgspec.json.Decoder(list[Event]).decode
_decode_args = msgspec.json.Decoder(Args).decode
_decode_all_args = msgspec.json.Decoder(list[Args]).decode
_NO_ARGS = Args()
COLUMNS = ["kind", "ts_ns", "dur_ns", "correlation", "graph", "place"]
OTHER, CALL, WORK, UNKNOWN = range(4)  # what is read of an event's arguments: nothing, a call's, work's


@cache
def _role(category: str) -> int:
    if category in DEVICE_CATEGORIES:
        return WORK
    if CALL_CATEGORY.search(category):
        return CALL
    return OTHER if KNOWN_CATEGORY.fullmatch(category) else UNKNOWN


def _hashable(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part if isinstance(part, str | int | None) else str(part) for part in parts)


class Codes(dict[Any, int]):
    """Gives every distinct value the next free code."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def column(self, values: Sequence[tuple[Any, ...]]) -> npt.NDArray[np.int32]:
        try:
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        except TypeError:  # a part that cannot be a key, such as a list where a name should be
            return np.fromiter(map(self.__getitem__, map(_hashable, values)), np.int32, len(values))


class Kinds(Codes):
    """Codes of category, name, process and thread, which repeat; `roles`: what is read of each."""

    def __init__(self) -> None:
        self.roles = bytearray()

    def __missing__(self, value: tuple[Any, ...]) -> int:
        self.roles.append(_role(str(value[0]).lower()))
        return super().__missing__(value)


def nanoseconds(values: list[Any]) -> tuple[Int, npt.NDArray[np.bool_]]:
    """Microseconds of any JSON type as int64 nanoseconds, and which of them are real times."""
    array = np.array(values) if set(map(type, values)) <= {int, float} else np.array(values, dtype=object)
    if array.dtype.kind == "i":
        good = np.abs(array.astype(np.float64)) < _LIMIT_US
        return np.where(good, array, 0).astype(np.int64) * 1000, good
    if array.dtype.kind == "f":
        good = np.isfinite(array) & (np.abs(array) < _LIMIT_US)
        finite = np.where(good, array, 0.0)
        whole = np.floor(finite)  # split first: the product of a large time and 1000 is not exact
        return whole.astype(np.int64) * 1000 + np.rint((finite - whole) * 1000).astype(np.int64), good
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


def _args(raw: msgspec.Raw) -> Args:
    try:
        return _decode_args(raw)
    except msgspec.DecodeError:  # none, or a list
        return _NO_ARGS


def _all_args(raws: list[msgspec.Raw]) -> list[Args]:
    try:
        return _decode_all_args(b"[%b]" % b",".join(raws))
    except msgspec.DecodeError:  # of one of them at least
        return list(map(_args, raws))


def _integers(values: list[Any]) -> Int:
    """Correlation and graph ids as int64, -1 where there is none."""
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
        self.kinds, self.places = Kinds(), Codes()
        self.columns: dict[str, list[npt.NDArray[Any]]] = {key: [] for key in COLUMNS}
        self.open_spans: dict[tuple[str, str], list[Event]] = {}
        self.processes: dict[str, str] = {}
        self.unread: dict[str, tuple[int, int]] = {}
        """Per process its events in no known category, and those with a device's category or arguments."""

    def add(self, events: list[Event]) -> None:
        self.total += len(events)
        phases = [str(event.ph) for event in events]
        kinds = set(phases)
        if kinds != {"X"}:
            complete = [event for event, phase in zip(events, phases, strict=True) if phase == "X"]
            if "B" in kinds or "E" in kinds:
                complete.extend(self._close_spans(event for event in events if event.ph in ("B", "E")))
            if "M" in kinds:
                self._name_processes(event for event in events if event.ph == "M")
            events = complete
        if events:
            self._add_complete(events)

    def _close_spans(self, spans: Iterable[Event]) -> Iterator[Event]:
        """Begin and end events (phases B and E) of one thread, paired innermost first, as complete ones."""
        for event in spans:
            stack = self.open_spans.setdefault((str(event.pid), str(event.tid)), [])
            if event.ph == "B":
                stack.append(event)
            elif stack:
                begin = stack.pop()
                (start, end), good = nanoseconds([begin.ts, event.ts])
                if good.all():
                    lasted = str(Decimal(int(end - start)) / 1000)
                    yield msgspec.structs.replace(begin, dur=lasted)

    def _name_processes(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.name in ("process_name", "process_labels"):
                args, pid = _args(event.args), str(event.pid)
                name = str(args.name or args.labels)
                self.processes[pid] = f"{self.processes.get(pid, '')} {name}".strip()

    def _count_unread(self, events: Iterable[Event]) -> None:
        for event in events:
            pid = str(event.pid)
            rows, of_device = self.unread.get(pid, (0, 0))
            on_device = DEVICE_ARGUMENTS.search(bytes(event.args)) or DEVICE_PROCESS.search(str(event.cat))
            self.unread[pid] = rows + 1, of_device + bool(on_device)

    def unknown_devices(self) -> dict[str, int]:
        """Device -> events that look like its work and are not read: all of a process named like a device,
        else those with a device's category or arguments.
        """
        out: dict[str, int] = {}
        for pid, (rows, of_device) in self.unread.items():
            name = self.processes.get(pid, "")
            count = rows if DEVICE_PROCESS.search(name) else of_device
            if count:
                out[name or pid] = out.get(name or pid, 0) + count
        return out

    def _add_complete(self, events: list[Event]) -> None:
        ts, ts_good = nanoseconds([event.ts for event in events])
        dur, dur_good = nanoseconds([event.dur for event in events])
        good = ts_good & dur_good & (dur >= 0)
        if not good.all():
            self.source.skip("event without a usable ts", int((~ts_good).sum()))
            self.source.skip("event without a usable dur", int((ts_good & ~(dur_good & (dur >= 0))).sum()))
            events = list(compress(events, good))
            ts, dur = ts[good], dur[good]
        kind = self.kinds.column([(event.cat, event.name, event.pid, event.tid) for event in events])
        role = np.frombuffer(self.kinds.roles, np.uint8)[kind]
        self._count_unread(compress(events, role == UNKNOWN))
        columns: dict[str, npt.NDArray[Any]] = {"kind": kind, "ts_ns": ts, "dur_ns": dur}
        columns |= self._from_args(events, kind, role)
        for key, column in columns.items():
            self.columns[key].append(column)

    def _from_args(
        self, events: list[Event], kind: npt.NDArray[np.int32], role: npt.NDArray[np.uint8]
    ) -> dict[str, npt.NDArray[Any]]:
        """Correlation of device events and of calls; graph, and place (device and stream), of device events
        only: `args.stream` alone means nothing.
        """
        linked, work = np.flatnonzero((role == WORK) | (role == CALL)), np.flatnonzero(role == WORK)
        args = _all_args([events[i].args for i in linked.tolist()])
        of_work = list(compress(args, role[linked] == WORK))
        out: dict[str, npt.NDArray[Any]] = {
            "correlation": np.full(len(events), -1, np.int64),
            "graph": np.full(len(events), -1, np.int64),
            "place": np.full(len(events), -1, np.int32),
        }
        out["correlation"][linked] = _integers([a.correlation for a in args])
        out["graph"][work] = _integers([a.graph for a in of_work])
        out["place"][work] = self.places.column(
            [(a.device, a.stream, k) for a, k in zip(of_work, kind[work].tolist(), strict=True)]
        )
        return out

    def frame(self) -> pd.DataFrame:
        """Columns as in `profiling.trace.Trace.events`, in file order."""
        joined = {
            key: np.concatenate(parts) if parts else np.empty(0, np.int64)
            for key, parts in self.columns.items()
        }
        unclosed = sum(map(len, self.open_spans.values()))
        self.source.skip("begin event without an end", unclosed)
        kinds = list(self.kinds)
        threads = Codes()
        thread = np.array([threads[pid, tid] for _, _, pid, tid in kinds], np.int32)
        # Without a device or stream of its own an event's row is one.
        device = [str(kinds[kind][2] if device is None else device) for device, _, kind in self.places]
        stream = [str(kinds[kind][3] if stream is None else stream) for _, stream, kind in self.places]
        kind, place = joined["kind"].astype(np.int64), joined["place"].astype(np.int64)
        return pd.DataFrame(
            {
                "cat": _categorical(["" if c is None else str(c).lower() for c, *_ in kinds], kind),
                "name": _categorical([str(name) for _, name, *_ in kinds], kind),
                "ts_ns": joined["ts_ns"].astype(np.int64),
                "dur_ns": joined["dur_ns"].astype(np.int64),
                "pid": _categorical(["" if pid is None else pid for _, _, pid, _ in kinds], kind),
                "tid": _categorical(["" if tid is None else tid for *_, tid in kinds], kind),
                "thread": thread[kind],
                "device": _categorical(device, place),
                "stream": _categorical(stream, place),
                "correlation": joined["correlation"].astype(np.int64),
                "graph": joined["graph"].astype(np.int64),
            }
        )


def _categorical(values: list[Any], rows: Int) -> pd.Categorical:
    """The values of some rows (-1: none), of which every distinct one becomes a category."""
    names = Codes()
    recode = np.array([*(names[value] for value in values), -1], np.int32)
    return pd.Categorical.from_codes(recode[rows], categories=pd.Index(list(names), dtype=object))
