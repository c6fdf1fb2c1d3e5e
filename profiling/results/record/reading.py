"""Reads and writes `run.json`: the only place that does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from profiling.results.record.attached import AttachRecord
from profiling.results.record.base import Measurement, Record
from profiling.results.record.calibrated import CalibrateRecord
from profiling.results.record.fuzzed import FuzzRecord
from profiling.results.record.samples import AGAIN_SUFFIX
from profiling.results.record.sized import SizingRecord
from profiling.results.record.timed import (
    BatchRecord,
    ContextRecord,
    DuelRecord,
    FloorRecord,
    GrowthRecord,
    PagingRecord,
    PeersRecord,
    PointRecord,
    SpeculateRecord,
    ThroughputRecord,
)
from profiling.results.record.untimed import (
    ArticlesRecord,
    EqualityRecord,
    ExplainBenchmarkRecord,
    FaultsRecord,
    GenerateRecord,
    MemoryRecord,
    PlantedRecord,
    ProveRecord,
    PurityRecord,
    WorkRecord,
)
from profiling.results.record.upgrade import upgraded, without_engines
from variants.config import GPTConfig
from variants.errors import UserError

SCHEMA = 3
AnyRecord = (
    FloorRecord
    | ContextRecord
    | GrowthRecord
    | PointRecord
    | BatchRecord
    | SpeculateRecord
    | ThroughputRecord
    | PagingRecord
    | MemoryRecord
    | WorkRecord
    | SizingRecord
    | PurityRecord
    | EqualityRecord
    | FaultsRecord
    | FuzzRecord
    | PlantedRecord
    | ProveRecord
    | PeersRecord
    | GenerateRecord
    | ArticlesRecord
    | ExplainBenchmarkRecord
    | CalibrateRecord
    | DuelRecord
    | AttachRecord
)


def encoded(record: Record) -> bytes:
    """The content of run.json."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decoded(content: bytes, file: Path) -> AnyRecord:
    """The record in the content of `file`, of this schema or of an older one.

    Raises UserError for a field that is missing, unknown, or of another type: where, what was expected, and
    what was found.
    """
    try:
        raw = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= SCHEMA:
        raise UserError(f"{file} has schema {_short(schema)}, this version reads 1 to {SCHEMA}")
    try:
        raw = without_engines(upgraded(raw) if schema < SCHEMA else raw)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} is no record of schema {schema} ({_short(said)})") from None
    try:
        record = _converted(raw)
    except msgspec.ValidationError as error:
        raise UserError(f"{file}: {_located(raw, str(error))}") from None
    if isinstance(record, Measurement) and (fault := next(faults(record), None)):
        raise UserError(f"{file}: {_short(fault)}")
    return record


def faults(record: Measurement) -> Iterator[str]:
    """What its types cannot say, where parts of a record do not belong together: the field, and what was
    expected there.
    """
    names = [*(steps.variant for steps in record.samples), *(first.variant for first in record.ttft)]
    timed = {name.removesuffix(AGAIN_SUFFIX) for name in names}
    for name in sorted(timed - record.variants.keys()):
        yield f"variants: expected {name}, which was timed"
    proven = {name: entry for name, entry in record.variants.items() if entry.status == "proven"}
    if proven or timed:
        if record.workload is None:
            yield "workload: expected object, got null in a run that measured"
        if record.model is None or record.model.shape is None:
            yield "model.shape: expected object, got null in a run that measured"
    contexts = record.workload.contexts if record.workload else ()
    for name, entry in proven.items():
        for field, known in (("slots", entry.slots.keys()), ("prediction", entry.prediction.keys())):
            if missing := [n for n in contexts if n not in known]:
                yield f"variants.{name}.{field}: expected context {missing[0]}"


def _converted(raw: Any) -> AnyRecord:
    record: AnyRecord = msgspec.convert(raw, AnyRecord, str_keys=True)
    shape = (raw.get("model") or {}).get(
        "shape"
    ) or {}  # a dataclass, of which msgspec ignores what it does not know
    if unknown := set(shape) - {field.name for field in fields(GPTConfig)}:
        raise msgspec.ValidationError(f"Object contains unknown field `{min(unknown)}` - at `$.model.shape`")
    return record


def _located(raw: Any, said: str) -> str:
    """`variants.tape.reason: expected str, got int`.

    msgspec writes every entry of a mapping as `[...]`: the one at fault is that without whose neighbours the
    error stays the same.
    """
    what, _, where = said.replace("`", "").partition(" - at ")
    what = what[:1].lower() + what[1:]
    place: list[str | int] = []
    for step in re.findall(r"(?<=\.)\w+|(?<=\[)\d+|\.\.\.", where):
        if step == "...":
            keys = [key for key in _at(raw, place) if _error_of(_only(raw, place, key)) == said]
            step, raw = (keys[0], _only(raw, place, keys[0])) if keys else (step, raw)
        place.append(int(step) if step.isdigit() and isinstance(_at(raw, place), list) else step)
    named = ".".join(str(step) for step in place)
    key = "a key of " if where.startswith("key in ") else ""
    return f"{key}{_short(repr(named)[1:-1])}: {_short(what)}" if place else _short(what)


def _error_of(raw: Any) -> str:
    try:
        _converted(raw)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _at(raw: Any, place: list[str | int]) -> Any:
    for step in place:
        raw = raw[step]
    return raw


def _only(raw: Any, place: list[str | int], key: str) -> Any:
    """`raw` with nothing but `key` in the mapping at this place."""
    if not place:
        return {key: raw[key]}
    changed = raw.copy()
    changed[place[0]] = _only(raw[place[0]], place[1:], key)
    return changed


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
