"""Schemas 1 and 2, the records of before `Record` existed, in the words of schema 3.

Works on plain JSON, and is strict only in so far as what comes out is read strictly afterwards.
"""

from __future__ import annotations

from dataclasses import fields

from profiling.results.record.shown import Json, page_of
from variants.config import GPTConfig

SHAPE = tuple(field.name for field in fields(GPTConfig))
ERRORS = ("rms", "max", "allowed_rms", "allowed_max")


def upgraded(old: Json) -> Json:
    """`old` is left as it was."""
    new = {**old, "schema": 3}
    for section, change in SECTIONS.items():
        if new.get(section) is not None:
            new[section] = change(new[section])
    if new.get("duel"):
        new["duel"] = _duel(new["duel"], new["workload"]["contexts"][0])
    for before, after in RENAMED.items():
        if before in new:
            new[after] = new.pop(before)
    if new.get("experiment") == "growth" and "variants" in new:
        new["experiment"] = "growth point"
    if "shown" in new:
        new["page"] = page_of(old, new.pop("shown"))
    if "work" in new:
        work = new.pop("work")
        new |= {"steps": work["steps"], "executed": [_without(row, "agrees") for row in work["executed"]]}
    return new


def _model(old: Json) -> Json:
    shape = {key: old[key] for key in SHAPE if key in old}
    return {**_without(old, *SHAPE), "shape": shape or None}


def _workload(old: Json) -> Json:
    return {("warm_up" if key == "settle" else key): value for key, value in old.items()}


def _variants(old: dict[str, Json]) -> dict[str, Json]:
    return {name: _entry(entry) for name, entry in old.items()}


def _entry(old: Json) -> Json:
    new = {("compiled_steps" if key == "warm_up" else key): value for key, value in old.items()}
    if new["difference"] and new["difference"][0] == "body":
        new["difference"] = ["backend", *new["difference"][1:]]
    if "memory" in new:
        new["memory"] = {
            ("compiled_step_bytes" if key == "artefact_bytes" else key): value
            for key, value in new["memory"].items()
        }
    if new.get("gate"):
        new["gate"] = _gate(new["gate"])
    if "trace" in new:
        new["trace"] = _trace(new["trace"])
    return new


def _gate(old: Json) -> Json:
    """Status and reason are those of the checks."""
    return {**_without(old, "status", "reason"), "checks": [_check(check) for check in old["checks"]]}


def _check(old: Json) -> Json:
    errors = {key: old[key] for key in ERRORS if key in old}
    return {**_without(old, *ERRORS), "errors": errors or None}


def _trace(old: Json) -> Json:
    """The means over the steps are worked out when they are read."""
    analysis = _without(old["analysis"], "parts_us", "busy_us", "profiled_ms", "replay")
    replay = old["analysis"]["replay"]
    phases = {name: _without(phase, "share") for name, phase in old.get("phases", {}).items()}
    kept = {**_without(old, "analysis"), **analysis}
    return {**kept, "phases": phases, "replay": _replay(replay) if replay else None}


def _replay(old: Json) -> Json:
    return _without(old, "saved_us", "from")


def _predicted_replay(old: Json) -> Json:
    return {"parent": old["from"], "replay": _replay(old) if "kind" in old else None}


def _duel(old: Json, context: int) -> Json:
    return {**old, "traces": [_duel_trace(trace, context) for trace in old["traces"]]}


def _duel_trace(old: Json, context: int) -> Json:
    """Of the latencies under the profiler only the mean was stored."""
    profiled_ms = [old["analysis"]["profiled_ms"]]
    about = {"file": "duel.pt.trace.json.gz", "context": context, "profiled_ms": profiled_ms}
    return {**_without(old, "analysis"), "trace": _trace({**about, "analysis": old["analysis"]})}


def _batches(old: dict[str, Json]) -> dict[str, Json]:
    return {n: {**b, "gate": _gate(b["gate"])} if b.get("gate") else b for n, b in old.items()}


def _prefixes(old: dict[str, Json]) -> dict[str, Json]:
    return {layout: _without(found, "bit_equal") for layout, found in old.items()}


def _generate(old: Json) -> Json:
    sampling = dict(zip(("temperature", "top_k", "top_p", "seed"), old["sampling"], strict=True))
    return {**_without(old, "ttft_ms", "tpot_ms"), "sampling": sampling}


def _explain_benchmark(old: Json) -> Json:
    ratios = ("hta_over_this", "peak_over_json")
    return {**old, "tools": {name: _without(row, *ratios) for name, row in old["tools"].items()}}


def _without(old: Json, *keys: str) -> Json:
    return {key: value for key, value in old.items() if key not in keys}


SECTIONS = {
    "model": _model,
    "workload": _workload,
    "variants": _variants,
    "predicted_replay": _predicted_replay,
    "batches": _batches,
    "prefixes": _prefixes,
    "generate": _generate,
    "explain_benchmark": _explain_benchmark,
}
RENAMED = {"ceilings": "peaks"}
