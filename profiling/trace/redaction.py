"""A copy of a trace that can be attached to a report: without host names, paths, stacks and annotations'
arguments.

Event for event the same, so that the analysis is the same: times, names of kernels, ops, calls and step
marks, devices, streams and correlation ids stay. Python frames stay as nameless events or nameless waits,
other annotations become "redacted annotation".
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import orjson

from profiling.trace import nsys
from profiling.trace.names import ENGINE_STEP, NOT_STEPS, PROFILER_STEP, PYTHON_CATEGORIES, WAITING_FRAME
from profiling.trace.read import metadata, pieces
from profiling.trace.source import open_source
from variants.errors import UserError

KEPT_ARGS = ("correlation", "device", "stream")
KEPT_EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s")
KEPT_META = re.compile(
    r"schemaVersion|deviceProperties|computeProperties|displayTimeUnit|baseTimeNanoseconds|with_\w+|record_shapes"
    r"|profile_memory|(?:cuda|hip|cupti|roctracer|rocm|xpu)\w*version"
)
PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.~+@-]+){2,}[\\/]?")
NAMELESS = "redacted annotation"
"""Matches `NOT_STEPS`, so that no step is taken from it."""
NAMELESS_WAIT = "<built-in function wait>"
"""Matches `WAITING_FRAME`, so that it is still a wait."""


def redact(source_path: str | Path, out_path: str | Path, step_names: frozenset[str] = frozenset()) -> int:
    """Write the redacted copy (gzip where `out_path` ends in .gz) and return its events.

    `step_names`: annotations that mark steps and keep their names, beside the marks that are always known.
    UserError where the source cannot be read or the copy would replace it.
    """
    source_path, out_path = Path(source_path), Path(out_path)
    if out_path.exists() and out_path.samefile(source_path):
        raise UserError(f"--redact {out_path}: this is the trace itself; give another name")
    if nsys.is_database(source_path):
        raise UserError(f"--redact {source_path}: only JSON is redacted, not an SQLite export of nsys")
    source = open_source(source_path)
    events = [_event(e, step_names) for piece in pieces(source) for e in piece if isinstance(e, dict)]
    meta = {k: v for k, v in metadata(source).items() if KEPT_META.fullmatch(k)}
    text = orjson.dumps(meta | {"traceEvents": events})
    temporary = out_path.with_name(out_path.name + ".partial")
    try:
        temporary.write_bytes(gzip.compress(text, mtime=0) if out_path.suffix == ".gz" else text)
        temporary.replace(out_path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"--redact {out_path}: cannot be written ({error.strerror or error})") from error
    return len(events)


def _event(event: dict[str, Any], step_names: frozenset[str]) -> dict[str, Any]:
    out = {key: event[key] for key in KEPT_EVENT_KEYS if key in event}
    args = event.get("args")
    if isinstance(args, dict):
        out["args"] = {key: args[key] for key in KEPT_ARGS if key in args}
    category = str(event.get("cat", "")).lower()
    name = str(event.get("name", ""))
    if category in PYTHON_CATEGORIES:
        out["name"] = NAMELESS_WAIT if WAITING_FRAME.match(name) else "python"
    elif "annotation" in category and not _keeps_name(name, step_names):
        out["name"] = NAMELESS
    else:
        out["name"] = name if name in step_names else PATH.sub("<path>", name)
    for key in ("pid", "tid"):
        if isinstance(out.get(key), str):
            out[key] = PATH.sub("<path>", out[key])
    return out


def _keeps_name(name: str, step_names: frozenset[str]) -> bool:
    known = PROFILER_STEP.match(name) or ENGINE_STEP.fullmatch(name) or NOT_STEPS.search(name)
    return name in step_names or known is not None
