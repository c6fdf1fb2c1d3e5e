"""Schemas 1 and 2, the records of before `Record` existed, in the words of schema 3.

What experiments showed in schema 1 becomes the pages that they keep now.

Works on plain JSON, and is strict only in so far as what comes out is read strictly afterwards.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from variants.config import GPTConfig

Json = dict[str, Any]
SHAPE = tuple(field.name for field in fields(GPTConfig))
ERRORS = ("rms", "max", "allowed_rms", "allowed_max")
CLAIM_COLUMNS = ("article", "claim", "published", "here", "holds", "why")
HOLDS = {True: "yes", False: "no", None: "not measured"}


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


def without_engines(record: Json) -> Json:
    """Of peers before they were cases of the runner, all but what another loop timed: the page stays."""
    if record.get("experiment") != "peers" or "engines" not in record:
        return record
    return _without(record, "engines", "workload", "entropy", "samples", "floors")


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
    trace = {**_without(old, "analysis"), **analysis}
    return {**trace, "phases": phases, "replay": _replay(replay) if replay else None}


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
    return {layout: _without(prefix, "bit_equal") for layout, prefix in old.items()}


def _generate(old: Json) -> Json:
    sampling = dict(zip(("temperature", "top_k", "top_p", "seed"), old["sampling"], strict=True))
    return {**_without(old, "ttft_ms", "tpot_ms"), "sampling": sampling}


def _explain_benchmark(old: Json) -> Json:
    ratios = ("hta_over_this", "peak_over_json")
    return {**old, "tools": {name: _without(row, *ratios) for name, row in old["tools"].items()}}


def _without(old: Json, *keys: str) -> Json:
    return {key: value for key, value in old.items() if key not in keys}


def page_of(record: Json, results: Json) -> Json:
    """The page as plain JSON. A figure's text is made of what it shows."""
    kind = record["experiment"]
    measured: list[Json] = []
    if drawn := results["curves"]:
        measured.append(_figure(kind, drawn["caption"], _curves(drawn)))
    if drawn := results.get("bars"):
        measured.append(_figure(kind, drawn["caption"], _bars(drawn)))
    measured += [{"kind": "table", **table} for table in results["tables"]]
    measured += [{"kind": "bullets", "items": results["notes"]}] if results["notes"] else []
    answer = [_sentence(results["question"]), _sentence(f"**{results['verdict']}**")]
    made_by = [f"Made by `{record['command']}`, {record['started']}.", *record["warnings"]]
    claims = _claims(record["claims"]) if record.get("claims") else None
    sections = {
        "Question and answer": answer,
        "Measured": measured,
        "The articles' figures": [claims] if claims else [],
        "The run": [{"kind": "bullets", "items": made_by}],
    }
    model = record.get("model", {}).get("name", "unknown model")
    device = record.get("environment", {}).get("device_name", "any device")
    return {
        "title": f"{kind}: {model} on {device}",
        "sections": [{"title": title, "blocks": blocks} for title, blocks in sections.items() if blocks],
    }


def _sentence(text: str) -> Json:
    return {"kind": "sentence", "text": text}


def _figure(name: str, caption: str, panel: Json) -> Json:
    return {"kind": "figure", "name": name, "caption": caption, "picture": [panel]}


def _curves(drawn: Json) -> Json:
    xs = [x for points in drawn["lines"].values() for x, _ in points]
    ends = (min(xs), max(xs)) if drawn["levels"] else ()
    bounds = {name: [(x, height) for x in ends] for name, height in drawn["levels"].items()}
    axes = {key: drawn[key] for key in ("x", "y", "lines", "log_x", "log_y")}
    return {"kind": "curves", **axes, "bounds": bounds}


def _bars(drawn: Json) -> Json:
    rows = [
        {
            "name": name,
            "parts": {"ours" if name in drawn["ours"] else "others": length},
            "text": text,
            "group": group,
        }
        for group, of_group in drawn["groups"].items()
        for name, (length, text) in of_group.items()
    ]
    return {"kind": "bars", "x": drawn["x"], "rows": rows}


def _claims(claims: list[Json]) -> Json:
    rows = [
        [*(str(claim[name]) for name in CLAIM_COLUMNS[:4]), HOLDS[claim["holds"]], str(claim["why"])]
        for claim in claims
    ]
    return {"kind": "table", "columns": CLAIM_COLUMNS, "rows": rows, "text_columns": len(CLAIM_COLUMNS)}


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
